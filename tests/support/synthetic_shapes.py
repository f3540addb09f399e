"""The description of a synthetic model: sizes, traits of the architecture, and tensors before they are drawn."""
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gguf import GGUFWriter


@dataclass(frozen=True)
class MoE:
  """
  The experts of a layer.

  `ffn`: width of one expert. `dense`: leading layers without experts. `step`: each step-th layer has experts.
  `shared`: experts for every token, joined into one, of width `shared_ffn` (0: shared * ffn). `shared_gate`: its output
  is gated. `gating`: softmax, sigmoid or "" (not written, as in the oldest files). `norm`: the chosen experts' weights
  are normalised to sum to 1. `scale`: a factor of these weights (0: not written). `bias`: a bias of the selection.
  `groups`, `groups_used`: experts are chosen from the best groups only (0: not written). `layout`: "joined" tensors of
  all experts, "fused" gate and up rows in one of these, or one matrix an expert ("split", the oldest files). `latent`:
  the experts work in this width, between two matrices (0: in the model's).
  """
  experts: int = 8
  used: int = 2
  ffn: int = 64
  dense: int = 0
  shared: int = 0
  gating: str = ""
  norm: bool = False
  scale: float = 0
  bias: bool = False
  groups: int = 0
  groups_used: int = 0
  step: int = 1
  shared_ffn: int = 0
  shared_gate: bool = False
  layout: str = "joined"
  latent: int = 0

  @property
  def shared_width(self) -> int: return self.shared_ffn or self.ffn * self.shared

@dataclass(frozen=True)
class MLA:
  """
  Multi-head latent attention (DeepSeek-V2).

  `q_lora`: rank of the queries (0: not factored). `kv_lora`: rank of keys and values. `nope`, `rope`, `value`:
  dimensions of a head. `absorbed`: the file has attn_k_b (transposed) and attn_v_b instead of the older attn_kv_b.
  """
  q_lora: int = 0
  kv_lora: int = 64
  nope: int = 32
  rope: int = 16
  value: int = 32
  absorbed: bool = True

@dataclass(frozen=True)
class Indexer:
  """
  The indexer of sparse latent attention (DeepSeek-V3.2): `heads` of `size`, which choose `top_k` positions.

  `types`: per layer, 1: an indexer of its own, 0: the choice of the last layer with one (GLM-5.2; (): not written).
  """
  heads: int = 16
  size: int = 64
  top_k: int = 2048
  types: tuple[int, ...] = ()

class Spec(NamedTuple):
  """
  A gaussian tensor of `mean`, `std` and optional random `signs`, or the `values`. The file's types apply only to a
  `matrix`.
  """
  name: str
  shape: tuple[int, ...]
  std: float
  mean: float = 0.0
  signs: bool = False
  matrix: bool = True
  layer: int = 0
  values: tuple[float, ...] = ()

def matrix(name: str, layer: int, std: float, *shape: int) -> Spec:
  return Spec(name + ".weight", shape, std, layer=layer)

def norm(name: str, n: int, mean=1.0, signs=False) -> Spec:
  return Spec(name + ".weight", (n,), 0.1 * mean, mean, signs, matrix=False)

def bias(name: str, std: float, *shape: int) -> Spec:
  return Spec(name + ".bias", shape, std, matrix=False)

@dataclass(frozen=True)
class Family:
  """
  The traits of an architecture, and the defaults of write_model.

  - `vocab`: see synthetic_vocab; `arch`: its name in the file, if it is not the family's
  - `norms`: "pre", "post", "both" or "parallel" (attention and feed-forward read one norm); `names`, `post_names`: the
    norms' tensors, attention's and the feed-forward's; `layer_norm`: LayerNorm, not RMS; `norm_bias`: with a bias
  - `mixers`: the kind of each layer's mixer, repeated; two kinds joined by "+" are added, "" is none; `no_ffn`: kinds
    of layers without a feed-forward
  - `biases`: parts with a bias, some of "out", "ffn", "experts"; `sinks`: with sinks; `fused`: some of "qkv", "up"
  - `qk_norm`: over each "head", over "all" heads at once, or over each with weights of its own ("heads")
  - `sharp`: standard deviation of queries and keys
  - `gated`: False for up, activation, down; `hidden`: standard deviations of the hidden factors and product
  - `rotated`: the rotated share of a head (None: not written); `key_length`: the head's size is always written
  - `write_base`: the rotation's base is written
  - `mha`: as many KV heads as heads unless told; `expert_keys`: some of ffn, dense, step, shared, shared_ffn
  - `wide_experts`: an expert is as wide as a dense network, as it is without the key "ffn"
  - `stream`: the residual stream is as large as the logits (embeddings times sqrt(dim))
  - `parts`: the default sizes of other mixers, by kind; `query_gate`: a head of attn_q has the rows of a gate, too
  - `marked`: some of "kv", "ffn": sizes that are written by layer, 0 where there is no attention or feed-forward
  - `last_norm`: the last norm's tensor; `bare`: norms without the suffix .weight; `eps_key`: "layer" if the epsilon of
    RMS norms has the name of LayerNorm's
  - `keys`: writes more metadata; `layer_tensors`: more tensors of a layer; `model_tensors`: more of the model
  """
  vocab: str
  rope_base: float
  qkv_bias: bool = False
  qk_norm: str = ""
  moe: MoE | None = None
  mla: MLA | None = None
  window: int = 0
  tied: bool = True
  arch: str = ""
  norms: str = "pre"
  names: tuple[str, str] = ("attn_norm", "ffn_norm")
  post_names: tuple[str, str] = ("post_attention_norm", "post_ffw_norm")
  layer_norm: bool = False
  norm_bias: bool = False
  mixers: tuple[str, ...] = ("attention",)
  no_ffn: tuple[str, ...] = ()
  biases: tuple[str, ...] = ()
  sinks: bool = False
  fused: tuple[str, ...] = ()
  gated: bool = True
  hidden: tuple[float, float] = (1, 0.6)
  sharp: float = 0
  rotated: float | None = 1.0
  key_length: bool = False
  write_base: bool = True
  mha: bool = False
  expert_keys: tuple[str, ...] = ("ffn",)
  wide_experts: bool = False
  stream: bool = False
  parts: Mapping[str, Any] = field(default_factory=dict)
  query_gate: bool = False
  marked: tuple[str, ...] = ()
  last_norm: str = "output_norm"
  bare: tuple[str, ...] = ()
  eps_key: str = ""
  keys: "Callable[[GGUFWriter, Shape], None] | None" = None
  layer_tensors: "Callable[[Shape, int, float], Iterator[Spec]] | None" = None
  model_tensors: "Callable[[Shape, float], Iterator[Spec]] | None" = None

@dataclass(frozen=True)
class Shape:
  """
  The arguments of write_model that determine the tensors, with defaults filled in.

  arch: the name in the file. ffn, kv_heads: a number, or one a layer. parts: the sizes of other mixers, by kind. Its
  entry "nextn" is the number of layers that predict further tokens.
  """
  family: Family
  arch: str
  dim: int
  ffn: int | tuple[int, ...]
  layers: int
  heads: int
  kv_heads: int | tuple[int, ...]
  head_dim: int
  vocab: int
  tied: bool
  qkv_bias: bool
  qk_norm: str
  logit_std: float
  rope_freqs: bool
  moe: MoE | None
  mla: MLA | None
  mixers: tuple[str, ...]
  parts: Mapping[str, Any]

  def width(self, i: int) -> int: return self.ffn if isinstance(self.ffn, int) else self.ffn[i]
  def kv(self, i: int) -> int: return self.kv_heads if isinstance(self.kv_heads, int) else self.kv_heads[i]
  def kinds(self, i: int) -> tuple[str, ...]:
    """The kinds of a layer's mixers."""
    if self.predicts(i): return ("attention",)
    return tuple(kind for kind in self.mixers[i % len(self.mixers)].split("+") if kind)
  def attends(self, i: int) -> bool: return bool({"attention", "latent"} & {*self.kinds(i)})
  def predicts(self, i: int) -> bool:
    """Whether a layer is one of the last, which predict further tokens (https://arxiv.org/abs/2404.19737)."""
    return i >= self.layers - self.parts.get("nextn", 0)
  def feeds(self, i: int) -> bool:
    """Whether a layer has a feed-forward."""
    return not any(kind in self.family.no_ffn for kind in self.kinds(i))
  def sparse(self, i: int) -> bool:
    """Whether a layer has experts."""
    return bool(self.moe and i >= self.moe.dense and (i + 1) % self.moe.step == 0)
  @property
  def emb(self) -> float:
    """The embeddings' standard deviation, with which a tied head makes logits of the wanted size."""
    return self.logit_std / math.sqrt(self.dim)
  @property
  def read(self) -> float:
    """The standard deviation of what a block's matrices read: 1 after a norm."""
    return self.emb if self.family.norms == "post" else 1
