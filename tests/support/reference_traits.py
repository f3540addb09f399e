"""
Traits of architectures that their files do not hold, for the float64 reference. Biases, norms of queries and keys,
sinks, experts and gates follow from the tensors in the file.
"""
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

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
  - `window`, `score_cap`, `logit_cap`: the sliding window, the cap of the scores and the cap of the logits in files
    without these keys; scores are capped only where `score_cap` is not 0
  - `gating`: how expert scores are weighted where the file has no key; `normalised`: the chosen weights sum to 1
  - `choice`: experts are chosen by "scores" (after the gating function) or "logits"; `weigh_input`: the weights are
    factors of the experts' input, not of their output
  - `window_scaling`: frequencies of layers with a window are scaled, too; `log_multiplier`: a factor of the file's
    multiplier of the logarithm in YaRN's magnitude (0: not read)
  - `chunk`: layers with a window see the positions of a query's own chunk; `unit_norm`: rotated queries and keys are
    normed without weights
  - `temperature`: factors (T,) of the queries in a layer
  - `indexer_eps`, `indexer_pairs`: the epsilon of the indexer's norm, and whether it rotates pairs (2i, 2i+1)
  - `query_gate`: a head of attn_q is [query | gate of this head's output]; `last_norm`: the tensor of the last norm
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
  window: int = 0
  score_cap: float = 0.0
  logit_cap: float = 0.0
  window_scaling: bool = True
  query_gate: bool = False
  last_norm: str = "output_norm"
  gating: int = SOFTMAX
  normalised: bool = False
  choice: str = "scores"
  weigh_input: bool = False
  log_multiplier: float = 0.0
  chunk: int = 0
  unit_norm: bool = False
  temperature: "Callable[[Reference, int, np.ndarray], np.ndarray] | None" = None
  indexer_eps: float = 1e-6
  indexer_pairs: bool = False

def period(default: int, full_first=False) -> "Callable[[Reference, int], bool]":
  """All layers but each n-th have a window; n: the file's, or `default`. Or the file has a list, true for a window."""
  def windowed(ref: "Reference", i: int) -> bool:
    pattern = ref.param("attention.sliding_window_pattern", default)
    return bool(pattern[i]) if isinstance(pattern, list) else i % pattern != (0 if full_first else pattern - 1)
  return windowed

def with_window(windowed: "Callable[[Reference, int], bool]") -> "Callable[[Reference, int], bool]":
  """`windowed` in files with a window, no layer in the others."""
  return lambda ref, i: bool(ref.param("attention.sliding_window", 0)) and windowed(ref, i)

def not_each(step: int) -> "Callable[[Reference, int], bool]":
  """All layers but each step-th."""
  return lambda ref, i: (i + 1) % step != 0

def mistral_temperature(ref: "Reference", i: int, positions: np.ndarray) -> np.ndarray:
  """Ministral 3: from the original context on, queries grow by a logarithm."""
  scale = float(ref.param("attention.temperature_scale", 0))
  if not scale: return np.ones(len(positions))
  return 1 + scale * np.log1p(positions // int(ref.param("rope.scaling.original_context_length")))

def llama4_temperature(ref: "Reference", i: int, positions: np.ndarray) -> np.ndarray:
  """Layers without rope only."""
  if ref.traits.rotated(ref, i): return np.ones(len(positions))
  return 1 + 0.1 * np.log1p((positions + 1) // ref.traits.chunk)

def granite_rotated(ref: "Reference", i: int) -> bool: return bool(ref.param("rope.scaling.finetuned", True))

def recurrent_if(kind: str, other="attention") -> "Callable[[Reference, int], tuple[str, ...]]":
  """`kind` in layers without KV heads, else `other`."""
  return lambda ref, i: (other if ref.kv_heads(i) else kind,)

def delta_mixers(ref: "Reference", i: int) -> tuple[str, ...]:
  listed, period = ref.param("attention.recurrent_layers", []), int(ref.param("full_attention_interval", 4))
  return ("delta" if (listed[i] if listed else (i + 1) % period) else "attention",)

def nemotron_mixers(ref: "Reference", i: int) -> tuple[str, ...]:
  if ref.of_layer("feed_forward_length", i): return ()
  return ("attention" if ref.kv_heads(i) else "mamba2",)

BOTH = ("post_attention_norm", "post_ffw_norm")
GRANITE = Traits(interleaved=True, embedding="scale", residual=True, logits="divide", scores=True,
                 rotated=granite_rotated)
SPARSE = Traits(interleaved=True, mixers=lambda ref, i: ("sparse",), gating=SIGMOID, log_multiplier=10)
PARALLEL = Traits(interleaved=True, parallel=True, layer_norm=True, before=("attn_norm", "attn_norm"),
                  logits="multiply")
LFM2 = Traits(mixers=recurrent_if("shortconv"), last_norm="token_embd_norm")
QWEN35 = Traits(before=("attn_norm", "post_attention_norm"), mixers=delta_mixers, query_gate=True)
NEMOTRON_H = Traits(before=("attn_norm", "attn_norm"), mixers=nemotron_mixers, rotated=lambda ref, i: False,
                    activation="relu2", gating=SIGMOID)
TRAITS = {
  "llama": Traits(interleaved=True, normalised=True),
  "deepseek2": Traits(interleaved=True, mixers=lambda ref, i: ("latent",), log_multiplier=10),
  "gemma": Traits(activation="gelu", embedding="sqrt"),
  "gemma2": Traits(after=BOTH, activation="gelu", embedding="sqrt", windowed=period(2), window=4096, score_cap=50.0,
                   logit_cap=30.0),
  "gemma4": Traits(activation="gelu", embedding="sqrt", logit_cap=30.0, normalised=True),
  "gemma3": Traits(after=BOTH, activation="gelu", embedding="sqrt", windowed=period(6), window_scaling=False),
  "falcon-h1": Traits(mixers=lambda ref, i: ("attention", "mamba2")),
  "gpt-oss": Traits(before=("attn_norm", "post_attention_norm"), activation="clamped", windowed=period(2)),
  "granite": GRANITE,
  "granitehybrid": replace(GRANITE, mixers=recurrent_if("mamba2"), normalised=True),
  "kimi-linear": Traits(mixers=recurrent_if("kda", "latent"), rotated=lambda ref, i: False, normalised=True),
  "lfm2": replace(LFM2, windowed=with_window(lambda ref, i: True)),
  "lfm2moe": replace(LFM2, normalised=True),
  "nemotron_h": NEMOTRON_H,
  "nemotron_h_moe": NEMOTRON_H,
  "olmoe": Traits(),
  "qwen2": Traits(),
  "qwen3": Traits(),
  "qwen35": QWEN35,
  "qwen35moe": replace(QWEN35, normalised=True),
  "qwen3moe": Traits(normalised=True),
  "qwen3next": replace(QWEN35, normalised=True),
  "seed_oss": Traits(before=("attn_norm", "post_attention_norm")),
  "phi3": Traits(),
  "qwen2moe": Traits(),
  "qwen2vl": Traits(),
  "qwen3vl": Traits(),
  "qwen3vlmoe": Traits(normalised=True),
  "glm4": Traits(interleaved=True, after=BOTH),
  "glm4moe": Traits(before=("attn_norm", "post_attention_norm"), gating=SIGMOID),
  "minimax-m2": Traits(normalised=True),
  "granitemoe": replace(GRANITE, rotated=lambda ref, i: True, normalised=True),
  "mistral3": Traits(interleaved=True, normalised=True, temperature=mistral_temperature, log_multiplier=1),
  "smollm3": Traits(interleaved=True, rotated=not_each(4)),
  "ernie4_5": Traits(interleaved=True),
  "ernie4_5-moe": Traits(interleaved=True, normalised=True),
  "exaone4": Traits(before=("", ""), after=BOTH, windowed=lambda ref, i: ref.layers == 64 and period(4)(ref, i),
                    rotated=lambda ref, i: ref.layers != 64 or ref.traits.windowed(ref, i)),
  "cohere2": replace(PARALLEL, windowed=period(4), rotated=period(4)),
  "command-r": PARALLEL,
  "olmo2": Traits(before=("", ""), after=BOTH, windowed=with_window(period(4)), window_scaling=False),
  "llama4": Traits(interleaved=True, gating=SIGMOID, choice="logits", weigh_input=True, chunk=8192, unit_norm=True,
                   rotated=not_each(4), windowed=period(4), temperature=llama4_temperature),
  "hunyuan-dense": Traits(late_norm=True),
  "deepseek32": SPARSE,
  "glm-dsa": replace(SPARSE, indexer_eps=0.0, indexer_pairs=True, log_multiplier=0),
}
