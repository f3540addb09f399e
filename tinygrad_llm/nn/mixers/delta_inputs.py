"""The projections of Gated DeltaNet (https://arxiv.org/abs/2412.06464)."""
from __future__ import annotations
from tinygrad import Tensor
from tinygrad_llm.nn.layers import DeltaConfig
from tinygrad_llm.weights.loader import Loader

class DeltaInputs:
  """Rows for the convolution, decays, shares beta, and gates of the output."""
  def __init__(self, dim: int, config: DeltaConfig, load: Loader, layer: int):
    name, values = f"blk.{layer}.", config.v_heads * config.head_dim
    self.config = config
    self.matrices = load.linear([(f"{name}attn_qkv", config.channels), (f"{name}attn_gate", values),
                                 (f"{name}ssm_alpha", config.v_heads), (f"{name}ssm_beta", config.v_heads)], dim)
    self.dt, self.a = load.vector(f"{name}ssm_dt.bias", config.v_heads), load.vector(f"{name}ssm_a", config.v_heads)

  def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x (B, T, dim) -> rows (B, T, channels), logarithms of decays and beta (B, T, heads), gates (B, T, heads * d)."""
    rows, z, alpha, beta = self.matrices(x)
    return rows, self.a.float() * (alpha + self.dt.float()).softplus(), beta.sigmoid(), z.silu()
