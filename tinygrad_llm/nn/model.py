"""The transformer: it says what is computed, nothing about how."""
from __future__ import annotations
from collections.abc import Callable
import numpy as np
from tinygrad import Tensor, UOp, dtypes, function
from tinygrad_llm.device.buffers import empty, fill
from tinygrad_llm.nn.config import ModelConfig
from tinygrad_llm.nn.dense_and_experts import DenseAndExperts
from tinygrad_llm.nn.ffn import FeedForward
from tinygrad_llm.nn.layers import (AttentionConfig, DeltaConfig, FFNConfig, LayerConfig, Mamba2Config,
  MixerConfig, MoEConfig, Rope)
from tinygrad_llm.nn.mixers.attention import Attention
from tinygrad_llm.nn.mixers.delta import Delta
from tinygrad_llm.nn.cache.kv_cache import KVCache
from tinygrad_llm.nn.mixers.mamba2 import Mamba2
from tinygrad_llm.nn.mixers.shortconv import ShortConv
from tinygrad_llm.nn.cache.place import Place
from tinygrad_llm.nn.cache.state import PROMPT, State, after
from tinygrad_llm.nn.mixers.step import Step
from tinygrad_llm.nn.moe import MoE
from tinygrad_llm.nn.norm import RMSNorm, norm
from tinygrad_llm.nn.per_layer import PerLayerEmbedding, PerLayerInput
from tinygrad_llm.nn.rope import rope_table, temperature_table
from tinygrad_llm.weights.linear import Linear
from tinygrad_llm.weights.loader import Loader

class Block:
  """
  One layer: mixers and a feed-forward network, each with norms and a residual addition.

  layer_output_scale, a tensor of one element, may multiply the output.
  """
  def __init__(self, config: ModelConfig, layer: LayerConfig, load: Loader, i: int, cache: KVCache | None,
               state: State | None):
    name, dim, eps = f"blk.{i}.", config.dim, config.norm_eps
    for tensor in layer.needs: load.check(name + tensor)
    (self.before, self.ffn_before), (self.after, self.ffn_after) = (
      [norm(load, name + x, dim, eps, config.layer_norm) if x else None for x in names]
      for names in (layer.before, layer.after))
    self.mixers = [_mixer(dim, eps, mixer, load, i, cache, state) for mixer in layer.mixers]
    self.scale, self.parallel, ffn = config.branch_scale, layer.parallel, layer.ffn
    self.ffn = None if ffn is None else (
      MoE(dim, ffn, load, i) if isinstance(ffn, MoEConfig) else FeedForward(dim, ffn, load, i)
      if isinstance(ffn, FFNConfig) else DenseAndExperts(dim, eps, ffn, load, i))
    self.per_layer = PerLayerInput(config, load, i) if config.per_layer else None
    self.output_scale = load.optional(f"{name}layer_output_scale.weight", 1)

  # tinygrad schedules a @function once for all layers that are alike: 16 layers in a ninth of the time
  @function(precompile=True, allow_implicit=True)
  def __call__(self, x: Tensor, step: Step, vectors: Tensor | None = None) -> Tensor:
    """x (B, T, dim), the layer's per-layer embeddings (B, T, width) -> (B, T, dim)."""
    h = _normed(x, self.before)
    for mixer in self.mixers:
      y, stores = mixer(h, step)
      x = after(x, stores) + self._scaled(_normed(y, self.after))
    if self.ffn is not None:
      y = self.ffn(h if self.parallel else _normed(x, self.ffn_before))
      x = x + self._scaled(_normed(y, self.ffn_after))
    if self.per_layer is not None and vectors is not None: x = x + self.per_layer(x, vectors)
    return x if self.output_scale is None else x * self.output_scale.float()

  def _scaled(self, y: Tensor) -> Tensor:
    """The addend to the residual stream."""
    return y if self.scale == 1 else y * self.scale

def _normed(x: Tensor, norm: RMSNorm | None) -> Tensor: return x if norm is None else norm(x)

def _mixer(dim: int, eps: float, config: MixerConfig, load: Loader, i: int, cache: KVCache | None, state: State | None
           ) -> Callable[[Tensor, Step], tuple[Tensor, list[UOp]]]:
  """The mixer of layer i, which has the cache or the state that its kind of mixer needs. See Step."""
  if isinstance(config, AttentionConfig):
    assert cache is not None
    return Attention(dim, eps, config, load, i, cache)
  assert state is not None
  if isinstance(config, DeltaConfig): return Delta(dim, eps, config, load, i, state)
  if isinstance(config, Mamba2Config): return Mamba2(dim, eps, config, load, i, state)
  return ShortConv(dim, config, load, i, state)

class Model:
  """
  A decoder-only transformer with the KV caches and recurrent states of its layers, which it owns.

  positions: most of a sequence; max_context: how many of its positions will be used (None: all).
  """
  def __init__(self, config: ModelConfig, load: Loader, positions: int, max_context: int | None = None):
    self.config, self.embd = config, load.matrix("token_embd.weight", config.vocab_size, config.dim)
    caches = list[KVCache | None]()
    for layer in config.layers:
      c = layer.attention
      caches.append(None if c is None else KVCache(c) if c.kv_from is None else caches[c.kv_from])
    for i, window in config.cache_windows.items():
      if (cache := caches[i]) is not None: cache.window = window
    states = [None if (r := layer.recurrent) is None else State(r.state) for layer in config.layers]
    self.caches = [*dict.fromkeys(c for c in caches if c is not None)]  # each once: layers may share one
    self.states = [s for s in states if s is not None]
    self.blocks = [Block(config, layer, load, i, caches[i], states[i]) for i, layer in enumerate(config.layers)]
    self.per_layer = PerLayerEmbedding(config, load) if config.per_layer else None
    self.norm = norm(load, config.last_norm, config.dim, config.norm_eps, config.layer_norm)
    self.head = (Linear([self.embd], [[config.vocab_size]], [None], [None]) if config.tied else
                 load.linear([("output", config.vocab_size)], config.dim))
    self.ropes = [self._table(rope, load, positions, max_context or positions) for rope in config.ropes]
    self.temperature = self._temperature(positions, max_context or positions)

  @staticmethod
  def _table(rope: Rope, load: Loader, positions: int, used: int) -> Tensor:
    short, long = (load.array(name, rope.dim // 2) if name else None for name in (rope.factors, rope.long_factors))
    factors = long if rope.long_factors and used > rope.short_context else short
    table = empty((positions, 2, rope.dim // 2), dtypes.float32)
    fill(table, lambda memory: np.copyto(memory[:used], rope_table(rope, used, factors)))
    return table

  def _temperature(self, positions: int, used: int) -> Tensor | None:
    """The factor of each position's queries, (positions,)."""
    if (temperature := self.config.temperature) is None: return None
    table = empty((positions,), dtypes.float32)
    fill(table, lambda memory: np.copyto(memory[:used], temperature_table(temperature, used)))
    return table

  def hidden(self, tokens: Tensor, place: Place, turn: int = PROMPT) -> Tensor:
    """
    tokens (B, T) -> the last layer's output (B, T, dim).

    place: of the tokens. turn: see Step.
    """
    x, step = self.embd.rows(tokens), Step(place, self.ropes, turn, self.temperature)
    if (scale := self.config.embd_scale) != 1: x = x * scale
    if self.per_layer is None:
      for block in self.blocks: x = block(x, step)
      return x
    # contiguous: otherwise each row of the projection would dequantise x again
    vectors = self.per_layer(tokens, x := x.contiguous())
    for i, block in enumerate(self.blocks): x = block(x, step, vectors[i])
    return x

  def logits(self, x: Tensor) -> Tensor:
    """x (B, T, dim) -> (B, T, vocab_size)."""
    y, = self.head(self.norm(x))
    if (scale := self.config.logit_scale) != 1: y = y * scale
    return (y / cap).tanh() * cap if (cap := self.config.logit_softcap) else y
