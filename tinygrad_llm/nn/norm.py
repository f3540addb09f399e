"""Root mean square layer normalisation (https://arxiv.org/abs/1910.07467)."""
from __future__ import annotations
from tinygrad import Tensor
from tinygrad_llm.weights.weight import Weight

class RMSNorm:
  def __init__(self, weight: Weight, eps: float): self.weight, self.eps = weight, eps

  @property
  def size(self) -> int: return self.weight.shape[-1]

  def __call__(self, x: Tensor) -> Tensor:
    """x (.., D) -> (.., D), over the last axis."""
    return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight.float()
