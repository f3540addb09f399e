"""The transformer: what is computed, nothing about how."""
from __future__ import annotations
import numpy as np
from tinygrad import Tensor, UOp, dtypes
from tinygrad_llm.attention import Attention
from tinygrad_llm.cache import KVCache
from tinygrad_llm.config import ModelConfig
from tinygrad_llm.device import empty, fill
from tinygrad_llm.ffn import FeedForward
from tinygrad_llm.loader import Loader
from tinygrad_llm.norm import RMSNorm
from tinygrad_llm.rope import rope_table

class Block:
  def __init__(self, config: ModelConfig, load: Loader, layer: int, cache: KVCache):
    norms = [load.vector(f"blk.{layer}.{name}_norm.weight", config.dim) for name in ("attn", "ffn")]
    self.attn_norm, self.ffn_norm = (RMSNorm(weight, config.norm_eps) for weight in norms)
    self.attn, self.ffn = Attention(config, load, layer, cache), FeedForward(config, load, layer)

  def __call__(self, x: Tensor, start: UOp, rope: Tensor) -> Tensor:
    """x (B, T, dim) -> (B, T, dim)."""
    x = x + self.attn(self.attn_norm(x), start, rope)
    return x + self.ffn(self.ffn_norm(x))

class Model:
  """A decoder-only transformer over one slot of KV cache."""
  def __init__(self, config: ModelConfig, load: Loader, max_context: int):
    self.embd = load.matrix("token_embd.weight", config.vocab_size, config.dim)
    self.caches = [KVCache(config, max_context) for _ in range(config.n_layers)]
    self.blocks = [Block(config, load, layer, cache) for layer, cache in enumerate(self.caches)]
    self.norm = RMSNorm(load.vector("output_norm.weight", config.dim), config.norm_eps)
    self.head = self.embd if config.tied else load.matrix("output.weight", config.vocab_size, config.dim)
    table = rope_table(config, max_context, load.array("rope_freqs.weight", config.rope_dim // 2))
    self.rope = empty(table.shape, dtypes.float32)
    fill(self.rope, lambda memory: np.copyto(memory, table))

  def hidden(self, tokens: Tensor, start: UOp) -> Tensor:
    """tokens (B, T) at positions start..start+T -> the last layer's output (B, T, dim)."""
    x, T = self.embd.rows(tokens), tokens.shape[1]
    for block in self.blocks: x = block(x, start, self.rope[start:start+T])
    return x

  def logits(self, x: Tensor) -> Tensor:
    """x (B, T, dim) -> (B, T, vocab_size)."""
    return self.norm(x) @ self.head.float().transpose(-1, -2)
