"""Weights as the file packs them."""
from __future__ import annotations
from collections.abc import Sequence
from tinygrad import Tensor
from tinygrad_llm import activations
from tinygrad_llm.quant import QuantType, dequantize, select

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
    return self.chosen(ids)

  def chosen(self, *index: Tensor | slice) -> Tensor:
    """float()[index], where only what is chosen is read; `index` leaves the last axis."""
    return select(self.qtype, self.packed, self.shape[-1], index)

class Linear:
  """y = x @ W.T for matrices that share an input; those of one type lie as rows of one Weight and are one matmul."""
  def __init__(self, weights: Sequence[Weight], splits: Sequence[Sequence[int]], biases: Sequence[Weight | None]):
    self.weights, self.splits, self.biases = weights, splits, biases
    self.q8 = activations.multiplies_bytes() and any(w.qtype.name in activations.TYPES for w in weights)

  def __call__(self, x: Tensor) -> list[Tensor]:
    """x (B, T, D) -> (B, T, rows) for each matrix."""
    ys: list[Tensor] = []
    x8 = activations.quantize(x) if self.q8 and x.shape[1] == 1 else x
    for weight, rows in zip(self.weights, self.splits):
      y = (x8 if weight.qtype.name in activations.TYPES else x) @ weight.float().transpose(-1, -2)
      # contiguous: else a matrix of another type than its siblings' is multiplied inside of what takes all of them, for
      # values the kernel that stacks them with keys: of a 1B shape, Q6_K, on 2 cores 416 -> 58 us.
      if len(rows) == 1 < len(self.weights): y = y.contiguous()
      ys += y.split(list(rows), dim=-1)
    return [y if bias is None else y + bias.float() for y, bias in zip(ys, self.biases)]

class ExpertLinear:
  """
  y = x @ W.T with the matrices that each token's experts choose.

  weights: (m, experts, rows, n) each; the m matrices of an expert share their input. biases: (experts, rows), or None.
  """
  def __init__(self, weights: Sequence[Weight], biases: Sequence[Weight | None]):
    self.weights, self.biases = weights, biases

  def __call__(self, x: Tensor, ids: Tensor) -> list[Tensor]:
    """x (B, T, 1 or K, n), ids (B, T, K) -> (B, T, K, rows) for each matrix. Only the chosen experts are read."""
    ys: list[Tensor] = []
    # tokens and experts are one axis: a constant K is unrolled, and the estimate of the bytes that a kernel for any
    # number of tokens moves then nests deeper than Python recurses (MXFP4, 4 of 32 experts: 309 loads, 957 levels)
    chosen = ids.flatten()  # (B * T * K,)
    x = x.expand(*ids.shape, x.shape[-1]).reshape(chosen.shape[0], 1, -1)
    for weight in self.weights:
      y = (x * weight.chosen(slice(None), chosen)).sum(-1).reshape(weight.shape[0], *ids.shape, -1)
      ys += [y[i] for i in range(weight.shape[0])]  # (B, T, K, rows) each
    return [y if bias is None else y + bias.rows(ids) for y, bias in zip(ys, self.biases)]
