"""
Gemma 4's per-layer embeddings: a token has a vector for each layer, which the layer adds to its stream through a gate.

The vectors are rows of a table (https://ai.google.dev/gemma/docs/gemma-3n), mixed with a projection of the
token's embedding. The table is the largest tensor of a model that has one. Only its rows of the step's tokens are read.
"""
from __future__ import annotations
from tinygrad import Tensor
from tinygrad_llm.nn.config import ModelConfig
from tinygrad_llm.nn.norm import norm
from tinygrad_llm.weights.loader import Loader

class PerLayerEmbedding:
  """The vectors of all layers, computed once a step."""
  def __init__(self, config: ModelConfig, load: Loader):
    self.dim, self.width, n = config.dim, config.per_layer, config.n_layers * config.per_layer
    self.embd = load.matrix("per_layer_token_embd.weight", config.vocab_size, n)
    self.proj = load.linear([("per_layer_model_proj", n)], config.dim)
    self.norm = norm(load, "per_layer_proj_norm", config.per_layer, config.norm_eps)

  def __call__(self, tokens: Tensor, x: Tensor) -> Tensor:
    """tokens (B, T), their embeddings x (B, T, dim) -> (layers, B, T, width)."""
    shape = (*tokens.shape, -1, self.width)
    own = self.embd.rows(tokens).reshape(shape) * self.width ** 0.5
    projected = self.norm(self.proj(x)[0].reshape(shape) * self.dim ** -0.5)
    vectors: Tensor = (own + projected) * 0.5 ** 0.5  # (B, T, layers, width)
    return vectors.permute(2, 0, 1, 3).contiguous()

class PerLayerInput:
  """The addend of one layer to its stream."""
  def __init__(self, config: ModelConfig, load: Loader, layer: int):
    name, dim, width = f"blk.{layer}.", config.dim, config.per_layer
    self.gate, self.proj = load.linear([(f"{name}inp_gate", width)], dim), load.linear([(f"{name}proj", dim)], width)
    self.norm = norm(load, f"{name}post_norm", dim, config.norm_eps)

  def __call__(self, x: Tensor, vectors: Tensor) -> Tensor:
    """x (B, T, dim), the layer's vectors (B, T, width) -> (B, T, dim)."""
    hidden = self.gate(x)[0].gelu() * vectors  # tanh approximation
    # contiguous: see FeedForward
    return self.norm(self.proj(hidden if self.proj.stores(hidden) else hidden.contiguous())[0])
