"""Normalisation: RMSNorm (https://arxiv.org/abs/1910.07467) and LayerNorm (https://arxiv.org/abs/1607.06450)."""
from __future__ import annotations
from tinygrad import Tensor
from tinygrad_llm.weights.loader import Loader
from tinygrad_llm.weights.weight import Weight

def rms(x: Tensor, eps: float) -> Tensor:
  """x (.., D) over its root mean square, without weights."""
  return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()

class RMSNorm:
  """Divides by the root mean square."""
  def __init__(self, weight: Weight, eps: float): self.weight, self.eps = weight, eps

  @property
  def size(self) -> int: return self.weight.shape[-1]

  def __call__(self, x: Tensor) -> Tensor:
    """x (.., D) -> (.., D), over the last axis."""
    return rms(x, self.eps) * self.weight.float()

class LayerNorm(RMSNorm):
  """Subtracts the mean, and divides by the standard deviation."""
  def __init__(self, weight: Weight, bias: Weight | None, eps: float):
    super().__init__(weight, eps)
    self.bias = bias

  def __call__(self, x: Tensor) -> Tensor:
    y = super().__call__(x - x.mean(-1, keepdim=True))
    return y if self.bias is None else y + self.bias.float()

def norm(load: Loader, name: str, n: int, eps: float, layer_norm: bool = False, heads: int = 0) -> RMSNorm:
  """
  The norm over n elements whose weight is the tensor `name`; a LayerNorm may have a bias.

  heads: each of so many heads has weights of its own; 0: one vector of weights.
  """
  shape = (heads, n) if heads else (n,)
  weight = load.tensor(name if load.has(name) else f"{name}.weight", *shape)  # Falcon-H1 has ffn_norm alone
  return LayerNorm(weight, load.optional(f"{name}.bias", *shape), eps) if layer_norm else RMSNorm(weight, eps)
