"""Causal self-attention with grouped key/value heads (https://arxiv.org/abs/2305.13245)."""
from __future__ import annotations
from tinygrad import Tensor, UOp, dtypes
from tinygrad_llm.cache import KVCache
from tinygrad_llm.config import ModelConfig
from tinygrad_llm.loader import Loader
from tinygrad_llm.norm import RMSNorm
from tinygrad_llm.rope import rotate

class Attention:
  def __init__(self, config: ModelConfig, load: Loader, layer: int, cache: KVCache):
    self.config, self.cache = config, cache
    heads = {"q": config.n_heads, "k": config.n_kv_heads, "v": config.n_kv_heads}
    name = f"blk.{layer}.attn_"
    self.qkv = load.linear([(name + x, n * config.head_dim) for x, n in heads.items()], config.dim,
                           bias=config.features.qkv_bias)
    self.out = load.linear([(name + "output", config.dim)], config.n_heads * config.head_dim)
    self.norms = [RMSNorm(load.vector(f"{name}{x}_norm.weight", config.head_dim), config.norm_eps)
                  for x in ("q", "k") if config.features.qk_norm]

  def __call__(self, x: Tensor, start: UOp, rope: Tensor) -> Tensor:
    """x (B, T, dim) at positions start..start+T, rope (T, 2, rope_dim / 2) -> (B, T, dim)."""
    B, T, _ = x.shape
    H, KVH, D = self.config.n_heads, self.config.n_kv_heads, self.config.head_dim
    q, k, v = (y.reshape(B, T, -1, D).transpose(1, 2) for y in self.qkv(x))  # (B, heads, T, D)
    if self.norms: q, k = (norm(y) for norm, y in zip(self.norms, (q, k)))
    q, k = (rotate(y, rope, self.config.features.rope) for y in (q, k))
    keys, values = (y.unsqueeze(2).float() for y in self.cache.append(k, v, start, T))  # (B, KVH, 1, S, D)
    scores = q.reshape(B, KVH, H // KVH, T, D) @ keys.transpose(-1, -2) * D ** -0.5  # (B, KVH, G, T, S)
    if not isinstance(T, int) or T > 1:
      scores = scores + Tensor.full((T, start + T), float("-inf"), dtype=dtypes.float32, buffer=False).triu(start + 1)
    y = scores.softmax(-1) @ values  # (B, KVH, G, T, D)
    return self.out(y.reshape(B, H, T, D).transpose(1, 2).reshape(B, T, H * D))[0]
