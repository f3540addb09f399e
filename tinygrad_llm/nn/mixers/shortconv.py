"""The gated short convolution of LFM2 (https://arxiv.org/abs/2511.23404)."""
from __future__ import annotations
from tinygrad import Tensor, UOp
from tinygrad_llm.nn.layers import ShortConvConfig
from tinygrad_llm.nn.mixers.conv import short_conv
from tinygrad_llm.nn.cache.state import State
from tinygrad_llm.nn.mixers.step import Step
from tinygrad_llm.weights.loader import Loader

class ShortConv:
  """Three projections b, c, v of a token: c * conv(b * v). The state is what the convolution saw last."""
  def __init__(self, dim: int, config: ShortConvConfig, load: Loader, layer: int, state: State):
    name, self.state, n = f"blk.{layer}.shortconv.", state, config.dim
    self.inputs, self.weight = load.linear([(name + "in_proj", 3 * n)], dim), load.matrix(
      name + "conv.weight", n, config.taps)
    self.out = load.linear([(name + "out_proj", dim)], n)

  def __call__(self, x: Tensor, step: Step) -> tuple[Tensor, list[UOp]]:
    """x (B, T, dim) -> (B, T, dim), and the stores of the new state."""
    b, c, v = self.inputs(x)[0].chunk(3, dim=-1)
    rows, = self.state.read(step.turn, step.place)
    y, rows = short_conv(b * v, rows, self.weight.float())
    return self.out(c * y)[0], self.state.write(step.turn, [rows], step.place)
