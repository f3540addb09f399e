"""
Multi-head latent attention (DeepSeek-V2, https://arxiv.org/abs/2405.04434, 2.1), in its absorbed form.

The keys and values of all heads are matrices times one latent vector for each position. The latents are not expanded.
Instead, the query is multiplied by the key matrix and the output by the value matrix: all heads attend to the latents.
"""
from __future__ import annotations
from tinygrad import Tensor
from tinygrad_llm.nn.layers import AttentionConfig, LatentConfig
from tinygrad_llm.nn.norm import norm
from tinygrad_llm.nn.rope import rotate
from tinygrad_llm.weights.loader import Loader

class MLA:
  """The cache keeps kv_rank elements a position, its value and part of its key, and the rotated part of its key."""
  def __init__(self, dim: int, eps: float, config: AttentionConfig, mla: LatentConfig, load: Loader, layer: int):
    self.style, self.mla, self.value_dim = config.style, mla, mla.kv_rank
    name, H, q_dim = f"blk.{layer}.attn_", config.heads, config.heads * config.head_dim
    first, rope_dim = ("q_a", mla.q_rank) if mla.q_rank else ("q", q_dim), config.head_dim - mla.nope_dim
    self.down = load.linear([(name + first[0], first[1]), (name + "kv_a_mqa", mla.kv_rank + rope_dim)], dim)
    self.kv_norm = norm(load, name + "kv_a_norm", mla.kv_rank, eps)
    if mla.q_rank:
      self.q_norm = norm(load, name + "q_a_norm", mla.q_rank, eps)
      self.q_up = load.linear([(name + "q_b", q_dim)], mla.q_rank)
    self.heads, self.head_dim = H, config.head_dim
    if mla.split:
      self.k_b = load.tensor(name + "k_b.weight", H, mla.kv_rank, mla.nope_dim)
      self.v_b = load.tensor(name + "v_b.weight", H, mla.value_dim, mla.kv_rank)
    else: self.kv_b = load.matrix(name + "kv_b.weight", H * (mla.nope_dim + mla.value_dim), mla.kv_rank)

  def __call__(self, x: Tensor, rope: Tensor | None) -> tuple[Tensor, Tensor, None]:
    """x (B, T, dim), rope (T, 2, R / 2) -> queries (B, H, T, kv_rank + R), latents (1, B, 1, T, kv_rank + R)."""
    nope, rank = self.mla.nope_dim, self.mla.kv_rank
    q, kv = self.down(x)
    if self.mla.q_rank: q = self.q_up(self.q_norm(q))[0]
    q, kv = q.reshape(*x.shape[:2], self.heads, self.head_dim).transpose(1, 2), kv.unsqueeze(1)  # (B, heads, T, ..)
    q_rope, k_rope = (y if rope is None else rotate(y, rope, self.style) for y in (q[..., nope:], kv[..., rank:]))
    latent = self.kv_norm(kv[..., :rank])  # (B, 1, T, rank)
    return (q[..., :nope] @ self._key_matrix()).cat(q_rope, dim=-1), latent.cat(k_rope, dim=-1).unsqueeze(0), None

  def values(self, y: Tensor) -> Tensor:
    """Sums of latents (B, H, T, kv_rank) -> the heads' outputs (B, H, T, value_dim)."""
    return y @ self._value_matrix().transpose(-1, -2)

  def _key_matrix(self) -> Tensor:  # (H, nope_dim, kv_rank)
    return self.k_b.float().transpose(-1, -2) if self.mla.split else self._both()[:, :self.mla.nope_dim]

  def _value_matrix(self) -> Tensor:  # (H, value_dim, kv_rank)
    return self.v_b.float() if self.mla.split else self._both()[:, self.mla.nope_dim:]

  def _both(self) -> Tensor: return self.kv_b.float().reshape(self.heads, -1, self.mla.kv_rank)
