"""The projections of Gated DeltaNet (https://arxiv.org/abs/2412.06464)."""
from __future__ import annotations
from tinygrad import Tensor
from tinygrad_llm.nn.layers import DeltaConfig
from tinygrad_llm.weights.loader import Loader

class DeltaInputs:
  """
  Rows for the convolution, decays, shares beta, and gates of the output. `filters`: the convolution's weight.

  Qwen3-Next has matrices by key head: ssm_in (in older files) holds its query, its key, the values of its value heads
  and their gates, ssm_ba their beta and alpha.
  """
  def __init__(self, dim: int, config: DeltaConfig, load: Loader, layer: int):
    name, values, n = f"blk.{layer}.", config.v_heads * config.head_dim, config.v_heads
    self.config, self.joined, self.pairs = config, load.has(f"{name}ssm_in.weight"), load.has(f"{name}ssm_ba.weight")
    rows = {"ssm_in": config.channels + values} if self.joined else {"attn_qkv": config.channels, "attn_gate": values}
    heads = {"ssm_ba": 2 * n} if self.pairs else {"ssm_alpha": n, "ssm_beta": n}
    self.matrices = load.linear([(name + x, n) for x, n in (rows | heads).items()], dim)
    self.filters = load.matrix(f"{name}ssm_conv1d.weight", config.channels, config.taps)
    self.dt, self.a = load.vector(f"{name}ssm_dt.bias", n), load.vector(f"{name}ssm_a", n)

  def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x (B, T, dim) -> rows (B, T, channels), logarithms of decays and beta (B, T, heads), gates (B, T, heads * d)."""
    d, ratio, ys = self.config.head_dim, self.config.v_heads // self.config.k_heads, self.matrices(x)
    if self.joined:
      q, k, v, z = self._by_key_head(ys[0], [d, d, ratio * d, ratio * d])
      rows = q.cat(k, v, dim=-1)
    else: rows, z = ys[:2]
    beta, alpha = self._by_key_head(ys[-1], [ratio, ratio]) if self.pairs else (ys[-1], ys[-2])
    return rows, self.a.float() * (alpha + self.dt.float()).softplus(), beta.sigmoid(), z.silu()

  def _by_key_head(self, y: Tensor, sizes: list[int]) -> list[Tensor]:
    """The parts of each key head's rows, y (B, T, k_heads * sum(sizes)) -> (B, T, k_heads * size) each."""
    parts = y.reshape(*y.shape[:2], self.config.k_heads, -1).split(sizes, dim=-1)
    return [part.reshape(*y.shape[:2], -1) for part in parts]
