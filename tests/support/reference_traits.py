"""
Traits of architectures that their files do not hold, for the float64 reference. Biases, norms of queries and keys,
sinks, experts and gates follow from the tensors in the file.
"""
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING: from tests.support.reference import Reference

SOFTMAX, SIGMOID = 1, 2  # <arch>.expert_gating_func

@dataclass(frozen=True)
class Traits:
  """
  - `interleaved`: pairs (2i, 2i+1) of a head's rotated dimensions are rotated, else (i, i + n/2)
  - `before`, `after`: names of the norms before and after attention and feed-forward; "": none
  - `parallel`: attention and feed-forward read the same norm, and both are added to its input
  - `layer_norm`: LayerNorm instead of RMS; `activation`: silu, gelu, relu2 or clamped (gpt-oss)
  - `embedding`: a factor of the embeddings, "sqrt" of the width or "scale": the file's; `residual`: the file's factor
    of each branch; `logits`: "divide" or "multiply" by the file's scale
  - `scores`: the file has the scores' scale; `late_norm`: queries and keys are normed after rotation
  - `mixers`: the kinds of a layer's mixers, whose outputs are added
  - `rotated`, `windowed`: whether a layer is rotated, and whether it has a sliding window
  - `gating`: how expert scores are weighted where the file has no key; `normalised`: the chosen weights sum to 1
  - `window_scaling`: frequencies of layers with a window are scaled, too
  """
  interleaved: bool = False
  before: tuple[str, str] = ("attn_norm", "ffn_norm")
  after: tuple[str, str] = ("", "")
  parallel: bool = False
  layer_norm: bool = False
  activation: str = "silu"
  embedding: str = ""
  residual: bool = False
  logits: str = ""
  scores: bool = False
  late_norm: bool = False
  mixers: "Callable[[Reference, int], tuple[str, ...]]" = lambda ref, i: ("attention",)
  rotated: "Callable[[Reference, int], bool]" = lambda ref, i: True
  windowed: "Callable[[Reference, int], bool]" = lambda ref, i: False
  window_scaling: bool = True
  gating: int = SOFTMAX
  normalised: bool = False

def period(default: int, full_first=False) -> "Callable[[Reference, int], bool]":
  """All layers but each n-th have a window; n: the file's, or `default`. Or the file has a list, true for a window."""
  def windowed(ref: "Reference", i: int) -> bool:
    pattern = ref.param("attention.sliding_window_pattern", default)
    return bool(pattern[i]) if isinstance(pattern, list) else i % pattern != (0 if full_first else pattern - 1)
  return windowed

def granite_rotated(ref: "Reference", i: int) -> bool: return bool(ref.param("rope.scaling.finetuned", True))

BOTH = ("post_attention_norm", "post_ffw_norm")
GRANITE = Traits(interleaved=True, embedding="scale", residual=True, logits="divide", scores=True,
                 rotated=granite_rotated)
TRAITS = {
  "llama": Traits(interleaved=True, normalised=True),
  "deepseek2": Traits(interleaved=True, mixers=lambda ref, i: ("latent",)),
  "gemma3": Traits(after=BOTH, activation="gelu", embedding="sqrt", windowed=period(6), window_scaling=False),
  "gpt-oss": Traits(before=("attn_norm", "post_attention_norm"), activation="clamped", windowed=period(2)),
  "granite": GRANITE,
  "olmoe": Traits(),
  "qwen2": Traits(),
  "qwen3": Traits(),
  "qwen3moe": Traits(normalised=True),
  "seed_oss": Traits(before=("attn_norm", "post_attention_norm")),
}
