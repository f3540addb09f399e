"""The projections of Kimi Delta Attention (https://arxiv.org/abs/2510.26692)."""
from __future__ import annotations
from tinygrad import Tensor
from tinygrad_llm.nn.layers import DeltaConfig
from tinygrad_llm.weights.loader import Loader

class KDAInputs:
  """
  The same as DeltaInputs, with decays for each channel of a key.

  The matrices of decays and of gates are products of two: ssm_f_a and ssm_f_b, ssm_g_a and ssm_g_b.
  """
  def __init__(self, dim: int, config: DeltaConfig, load: Loader, layer: int):
    name, H, d = f"blk.{layer}.", config.v_heads, config.head_dim
    self.heads, fused = H, load.has(f"{name}attn_qkv.weight")
    rows = {"attn_qkv": 3 * H * d} if fused else {f"attn_{x}": H * d for x in "qkv"}
    rows |= {"ssm_f_a": d, "ssm_g_a": d, "ssm_beta": H}
    self.matrices = load.linear([(name + x, n) for x, n in rows.items()], dim)
    self.f_b, self.g_b = (load.linear([(f"{name}ssm_{x}_b", H * d)], d) for x in "fg")
    self.filters = load.stacked([f"{name}ssm_conv1d_{x}.weight" for x in "qkv"], H * d, config.taps)
    self.dt, self.a = load.vector(f"{name}ssm_dt.bias", H * d), load.reshaped(f"{name}ssm_a", H, 1)

  def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x (B, T, dim) -> as DeltaInputs, but logarithms of decays (B, T, heads, d)."""
    *rows, f, g, beta = self.matrices(x)
    f = (self.f_b(f)[0] + self.dt.float()).softplus().reshape(*x.shape[:2], self.heads, -1)
    return Tensor.cat(*rows, dim=-1), self.a.float() * f, beta.sigmoid(), self.g_b(g)[0].sigmoid()
