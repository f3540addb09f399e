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
    # contiguous: else every row of `down` computes all of silu(gate) * up again. Decode of a 1B shape cut to 4 layers,
    # Q4_K_M, CPU: 785 -> 616 ms a token.
    return self.down((gate.silu() * up).contiguous())[0]
