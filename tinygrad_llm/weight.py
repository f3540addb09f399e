"""Weights as the file packs them."""
from __future__ import annotations
from collections.abc import Sequence
from tinygrad import Tensor
from tinygrad_llm import activations
from tinygrad_llm.layout import Layout
from tinygrad_llm.quant import QuantType, dequantize, select

class Weight:
  """
  A tensor of shape (.., n), held as packed rows of its GGML type.

  stored: the whole of a buffer; layout: how the rows lie in it, None: as in the file; names: the tensors of the file
  whose rows it holds, in order. A matrix may have a few rows more in memory, of zeros.
  """
  def __init__(self, qtype: QuantType, stored: Tensor, shape: tuple[int, ...], names: tuple[str, ...],
               layout: Layout|None = None):
    self.qtype, self.stored, self.shape, self.names, self.layout = qtype, stored, shape, names, layout

  @property
  def packed(self) -> Tensor:
    """The rows (.., items), lazy: a view that a function takes as its input would be copied."""
    rows = self.stored if self.layout is None else self.layout.rows(self.stored)
    return rows.reshape(*self.shape[:-2], -1, rows.shape[-1]) if len(self.shape) > 1 else rows.flatten()

  @property
  def nbytes(self) -> int: return self.stored.nbytes()

  def float(self) -> Tensor:
    """The lazy float32 tensor."""
    return self._held().shrink_to(self.shape)

  def matmul(self, x: Tensor) -> Tensor:
    """x (.., n) @ self.T, for a matrix."""
    return (x @ self._held().transpose(-1, -2))[..., :self.shape[-2]]

  def _held(self) -> Tensor: return dequantize(self.qtype, self.packed, self.shape[-1], self.layout)

  def rows(self, ids: Tensor) -> Tensor:
    """The rows ids (..) of a matrix, as float32 (.., n). Only they are read."""
    return select(self.qtype, self.packed, self.shape[-1], ids, self.layout)

  def experts(self, ids: Tensor) -> Tensor:
    """Experts ids (N,) of the m matrices (m, experts, rows, n), as float32 (m, N, rows, n). Only they are read."""
    # of numbers known to be in range, chosen along the outermost axis: no division and no condition in the kernel
    flat, places = self.packed.reshape(-1, *self.packed.shape[2:]), self._places(ids.clamp(0, self.shape[1] - 1))
    chosen = select(self.qtype, flat, self.shape[-1], places.flatten(), self.layout)
    return chosen.reshape(*places.shape, *self.shape[2:])

  def _places(self, ids: Tensor) -> Tensor:
    """Where the experts of each matrix are in memory, (m, N)."""
    return Tensor.arange(self.shape[0]).unsqueeze(-1) * self.shape[1] + ids

class FusedExperts(Weight):
  """(m, experts, rows, n) that are (experts, m, rows, n) in memory; for experts() alone."""
  def _places(self, ids: Tensor) -> Tensor: return ids * self.shape[0] + Tensor.arange(self.shape[0]).unsqueeze(-1)

def _multiplies_bytes(weight: Weight) -> bool: return weight.layout is not None and activations.multiplies_bytes()

class Linear:
  """y = x @ W.T for matrices that share an input; those of one type lie as rows of one Weight and are one matmul."""
  def __init__(self, weights: Sequence[Weight], splits: Sequence[Sequence[int]], biases: Sequence[Weight | None]):
    self.weights, self.splits, self.biases = weights, splits, biases
    self.q8 = [_multiplies_bytes(w) for w in weights]

  def __call__(self, x: Tensor) -> list[Tensor]:
    """x (B, T, D) -> (B, T, rows) for each matrix."""
    ys: list[Tensor] = []
    x8 = activations.quantize(x) if any(self.q8) else x
    for weight, rows, q8 in zip(self.weights, self.splits, self.q8):
      y = weight.matmul(x8 if q8 else x)
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
    self.weights, self.biases, self.q8 = weights, biases, [_multiplies_bytes(w) for w in weights]

  def __call__(self, x: Tensor, ids: Tensor) -> list[Tensor]:
    """x (B, T, 1 or K, n), ids (B, T, K) -> (B, T, K, rows) for each matrix. Only the chosen experts are read."""
    ys: list[Tensor] = []
    # tokens and experts are one axis: a constant K is unrolled, and the estimate of the bytes that a kernel for any
    # number of tokens moves then nests deeper than Python recurses (MXFP4, 4 of 32 experts: 309 loads, 957 levels)
    chosen = ids.flatten()  # (B * T * K,)
    def flat(x: Tensor) -> Tensor: return x.expand(*ids.shape, x.shape[-1]).reshape(chosen.shape[0], 1, -1)
    x, x8 = flat(x), flat(activations.quantize(x) if any(self.q8) else x)
    for weight, q8 in zip(self.weights, self.q8):
      y = ((x8 if q8 else x) * weight.experts(chosen)).sum(-1).reshape(weight.shape[0], *ids.shape, -1)
      ys += [y[i] for i in range(weight.shape[0])]  # (B, T, K, rows) each
    return [y if bias is None else y + bias.rows(ids) for y, bias in zip(ys, self.biases)]
