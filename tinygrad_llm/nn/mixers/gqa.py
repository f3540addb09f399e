"""Grouped-query attention (https://arxiv.org/abs/2305.13245): projections to queries, keys and values."""
from __future__ import annotations
from tinygrad import Tensor
from tinygrad_llm.nn.layers import AttentionConfig
from tinygrad_llm.nn.norm import RMSNorm, norm, rms
from tinygrad_llm.nn.rope import rotate
from tinygrad_llm.weights.loader import Loader

class GQA:
  """
  `heads` query heads share `kv_heads` heads of keys and values, of head_dim elements each.

  A layer that reads another one's keys and values projects to queries only.
  """
  def __init__(self, dim: int, eps: float, config: AttentionConfig, load: Loader, layer: int):
    self.style, self.head_dim, self.value_dim = config.style, config.head_dim, config.head_dim
    self.eps, self.value_norm, self.late_norm, self.gated = eps, config.value_norm, config.late_norm, config.gated
    self.unit_norm = config.unit_norm
    name, heads = f"blk.{layer}.attn_", {"q": config.heads, "k": config.kv_heads, "v": config.kv_heads}
    if config.kv_from is not None: del heads["k"], heads["v"]
    elif config.value_norm and not load.has(f"{name}v.weight") and load.has(f"{name}k.weight"): del heads["v"]
    rows = heads | {"q": 2 * config.heads if config.gated else config.heads}
    self.qkv = load.linear([(name + x, n * self.head_dim) for x, n in rows.items()], dim, f"{name}qkv")
    self.norms: list[RMSNorm] = []
    for x in heads if load.has(f"{name}q_norm.weight") or load.has(f"{name}k_norm.weight") else ():
      if x == "v": continue
      # of each head, with the same weights or others, or of all heads at once: the tensor's shape says it
      all_heads, shape = self.head_dim * heads[x], load.shape(f"{name}{x}_norm.weight")
      size = all_heads if shape == (all_heads,) and not self.late_norm else self.head_dim
      self.norms.append(norm(load, f"{name}{x}_norm", size, eps, config.layer_norm, heads[x] if len(shape) == 2 else 0))

  def __call__(self, x: Tensor, rope: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """
    x (B, T, dim), rope (T, 2, rope_dim / 2) or none -> queries (B, H, T, D), keys and values (2, B, KVH, T, D).

    The last result are gates of the heads' outputs (B, T, H * D), or none.
    """
    ys, gate = self.qkv(x, self.head_dim), None
    if self.gated:  # a head's query, then its gate
      both = ys[0].reshape(*x.shape[:2], -1, 2, self.head_dim)
      ys[0], gate = (y.reshape(*x.shape[:2], -1) for y in both.split(1, dim=3))
    turned, v = ys[:2], ys[-1]  # queries and keys are normed and rotated
    # contiguous: otherwise the norm's sum and both halves of the rotation would each multiply by the matrix
    if len(ys) == 1: turned = [ys[0].contiguous()]
    if self.norms and not self.late_norm:
      turned = [norm(y.reshape(*x.shape[:2], -1, norm.size)) for norm, y in zip(self.norms, turned)]
    *turned, v = (y.reshape(*x.shape[:2], -1, self.head_dim).transpose(1, 2) for y in (*turned, v))  # (B, heads, T, D)
    if rope is not None: turned = [rotate(y, rope, self.style) for y in turned]
    if self.unit_norm: turned = [rms(y, self.eps) for y in turned]
    if self.norms and self.late_norm: turned = [norm(y) for norm, y in zip(self.norms, turned)]
    if len(turned) == 1: return turned[0], None, gate
    return turned[0], Tensor.stack(turned[1], rms(v, self.eps) if self.value_norm else v), gate

  def values(self, y: Tensor) -> Tensor:
    """Attention's sums of values (B, H, T, D), unchanged: they are the heads' output already."""
    return y
