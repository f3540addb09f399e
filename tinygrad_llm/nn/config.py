"""Model configuration: the hyper-parameters of a GGUF file, checked, and the table of supported architectures."""
from __future__ import annotations
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn
import numpy as np
from tinygrad_llm.errors import InputError, naming
from tinygrad_llm.files.gguf import GGUF

@dataclass(frozen=True)
class Arch:
  """
  The differences of one architecture from the others.

  `rope`: how dimensions pair up, "norm" (2i, 2i + 1) or "neox" (i, i + half). `rope_switch`: a file whose
  `rope.scaling.finetuned` is false has no rotation at all (Granite 4.0 H). `qk_norm`: q and k are normalised, each
  "head" or "all" heads as one. `mla`: multi-head latent attention. `window_pattern`: used where the file has a sliding
  window and no pattern. The last of so many layers then sees the whole context, the others the window.
  `window_theta`: base of the rotation, without scaling, in layers with a window; 0: as in the other layers.
  `ffn_norm`: the tensor's name. `post_norms`: the outputs of attention and feed-forward are normalised. `scale_embd`:
  embeddings are multiplied by sqrt(dim). `scales`: the file may scale embeddings, scores and the outputs of attention
  and feed-forward, and divide logits. `activation`: see ffn.ACTIVATIONS.
  `gating`: how router logits become weights unless the file says, see moe.MoE; "": no experts. `may_be_dense`: a file
  without a number of experts has none. `norm_weights`: the weights of the chosen experts are made to sum to 1, unless
  the file says.
  """
  rope: str
  rope_switch: bool = False
  qkv_bias: bool = False
  qk_norm: str = ""
  out_bias: bool = False
  sinks: bool = False
  mla: bool = False
  window_pattern: int = 0
  window_theta: float = 0.0
  ffn_norm: str = "ffn_norm"
  post_norms: bool = False
  scale_embd: bool = False
  scales: bool = False
  activation: str = "silu"
  gating: str = ""
  may_be_dense: bool = False
  norm_weights: bool = False
  expert_bias: bool = False

ARCHS: dict[str, Arch] = {
  "deepseek2": Arch(rope="norm", mla=True, gating="softmax"),
  "gemma3": Arch(rope="neox", qk_norm="head", window_pattern=6, window_theta=10000.0, post_norms=True, scale_embd=True,
                 activation="gelu"),
  "gpt-oss": Arch(rope="neox", qkv_bias=True, out_bias=True, sinks=True, window_pattern=2,
                  ffn_norm="post_attention_norm", activation="swiglu_oai", gating="softmax_chosen", expert_bias=True),
  "granite": Arch(rope="norm", rope_switch=True, scales=True),
  "llama": Arch(rope="norm", gating="softmax", may_be_dense=True, norm_weights=True),  # with experts: Mixtral
  "olmoe": Arch(rope="neox", qk_norm="all", gating="softmax"),
  "qwen2": Arch(rope="neox", qkv_bias=True),
  "qwen3": Arch(rope="neox", qk_norm="head"),
  "qwen3moe": Arch(rope="neox", qk_norm="head", gating="softmax", norm_weights=True),
  "seed_oss": Arch(rope="neox", qkv_bias=True, ffn_norm="post_attention_norm"),
}

def check_architecture(kv: Mapping[str, Any]) -> None:
  """InputError if a file's metadata names an architecture that is not supported."""
  if isinstance(arch := kv.get("general.architecture"), str) and arch not in ARCHS:
    raise InputError(f"general.architecture: {arch!r:.40} is not supported; supported: {', '.join(sorted(ARCHS))}")

@dataclass(frozen=True)
class YaRN:
  """YaRN (https://arxiv.org/abs/2309.00071): slow rotations are scaled, fast ones kept, those between mixed."""
  context: int  # positions before the extension
  beta_fast: float  # a rotation with at least so many turns in `context` is fast
  beta_slow: float

@dataclass(frozen=True)
class Rope:
  """
  Rotary position embedding.

  dim: rotated dimensions. scale: factor of the positions (1 / the file's factor; 0: no rotation). magnitude: factor of
  cosine and sine.
  """
  dim: int
  theta: float
  scale: float = 1.0
  magnitude: float = 1.0
  yarn: YaRN | None = None

@dataclass(frozen=True)
class MLAConfig:
  """
  Multi-head latent attention. Ranks and dimensions are in elements; rope_dim comes on top of nope_dim.

  q_rank: rank of the low-rank query; 0: its matrix is full. split: the file has attn_k_b and attn_v_b, not attn_kv_b.
  """
  q_rank: int
  kv_rank: int
  nope_dim: int
  value_dim: int
  split: bool

@dataclass(frozen=True)
class MoEConfig:
  """Mixture of experts: each token goes to `n_used` of `n_experts`, within the best `groups_used` of `groups`."""
  n_experts: int
  n_used: int
  hidden_dim: int
  shared_dim: int  # hidden elements of the shared expert, which every token passes; 0: none
  dense_layers: int  # so many first layers have no experts
  gating: str
  norm_weights: bool
  scale: float  # factor of the weights
  groups: int
  groups_used: int

@dataclass(frozen=True)
class ModelConfig:
  """
  The hyper-parameters of a model. Shapes are in elements.

  `context_length`: positions that the model was trained for. `windows`: how many positions each layer sees, the
  query's included; 0: all. `window_rope`: the rotation in layers with a window. Softcaps c limit a number x to
  c tanh(x / c); 0: no limit. `embd_scale` multiplies embeddings. `branch_scale` multiplies the outputs of attention and
  feed-forward before the residual addition. Logits are divided by `logit_divisor`.
  """
  arch: str
  n_layers: int
  dim: int
  hidden_dim: int
  n_heads: int
  n_kv_heads: int
  head_dim: int
  rope: Rope
  window_rope: Rope
  windows: tuple[int, ...]
  embd_scale: float
  branch_scale: float
  attn_scale: float
  attn_softcap: float
  logit_divisor: float
  logit_softcap: float
  norm_eps: float
  vocab_size: int
  context_length: int
  tied: bool  # the output head is the embedding
  mla: MLAConfig | None
  moe: MoEConfig | None

  @property
  def features(self) -> Arch: return ARCHS[self.arch]

  @staticmethod
  def from_gguf(file: GGUF) -> ModelConfig:
    """Reads `<arch>.*` (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). InputError names the bad field."""
    return _Reader(file).config()

class _Reader:
  def __init__(self, file: GGUF):
    self.file, self.prefix = file, "general"
    self.arch = self.value("architecture", str)
    with naming(file.path): check_architecture(file.kv)
    self.prefix, self.features = self.arch, ARCHS[self.arch]

  def fail(self, key: str, problem: str, fix: str = "the file is damaged") -> NoReturn:
    raise InputError(f"{self.file.path}: {self.prefix}.{key}: {problem}; {fix}")

  def has(self, key: str) -> bool: return f"{self.prefix}.{key}" in self.file.kv

  def value(self, key: str, kind: type, default: Any = None) -> Any:
    value = self.file.kv.get(f"{self.prefix}.{key}", default)
    # an array of one number for each layer, where all are equal
    if isinstance(value, np.ndarray) and len(value) and (value == value[0]).all(): value = value[0].item()
    if value is None: self.fail(key, "missing", "convert the model again with a current converter")
    if isinstance(value, bool) and kind is not bool: self.fail(key, f"{value} is not of type {kind.__name__}")
    if kind is float and isinstance(value, int): value = float(value)
    shown = f"{' '.join(repr(value).split()):.40}"
    if isinstance(value, np.ndarray): self.fail(key, f"{shown} is not one for all layers", "that is not supported")
    if not isinstance(value, kind): self.fail(key, f"{shown} is not of type {kind.__name__}")
    return value

  def size(self, key: str, default: int | None = None, low: int = 1, high: int = 1 << 24) -> int:
    if not low <= (value := self.value(key, int, default)) <= high: self.fail(key, f"{value} is not in {low}..{high}")
    return int(value)

  def number(self, key: str, default: float | None = None, low: float = 0.0, high: float = 1e12) -> float:
    if not low <= (value := self.value(key, float, default)) <= high:  # NaN fails both
      self.fail(key, f"{value} is not a number from {low} to {high:g}")
    return float(value)

  def rope(self, dim: int, context: int) -> Rope:
    theta, kind = self.number("rope.freq_base", 10000.0, low=1e-6), self.value("rope.scaling.type", str, "linear")
    if self.features.rope_switch and not self.value("rope.scaling.finetuned", bool, True): return Rope(dim, theta, 0.0)
    if kind == "none": return Rope(dim, theta)
    if kind not in ("linear", "yarn"):
      self.fail("rope.scaling.type", f"{kind!r:.40} is not supported", "supported: none, linear, yarn")
    key = "rope.scaling.factor" if self.has("rope.scaling.factor") else "rope.scale_linear"  # its old name
    factor = self.number(key, 1.0) or 1.0
    if factor < 1e-6: self.fail(key, f"{factor} is not a number from 1e-6")
    magnitude = self.number("rope.scaling.attn_factor", 1.0, low=1e-6, high=1e6)
    if kind == "linear": return Rope(dim, theta, 1 / factor, magnitude)
    if theta <= 1 or factor < 1: self.fail(key, f"{factor} at a rope.freq_base of {theta}: YaRN needs at least 1")
    if not self.yarn_log(): magnitude *= 1 + 0.1 * math.log(factor)
    original = self.size("rope.scaling.original_context_length", context, high=1 << 31)
    betas = (self.number(f"rope.scaling.yarn_beta_{x}", beta, low=1e-6) for x, beta in (("fast", 32.0), ("slow", 1.0)))
    return Rope(dim, theta, 1 / factor, magnitude, YaRN(original, *betas))

  def yarn_log(self) -> float:
    """
    The multiplier of YaRN's 0.1 log(factor) in MLA's attention scale; 0: the rotation's magnitude grows instead.

    The file's field is a tenth of it.
    """
    return self.number("rope.scaling.yarn_log_multiplier", 0.0) * 10 if self.features.mla else 0.0

  def windows(self, n_layers: int) -> tuple[int, ...]:
    if not (period := self.features.window_pattern): return (0,) * n_layers
    window, key = self.size("attention.sliding_window", 0, low=0, high=1 << 31), "attention.sliding_window_pattern"
    if isinstance(pattern := self.file.kv.get(f"{self.prefix}.{key}"), np.ndarray):
      if len(pattern) < n_layers: self.fail(key, f"it has {len(pattern)} elements for {n_layers} layers")
      return tuple(window if local else 0 for local in pattern[:n_layers])
    period = self.size(key, period, low=0)
    return tuple(window if not period or layer % period < period - 1 else 0 for layer in range(n_layers))

  def mla(self, n_heads: int, dim: int) -> tuple[MLAConfig, int]:
    """The configuration, and the number of rotated dimensions."""
    suffix = "_mla" if self.has("attention.key_length_mla") else ""
    key = f"attention.key_length{suffix}"
    head_dim, rope_dim = self.size(key, dim // n_heads), self.size("rope.dimension_count")
    if rope_dim % 2 or rope_dim >= head_dim:
      self.fail("rope.dimension_count", f"{rope_dim} is not an even number below {key} {head_dim}")
    return MLAConfig(
      q_rank=self.size("attention.q_lora_rank", 0, low=0), kv_rank=self.size("attention.kv_lora_rank"),
      nope_dim=head_dim - rope_dim, value_dim=self.size(f"attention.value_length{suffix}", dim // n_heads),
      split="blk.0.attn_kv_b.weight" not in self.file.tensors), rope_dim

  def gating(self, n_layers: int, vocab_size: int) -> str:
    known = {1: "softmax", 2: "sigmoid", 3: "softmax_chosen"}
    if kind := self.size("expert_gating_func", 0, low=0):
      if kind not in known: self.fail("expert_gating_func", f"{kind} is not supported", "supported: 1, 2, 3")
      return known[kind]
    # GLM-4.7-Flash was converted before there was a key for it
    return "sigmoid" if self.features.mla and n_layers in (47, 48) and vocab_size == 154880 else self.features.gating

  def scale(self, key: str, default: float = 1.0) -> float:
    """The file's scale; the default where the architecture has no scales, or the file has none or 0."""
    return self.number(key, default) or default if self.features.scales else default

  def moe(self, n_layers: int, vocab_size: int) -> MoEConfig | None:
    if self.features.may_be_dense and not self.size("expert_count", 0, low=0): return None
    if not self.features.gating:
      if self.size("expert_count", 0, low=0):
        self.fail("expert_count", f"{self.arch} models with experts are not supported", "use a dense model")
      return None
    dense = self.size("leading_dense_block_count", 0, low=0)
    if dense >= n_layers: return None
    n_experts = self.size("expert_count", high=1 << 12)
    name, groups = f"blk.{dense}.ffn_down_exps.weight", self.size("expert_group_count", 0, low=0)
    if (down := self.file.tensors.get(name)) is None or len(down.shape) != 3:
      raise InputError(f"{self.file.path}: {name}: no such tensor of 3 dimensions; convert the model again")
    hidden = self.size("expert_feed_forward_length", down.shape[-1])
    groups_used = self.size("expert_group_used_count", high=groups) if groups > 1 else 1
    if groups > 1 and (n_experts % groups or n_experts < 2 * groups):
      self.fail("expert_group_count", f"{groups} groups of 2 and more cannot be made of {n_experts} experts")
    n_used = self.size("expert_used_count", high=n_experts // max(groups, 1) * groups_used)
    return MoEConfig(
      n_experts=n_experts, n_used=n_used, hidden_dim=hidden, dense_layers=dense, groups=max(groups, 1),
      groups_used=groups_used, shared_dim=hidden * self.size("expert_shared_count", 0, low=0, high=1 << 10),
      gating=self.gating(n_layers, vocab_size), scale=self.number("expert_weights_scale", 1.0) or 1.0,
      norm_weights=self.value("expert_weights_norm", bool, self.features.norm_weights))

  def config(self) -> ModelConfig:
    dim, n_heads = self.size("embedding_length"), self.size("attention.head_count", high=1 << 14)
    n_kv_heads = self.size("attention.head_count_kv", n_heads, high=1 << 14)
    if n_heads % n_kv_heads: self.fail("attention.head_count_kv", f"{n_kv_heads} does not divide {n_heads} heads")
    blocks, context = self.size("block_count", high=1 << 12), self.size("context_length", 4096, high=1 << 31)
    # the last blocks may serve multi-token prediction only
    if (n_layers := blocks - self.size("nextn_predict_layers", 0, low=0)) < 1:
      self.fail("nextn_predict_layers", f"{blocks - n_layers} of {blocks} blocks")
    if (embd := self.file.tensors.get("token_embd.weight")) is None or len(embd.shape) != 2:
      raise InputError(f"{self.file.path}: token_embd.weight: no such matrix; the file is not a language model")
    mla, vocab_size = None, embd.shape[0]
    if self.features.mla:
      mla, rope_dim = self.mla(n_heads, dim)
      head_dim, n_kv_heads = mla.nope_dim + rope_dim, 1
    else:
      head_dim = self.size("attention.key_length", dim // n_heads)
      if (value_dim := self.size("attention.value_length", head_dim)) != head_dim:
        self.fail("attention.value_length", f"{value_dim} differs from key_length {head_dim}", "not supported")
      rope_dim = self.size("rope.dimension_count", head_dim)
      if rope_dim % 2 or rope_dim > head_dim:
        self.fail("rope.dimension_count", f"{rope_dim} is not an even number up to {head_dim}")
    rope = window_rope = self.rope(rope_dim, context)
    if theta := self.features.window_theta:
      window_rope = Rope(rope_dim, self.number("rope.freq_base_swa", theta, low=1e-6))
    # Gemma 3 27B, known by its 62 layers, divides by sqrt(dim / heads)
    scale = (dim // n_heads if self.features.scale_embd and n_layers == 62 else head_dim) ** -0.5
    scale = self.scale("attention.scale", scale)
    if mla and rope.yarn: scale *= (rope.magnitude * (1 - 0.1 * self.yarn_log() * math.log(rope.scale))) ** 2
    moe = self.moe(n_layers, vocab_size)
    dense = moe is None or moe.dense_layers > 0
    return ModelConfig(
      arch=self.arch, n_layers=n_layers, dim=dim, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim,
      hidden_dim=self.size("feed_forward_length", None if dense else 0, low=int(dense)), rope=rope,
      window_rope=window_rope, windows=self.windows(n_layers),
      embd_scale=self.scale("embedding_scale", dim ** 0.5 if self.features.scale_embd else 1.0),
      branch_scale=self.scale("residual_scale"), logit_divisor=self.scale("logit_scale"), attn_scale=scale,
      attn_softcap=self.number("attn_logit_softcapping", 0.0), mla=mla, moe=moe,
      logit_softcap=self.number("final_logit_softcapping", 0.0), context_length=context,
      norm_eps=self.number("attention.layer_norm_rms_epsilon"), vocab_size=vocab_size,
      tied="output.weight" not in self.file.tensors)
