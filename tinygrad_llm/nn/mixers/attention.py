"""Causal self-attention over the KV cache."""
from __future__ import annotations
from tinygrad import Tensor, UOp
from tinygrad_llm.nn.layers import AttentionConfig
from tinygrad_llm.nn.mixers.gqa import GQA
from tinygrad_llm.nn.cache.kv_cache import KVCache
from tinygrad_llm.nn.mixers.mla import MLA
from tinygrad_llm.nn.mixers.step import Step
from tinygrad_llm.weights.loader import Loader

class Attention:
  """Attention with the queries, keys and values of GQA or MLA; a layer may have a sliding window and sinks."""
  def __init__(self, dim: int, eps: float, config: AttentionConfig, load: Loader, layer: int, cache: KVCache):
    self.config, self.cache, latent = config, cache, config.latent
    self.heads = MLA(dim, eps, config, latent, load, layer) if latent else GQA(dim, eps, config, load, layer)
    name = f"blk.{layer}.attn_"
    self.sinks = load.optional(f"{name}sinks.weight", config.heads)
    self.out = load.linear([(name + "output", dim)], config.heads * config.value_dim)

  def __call__(self, x: Tensor, step: Step) -> tuple[Tensor, list[UOp]]:
    """x (B, T, dim) -> (B, T, dim), which reads what it stores: no store is left to make."""
    B, T, _ = x.shape
    H, KVH, place = self.config.heads, self.config.kv_heads, step.place
    q, kv, gate = self.heads(x, None if self.config.rope is None else place.of(step.ropes[self.config.rope], T))
    if self.config.temperature and step.temperature is not None:
      q = q * place.of(step.temperature, T).unsqueeze(-1)
    q = q.reshape(B, KVH, H // KVH, T, -1).permute(0, 3, 1, 2, 4)  # (B, T, KVH, G, D)
    kv = self.cache.read(place) if kv is None else self.cache.append(kv, place, T)
    kv = kv.float().transpose(2, 3)  # (parts, B, S, KVH, D)
    keys, values = kv[0], kv[-1, ..., :self.heads.value_dim]
    # positions are an outer axis, so that the heads, which are independent, are neighbours in memory
    scores = (q.unsqueeze(1) * keys.unsqueeze(2).unsqueeze(4)).sum(-1) * self.config.scale  # (B, S, T, KVH, G)
    if cap := self.config.softcap: scores = (scores / cap).tanh() * cap
    hidden = self.cache.hidden(place, T, self.config.window, self.config.chunked)
    scores = hidden.reshape(*hidden.shape, 1, 1).where(float("-inf"), scores)
    shares, total = self._softmax(scores)
    y = (shares.unsqueeze(-1) * values.unsqueeze(2).unsqueeze(4)).sum(1) / total.unsqueeze(-1)  # (B, T, KVH, G, Dv)
    y = self.heads.values(y.permute(0, 2, 3, 1, 4).reshape(B, H, T, -1)).transpose(1, 2)  # (B, T, H, Dv)
    y = y.reshape(B, T, -1)
    return self.out(y if gate is None else y * gate.sigmoid())[0], []

  def _softmax(self, scores: Tensor) -> tuple[Tensor, Tensor]:
    """
    The softmax over positions: numerators (B, S, ..) and their sum, the denominator (B, ..).

    A sink is one more score of a head: it counts in the denominator only.
    """
    sink = None if self.sinks is None else self.sinks.float().reshape(1, 1, *scores.shape[3:])
    top = scores.max(1) if sink is None else scores.max(1).maximum(sink)
    shares = (scores - top.unsqueeze(1)).exp()
    return shares, shares.sum(1) if sink is None else shares.sum(1) + (sink - top).exp()
