"""Model configuration: the hyper-parameters of a GGUF file, checked, and the table of supported architectures."""
from __future__ import annotations
import math
from dataclasses import dataclass
from typing import Any, NoReturn
from tinygrad_llm.errors import InputError
from tinygrad_llm.gguf import GGUF

@dataclass(frozen=True)
class Arch:
  """What sets one architecture apart. `rope`: how dimensions pair up, "norm" (2i, 2i + 1) or "neox" (i, i + half)."""
  rope: str
  qkv_bias: bool = False
  qk_norm: bool = False

ARCHS: dict[str, Arch] = {
  "llama": Arch(rope="norm"),
  "qwen2": Arch(rope="neox", qkv_bias=True),
  "qwen3": Arch(rope="neox", qk_norm=True),
}

@dataclass(frozen=True)
class ModelConfig:
  """Shapes in elements; `context_length` is what the model was trained for, in tokens."""
  arch: str
  n_layers: int
  dim: int
  hidden_dim: int
  n_heads: int
  n_kv_heads: int
  head_dim: int
  rope_dim: int
  rope_theta: float
  rope_scale: float  # positions are multiplied by this (linear rope scaling: 1 / factor)
  norm_eps: float
  vocab_size: int
  context_length: int
  tied: bool  # the output head is the embedding

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
    if self.arch not in ARCHS:
      self.fail("architecture", f"{self.arch!r:.40} is not supported", f"supported: {', '.join(sorted(ARCHS))}")
    self.prefix = self.arch

  def fail(self, key: str, problem: str, fix: str = "the file is damaged") -> NoReturn:
    raise InputError(f"{self.file.path}: {self.prefix}.{key}: {problem}; {fix}")

  def value(self, key: str, kind: type, default: Any = None) -> Any:
    value = self.file.kv.get(f"{self.prefix}.{key}", default)
    if value is None: self.fail(key, "missing", "convert the model again with a current converter")
    if isinstance(value, bool): self.fail(key, f"{value} is not of type {kind.__name__}")
    if kind is float and isinstance(value, int): value = float(value)
    if not isinstance(value, kind): self.fail(key, f"{value!r:.40} is not of type {kind.__name__}")
    return value

  def size(self, key: str, default: int | None = None, low: int = 1, high: int = 1 << 24) -> int:
    if not low <= (value := self.value(key, int, default)) <= high: self.fail(key, f"{value} is not in {low}..{high}")
    return value

  def number(self, key: str, default: float | None = None, low: float = 0.0) -> float:
    if not math.isfinite(value := self.value(key, float, default)) or value < low:
      self.fail(key, f"{value} is not a number from {low}")
    return value

  def rope_scale(self) -> float:
    if (kind := self.value("rope.scaling.type", str, "none")) == "none": return 1.0
    if kind != "linear": self.fail("rope.scaling.type", f"{kind!r:.40} is not supported", "supported: none, linear")
    return 1.0 / self.number("rope.scaling.factor", 1.0, low=1e-6)

  def config(self) -> ModelConfig:
    if self.size("expert_count", 0, low=0):
      self.fail("expert_count", "mixture-of-experts models are not supported", "use a dense model")
    dim, n_heads = self.size("embedding_length"), self.size("attention.head_count", high=1 << 14)
    n_kv_heads = self.size("attention.head_count_kv", n_heads, high=1 << 14)
    if n_heads % n_kv_heads: self.fail("attention.head_count_kv", f"{n_kv_heads} does not divide {n_heads} heads")
    head_dim = self.size("attention.key_length", dim // n_heads)
    if (value_dim := self.size("attention.value_length", head_dim)) != head_dim:
      self.fail("attention.value_length", f"{value_dim} differs from key_length {head_dim}", "not supported")
    rope_dim = self.size("rope.dimension_count", head_dim)
    if rope_dim % 2 or rope_dim > head_dim:
      self.fail("rope.dimension_count", f"{rope_dim} is not an even number up to {head_dim}")
    if (embd := self.file.tensors.get("token_embd.weight")) is None or len(embd.shape) != 2:
      raise InputError(f"{self.file.path}: token_embd.weight: no such matrix; the file is not a language model")
    return ModelConfig(
      arch=self.arch, n_layers=self.size("block_count", high=1 << 12), dim=dim,
      hidden_dim=self.size("feed_forward_length"), n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim,
      rope_dim=rope_dim, rope_theta=self.number("rope.freq_base", 10000.0, low=1e-6), rope_scale=self.rope_scale(),
      norm_eps=self.number("attention.layer_norm_rms_epsilon"), vocab_size=embd.shape[0],
      context_length=self.size("context_length", 4096, high=1 << 31), tied="output.weight" not in self.file.tensors)
