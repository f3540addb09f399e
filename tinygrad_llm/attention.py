"""Causal self-attention over the KV cache."""
from __future__ import annotations
from tinygrad import Tensor, UOp, dtypes
from tinygrad_llm.cache import KVCache
from tinygrad_llm.config import ModelConfig
from tinygrad_llm.gqa import GQA
from tinygrad_llm.loader import Loader
from tinygrad_llm.mla import MLA

class Attention:
  """GQA or MLA say what is asked and kept; a layer may see a window of positions only, and have sinks."""
  def __init__(self, config: ModelConfig, load: Loader, layer: int, cache: KVCache):
    self.config, self.cache, self.window = config, cache, config.windows[layer]
    self.heads = MLA(config, config.mla, load, layer) if config.mla else GQA(config, load, layer)
    name, value_dim = f"blk.{layer}.attn_", config.mla.value_dim if config.mla else config.head_dim
    self.sinks = load.vector(name + "sinks.weight", config.n_heads) if config.features.sinks else None
    self.out = load.linear([(name + "output", config.dim)], config.n_heads * value_dim, bias=config.features.out_bias)

  def __call__(self, x: Tensor, start: UOp, rope: Tensor) -> Tensor:
    """x (B, T, dim) at positions start..start+T, rope (T, 2, rope_dim / 2) -> (B, T, dim)."""
    B, T, _ = x.shape
    H, KVH = self.config.n_heads, self.config.n_kv_heads
    q, kv = self.heads(x, rope)
    kv = self.cache.append(kv, start, T).unsqueeze(3).float()  # (parts, B, KVH, 1, S, D)
    keys, values = kv[0], kv[-1, ..., :self.heads.value_dim]
    scores = q.reshape(B, KVH, H // KVH, T, -1) @ keys.transpose(-1, -2) * self.config.attn_scale  # (B, KVH, G, T, S)
    if cap := self.config.attn_softcap: scores = (scores / cap).tanh() * cap
    y = self._softmax(self._masked(scores, start, T)) @ values  # (B, KVH, G, T, Dv)
    y = self.heads.values(y.reshape(B, H, T, -1)).transpose(1, 2)  # (B, T, H, Dv)
    return self.out(y.reshape(B, T, -1))[0]

  def _masked(self, scores: Tensor, start: UOp, T: int | UOp) -> Tensor:
    hidden = Tensor.full((T, start + T), float("-inf"), dtype=dtypes.float32, buffer=False)
    if not isinstance(T, int) or T > 1: scores = scores + hidden.triu(start + 1)
    return scores + hidden.tril(start - self.window) if self.window else scores

  def _softmax(self, scores: Tensor) -> Tensor:
    """Over all positions; a sink is one more score of a head, whose share is dropped."""
    if self.sinks is None: return scores.softmax(-1)
    sink = self.sinks.float().reshape(*scores.shape[1:3], 1, 1)
    top = scores.max(-1, keepdim=True).maximum(sink)
    e = (scores - top).exp()
    return e / (e.sum(-1, keepdim=True) + (sink - top).exp())
