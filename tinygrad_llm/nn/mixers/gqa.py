"""Grouped-query attention (https://arxiv.org/abs/2305.13245): projections to queries, keys and values."""
from __future__ import annotations
from tinygrad import Tensor
from tinygrad_llm.nn.layers import AttentionConfig
from tinygrad_llm.nn.norm import RMSNorm, norm
from tinygrad_llm.nn.rope import rotate
from tinygrad_llm.weights.loader import Loader

class GQA:
  """`heads` query heads share `kv_heads` heads of keys and values, of head_dim elements each."""
  def __init__(self, dim: int, eps: float, config: AttentionConfig, load: Loader, layer: int):
    self.style, self.head_dim, self.value_dim = config.style, config.head_dim, config.head_dim
    name, heads = f"blk.{layer}.attn_", {"q": config.heads, "k": config.kv_heads, "v": config.kv_heads}
    self.qkv = load.linear([(name + x, n * self.head_dim) for x, n in heads.items()], dim, f"{name}qkv")
    self.norms: list[RMSNorm] = []
    for x in ("q", "k") if load.has(f"{name}q_norm.weight") or load.has(f"{name}k_norm.weight") else ():
      # of each head, or of all heads at once: the tensor's length says it
      all_heads, width = self.head_dim * heads[x], load.length(f"{name}{x}_norm.weight")
      self.norms.append(norm(load, f"{name}{x}_norm", all_heads if width == all_heads else self.head_dim, eps))

  def __call__(self, x: Tensor, rope: Tensor | None) -> tuple[Tensor, Tensor]:
    """
    x (B, T, dim), rope (T, 2, rope_dim / 2) or none -> queries (B, H, T, D), keys and values (2, B, KVH, T, D).
    """
    q, k, v = self.qkv(x, self.head_dim)
    if self.norms: q, k = (norm(y.reshape(*x.shape[:2], -1, norm.size)) for norm, y in zip(self.norms, (q, k)))
    q, k, v = (y.reshape(*x.shape[:2], -1, self.head_dim).transpose(1, 2) for y in (q, k, v))  # (B, heads, T, D)
    if rope is not None: q, k = (rotate(y, rope, self.style) for y in (q, k))
    return q, Tensor.stack(k, v)

  def values(self, y: Tensor) -> Tensor:
    """Attention's sums of values (B, H, T, D), unchanged: they are the heads' output already."""
    return y
