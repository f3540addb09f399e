"""
Gated DeltaNet (https://arxiv.org/abs/2412.06464) and Kimi Delta Attention (https://arxiv.org/abs/2510.26692): linear
attention with a decay and the delta rule, behind a short convolution.
"""
from __future__ import annotations
from tinygrad import Tensor, UOp
from tinygrad_llm.nn.layers import DeltaConfig
from tinygrad_llm.nn.mixers.conv import short_conv
from tinygrad_llm.nn.mixers.delta_inputs import DeltaInputs
from tinygrad_llm.nn.mixers.kda_inputs import KDAInputs
from tinygrad_llm.nn.mixers.linear_attention import attended
from tinygrad_llm.nn.mixers.padding import padded, rows_for
from tinygrad_llm.nn.cache.state import State
from tinygrad_llm.nn.mixers.step import Step
from tinygrad_llm.nn.norm import norm
from tinygrad_llm.weights.loader import Loader

CHUNK, KDA_CHUNK = 32, 16  # tokens of a prompt whose corrections are one triangular system

class Delta:
  """
  Queries, keys and values come out of a convolution; queries and keys then have length 1.

  A head's output is normalised and multiplied by a gate. The state is what the convolution saw last, and the heads' S.
  """
  def __init__(self, dim: int, eps: float, config: DeltaConfig, load: Loader, layer: int, state: State):
    name, self.config, self.eps, self.state = f"blk.{layer}.", config, eps, state
    self.inputs: DeltaInputs | KDAInputs = (KDAInputs if config.per_channel else DeltaInputs)(dim, config, load, layer)
    self.norm = norm(load, f"{name}ssm_norm", config.head_dim, eps)
    out = "attn_output" if config.per_channel else "ssm_out"
    self.out = load.linear([(name + out, dim)], config.v_heads * config.head_dim)

  def __call__(self, x: Tensor, step: Step) -> tuple[Tensor, list[UOp]]:
    """x (B, T, dim) -> (B, T, dim), and the stores of the new state."""
    config, (B, T, _) = self.config, x.shape
    N = rows_for(T, 1)
    C = min(KDA_CHUNK if config.per_channel else CHUNK, 1 << (N - 1).bit_length())
    N = rows_for(T, C)
    rows, g, beta, gate = self.inputs(x)
    if N > 1: rows, g, beta = padded(rows, N), padded(g, N), padded(beta, N)  # g = beta = 0: S is left alone
    seen, S = self.state.read(step.turn, step.place)
    rows, seen = short_conv(rows, seen, self.inputs.filters.float(), None, T)
    q, k, v = self._heads(rows.silu())
    g, beta = self._by_head(g), self._by_head(beta)
    S = S.reshape(B, *v.shape[1:3], *S.shape[2:])
    o, S = attended(q, k, v, g, beta, S, C)
    o = self.norm(o.reshape(B, config.v_heads, N, -1).transpose(1, 2)[:, :T])  # (B, T, heads, d)
    y = o.reshape(B, T, -1) * gate
    return self.out(y)[0], self.state.write(step.turn, [seen, S.reshape(B, config.v_heads, *S.shape[3:])], step.place)

  def _heads(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """rows (B, N, channels) -> q, k (B, *heads, N, d), whose axis of value heads is 1, and v."""
    config, keys = self.config, self.config.k_heads * self.config.head_dim
    q, k, v = rows.split([keys, keys, config.v_heads * config.head_dim], dim=-1)
    q, k = (self._unit(y.reshape(*y.shape[:2], config.k_heads, -1).transpose(1, 2)) for y in (q, k))  # (B, K, N, d)
    q, k = (y.unsqueeze(2 if config.grouped else 1) for y in (q * config.head_dim ** -0.5, k))
    return q, k, self._by_head(v.reshape(*v.shape[:2], config.v_heads, -1))

  def _by_head(self, y: Tensor) -> Tensor:
    """y (B, N, v_heads, ..) -> (B, *heads, N, ..)."""
    K, y = self.config.k_heads, y.transpose(1, 2)
    return y.reshape(y.shape[0], *((K, -1) if self.config.grouped else (-1, K)), *y.shape[2:])

  def _unit(self, y: Tensor) -> Tensor:
    """Vectors of length 1."""
    return y * (y.square().sum(-1, keepdim=True) + self.eps).rsqrt()
