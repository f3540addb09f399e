"""The gated feed-forward network (SwiGLU, https://arxiv.org/abs/2002.05202)."""
from __future__ import annotations
from tinygrad import Tensor
from tinygrad_llm.config import ModelConfig
from tinygrad_llm.loader import Loader

class FeedForward:
  def __init__(self, config: ModelConfig, load: Loader, layer: int):
    name, hidden = f"blk.{layer}.ffn_", config.hidden_dim
    self.gate_up = load.linear([(name + "gate", hidden), (name + "up", hidden)], config.dim)
    self.down = load.linear([(name + "down", config.dim)], hidden)

  def __call__(self, x: Tensor) -> Tensor:
    """x (B, T, dim) -> (B, T, dim)."""
    gate, up = self.gate_up(x)
    return self.down(gate.silu() * up)[0]
