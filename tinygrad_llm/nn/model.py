"""The transformer: it says what is computed, nothing about how."""
from __future__ import annotations
import numpy as np
from tinygrad import Tensor, UOp, dtypes, function
from tinygrad_llm.device.buffers import empty, fill
from tinygrad_llm.nn.attention import Attention
from tinygrad_llm.nn.config import ModelConfig, Rope
from tinygrad_llm.nn.ffn import FeedForward
from tinygrad_llm.nn.kv_cache import KVCache
from tinygrad_llm.nn.moe import MoE
from tinygrad_llm.nn.norm import RMSNorm
from tinygrad_llm.nn.rope import rope_table
from tinygrad_llm.weights.linear import Linear
from tinygrad_llm.weights.loader import Loader

class Block:
  def __init__(self, config: ModelConfig, load: Loader, layer: int, cache: KVCache):
    def norm(name: str) -> RMSNorm:
      return RMSNorm(load.vector(f"blk.{layer}.{name}.weight", config.dim), config.norm_eps)
    self.attn_norm, self.ffn_norm = norm("attn_norm"), norm(config.features.ffn_norm)
    post = config.features.post_norms
    self.attn_post, self.ffn_post = (norm(f"post_{x}_norm") if post else None for x in ("attention", "ffw"))
    self.attn, self.rope = Attention(config, load, layer, cache), int(config.windows[layer] > 0)
    self.scale = config.branch_scale
    self.ffn = (MoE(config, config.moe, load, layer) if config.moe and layer >= config.moe.dense_layers else
                FeedForward(config, load, layer, "", config.hidden_dim))

  # tinygrad schedules a @function once for all layers that are alike: 16 layers in a ninth of the time
  @function(precompile=True, allow_implicit=True)
  def __call__(self, x: Tensor, start: UOp, ropes: list[Tensor]) -> Tensor:
    """x (B, T, dim) -> (B, T, dim). ropes: the rotations of all positions, in layers without and with a window."""
    x = x + self._branch(self.attn(self.attn_norm(x), start, ropes[self.rope]), self.attn_post)
    return x + self._branch(self.ffn(self.ffn_norm(x)), self.ffn_post)

  def _branch(self, y: Tensor, post: RMSNorm | None) -> Tensor:
    """The addend to the residual stream: y, normalised and scaled where the architecture does so."""
    y = y if post is None else post(y)
    return y if self.scale == 1 else y * self.scale

class Model:
  """
  A decoder-only transformer over one slot of KV cache.

  positions: size of the cache; max_context: how many of its positions will be used (None: all).
  """
  def __init__(self, config: ModelConfig, load: Loader, positions: int, max_context: int | None = None):
    self.config, self.embd = config, load.matrix("token_embd.weight", config.vocab_size, config.dim)
    self.blocks = [Block(config, load, layer, KVCache(config, positions)) for layer in range(config.n_layers)]
    self.norm = RMSNorm(load.vector("output_norm.weight", config.dim), config.norm_eps)
    self.head = (Linear([self.embd], [[config.vocab_size]], [None], [None]) if config.tied else
                 load.linear([("output", config.vocab_size)], config.dim))
    factors = load.array("rope_freqs.weight", config.rope.dim // 2)
    shape = positions, max_context or positions
    self.ropes = [self._table(config.rope, *shape, factors)]
    self.ropes.append(self.ropes[0] if config.window_rope is config.rope else
                      self._table(config.window_rope, *shape, None))

  @staticmethod
  def _table(rope: Rope, positions: int, used: int, factors: np.ndarray | None) -> Tensor:
    table = empty((positions, 2, rope.dim // 2), dtypes.float32)
    fill(table, lambda memory: np.copyto(memory[:used], rope_table(rope, used, factors)))
    return table

  def hidden(self, tokens: Tensor, start: UOp) -> Tensor:
    """tokens (B, T) at positions start..start+T -> the last layer's output (B, T, dim)."""
    x = self.embd.rows(tokens)
    if (scale := self.config.embd_scale) != 1: x = x * scale
    for block in self.blocks: x = block(x, start, self.ropes)
    return x

  def logits(self, x: Tensor) -> Tensor:
    """x (B, T, dim) -> (B, T, vocab_size)."""
    y, = self.head(self.norm(x))
    if (divisor := self.config.logit_divisor) != 1: y = y / divisor
    return (y / cap).tanh() * cap if (cap := self.config.logit_softcap) else y
