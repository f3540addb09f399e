"""Grouped-query attention (https://arxiv.org/abs/2305.13245): projections to queries, keys and values."""
from __future__ import annotations
from tinygrad import Tensor
from tinygrad_llm.nn.config import ModelConfig
from tinygrad_llm.nn.norm import RMSNorm
from tinygrad_llm.nn.rope import rotate
from tinygrad_llm.weights.loader import Loader

class GQA:
  """n_heads query heads share n_kv_heads heads of keys and values, of head_dim elements each."""
  def __init__(self, config: ModelConfig, load: Loader, layer: int):
    self.style, self.head_dim, self.value_dim = config.features.rope, config.head_dim, config.head_dim
    name, heads = f"blk.{layer}.attn_", {"q": config.n_heads, "k": config.n_kv_heads, "v": config.n_kv_heads}
    self.qkv = load.linear([(name + x, n * self.head_dim) for x, n in heads.items()], config.dim,
                           bias=config.features.qkv_bias)
    self.norms: list[RMSNorm] = []
    for x in ("q", "k") if (norm := config.features.qk_norm) else ():
      width = self.head_dim * (heads[x] if norm == "all" else 1)
      self.norms.append(RMSNorm(load.vector(f"{name}{x}_norm.weight", width), config.norm_eps))

  def __call__(self, x: Tensor, rope: Tensor) -> tuple[Tensor, Tensor]:
    """x (B, T, dim), rope (T, 2, rope_dim / 2) -> queries (B, H, T, D), keys and values (2, B, KVH, T, D)."""
    q, k, v = self.qkv(x, self.head_dim)
    if self.norms: q, k = (norm(y.reshape(*x.shape[:2], -1, norm.size)) for norm, y in zip(self.norms, (q, k)))
    q, k, v = (y.reshape(*x.shape[:2], -1, self.head_dim).transpose(1, 2) for y in (q, k, v))  # (B, heads, T, D)
    q, k = (rotate(y, rope, self.style) for y in (q, k))
    return q, Tensor.stack(k, v)

  def values(self, y: Tensor) -> Tensor:
    """Attention's sums of values (B, H, T, D), unchanged: they are the heads' output already."""
    return y
