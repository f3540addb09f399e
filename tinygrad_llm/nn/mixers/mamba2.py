"""Mamba-2 (https://arxiv.org/abs/2405.21060): linear attention with a decay, behind a short convolution."""
from __future__ import annotations
from tinygrad import Tensor, UOp
from tinygrad_llm.nn.layers import Mamba2Config
from tinygrad_llm.nn.mixers.conv import short_conv
from tinygrad_llm.nn.mixers.linear_attention import attended
from tinygrad_llm.nn.mixers.padding import padded, rows_for
from tinygrad_llm.nn.cache.state import State
from tinygrad_llm.nn.mixers.step import Step
from tinygrad_llm.nn.norm import RMSNorm
from tinygrad_llm.weights.loader import Loader

C = 32  # tokens of a chunk

class Mamba2:
  """
  A head's values are its channels u times its step size dt, and its decay is exp(a dt).

  Its output is what it reads from its state, plus d u. The paper's B are the keys here, and its C the queries. The
  state also holds what the convolution saw last.
  """
  def __init__(self, dim: int, eps: float, config: Mamba2Config, load: Loader, layer: int, state: State):
    name, self.config, self.state, n = f"blk.{layer}.ssm_", config, state, config.inner
    per_head = config.groups, config.heads // config.groups, 1, 1
    self.inputs = load.apart(name + "in", [n + config.channels, config.heads], dim)
    self.weight = load.matrix(name + "conv1d.weight", config.channels, config.taps)
    self.bias = load.optional(name + "conv1d.bias", config.channels)
    self.dt_bias = load.vector(name + "dt.bias", config.heads)
    self.a, self.d = load.reshaped(name + "a", *per_head), load.reshaped(name + "d", *per_head)
    self.norm = None if not load.has(f"{name}norm.weight") else RMSNorm(
      load.reshaped(f"{name}norm.weight", config.groups, n // config.groups), eps)
    self.out = load.linear([(name + "out", dim)], n)

  def __call__(self, x: Tensor, step: Step) -> tuple[Tensor, list[UOp]]:
    """x (B, T, dim) -> (B, T, dim), and the stores of the new state."""
    config, (B, T, _) = self.config, x.shape
    N = 1 if isinstance(T, int) and T == 1 else rows_for(T, C)
    rows, dt = self.inputs(x)
    z, rows = rows.split([config.inner, config.channels], dim=-1)
    seen, S = self.state.read(step.turn, step.place)
    bias = None if self.bias is None else self.bias.float()
    rows, seen = short_conv(padded(rows, N), seen, self.weight.float(), bias, T)
    dt = padded((dt + self.dt_bias.float()).softplus(), N)  # 0 in rows of padding: they leave S alone

    def by_head(y: Tensor, heads: int) -> Tensor:  # (B, N, ..) -> (B, groups, heads, N, ..)
      return y.reshape(B, N, config.groups, heads, -1).permute(0, 2, 3, 1, 4)
    keys, heads = config.groups * config.state_size, config.heads // config.groups
    u, k, q = (by_head(y, n) for y, n in zip(rows.silu().split([config.inner, keys, keys], dim=-1), (heads, 1, 1)))
    dt = by_head(dt, heads)
    v, g = u * dt, (dt * self.a.float()).squeeze(-1)
    o, S = attended(q, k, v, g, None, S, C)
    y = (o + self.d.float() * u).permute(0, 3, 1, 2, 4).reshape(B, N, -1)[:, :T] * z.silu()
    if self.norm is not None: y = self.norm(y.reshape(B, T, config.groups, -1)).reshape(B, T, -1)
    return self.out(y)[0], self.state.write(step.turn, [seen, S], step.place)
