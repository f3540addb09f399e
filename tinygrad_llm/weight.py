"""Weights as the file packs them."""
from __future__ import annotations
from collections.abc import Sequence
from tinygrad import Tensor
from tinygrad_llm.quant import QuantType, dequantize

class Weight:
  """
  A tensor of shape (.., n), held as packed rows (.., items) of its GGML type.

  names: the tensors of the file whose rows it holds, in order.
  """
  def __init__(self, qtype: QuantType, packed: Tensor, shape: tuple[int, ...], names: tuple[str, ...]):
    self.qtype, self.packed, self.shape, self.names = qtype, packed, shape, names

  @property
  def nbytes(self) -> int: return self.packed.nbytes()

  def float(self) -> Tensor:
    """The lazy float32 tensor."""
    return dequantize(self.qtype, self.packed, self.shape[-1])

  def rows(self, ids: Tensor) -> Tensor:
    """The rows ids (..) of a matrix, as float32 (.., n)."""
    return self.float()[ids]

class Linear:
  """y = x @ W.T for matrices that share an input; those of one type lie as rows of one Weight and are one matmul."""
  def __init__(self, weights: Sequence[Weight], splits: Sequence[Sequence[int]], biases: Sequence[Weight | None]):
    self.weights, self.splits, self.biases = weights, splits, biases

  def __call__(self, x: Tensor) -> list[Tensor]:
    """x (B, T, D) -> (B, T, rows) for each matrix."""
    ys: list[Tensor] = []
    for weight, rows in zip(self.weights, self.splits):
      ys += (x @ weight.float().transpose(-1, -2)).split(list(rows), dim=-1)
    return [y if bias is None else y + bias.float() for y, bias in zip(ys, self.biases)]
