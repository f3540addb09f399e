"""A tensor as the file packs it, dequantised lazily."""
from __future__ import annotations
from tinygrad import Tensor
from tinygrad_llm.quants.table import QuantType
from tinygrad_llm.weights.decode import dequantize, select
from tinygrad_llm.weights.layout import Layout

class Weight:
  """
  A tensor of shape (.., n), held as packed rows of its GGML type.

  stored: the whole of a buffer. layout: how the rows lie in it; None: as in the file. A matrix may have a few padding
  rows of zeros in memory. A weight does not know its name, so that weights of one kind make the same graphs.
  """
  def __init__(self, qtype: QuantType, stored: Tensor, shape: tuple[int, ...], layout: Layout|None = None):
    self.qtype, self.stored, self.shape, self.layout = qtype, stored, shape, layout

  @property
  def packed(self) -> Tensor:
    """The rows (.., items) as a lazy view: made outside a @function, the view would be copied as its input."""
    rows = self.stored if self.layout is None else self.layout.rows(self.stored)
    return rows.reshape(*self.shape[:-2], -1, rows.shape[-1]) if len(self.shape) > 1 else rows.flatten()

  @property
  def nbytes(self) -> int: return self.stored.nbytes()

  def float(self) -> Tensor:
    """The dequantised tensor, lazy float32."""
    return self._held().shrink_to(self.shape)

  def matmul(self, x: Tensor) -> Tensor:
    """x (.., n) @ self.T, for a matrix."""
    return (x @ self._held().transpose(-1, -2))[..., :self.shape[-2]]

  def _held(self) -> Tensor: return dequantize(self.qtype, self.packed, self.shape[-1], self.layout)

  def rows(self, ids: Tensor) -> Tensor:
    """Rows `ids` (..) of a matrix as float32 (.., n). Only these rows are read."""
    return select(self.qtype, self.packed, self.shape[-1], ids, self.layout)

  def experts(self, ids: Tensor) -> Tensor:
    """Experts `ids` (N,) of the m matrices (m, experts, rows, n) as float32 (m, N, rows, n). Only these are read."""
    # ids that are clamped into range index the outermost axis: the kernel needs no division and no bounds check
    flat, places = self.packed.reshape(-1, *self.packed.shape[2:]), self._places(ids.clamp(0, self.shape[1] - 1))
    chosen = select(self.qtype, flat, self.shape[-1], places.flatten(), self.layout)
    return chosen.reshape(*places.shape, *self.shape[2:])

  def of_blocks(self, ids: Tensor) -> Tensor:
    """experts() for a symbolic number of ids."""
    chosen = select(self.qtype, self._matrices(), self.shape[-1], (slice(None), ids.clamp(0, self.shape[1] - 1)),
                    self.layout)
    return chosen.shrink_to(None, None, *self.shape[2:])

  def _matrices(self) -> Tensor:
    """The packed rows as (m, experts, rows, items)."""
    return self.packed

  def _places(self, ids: Tensor) -> Tensor:
    """ids (N,) -> (m, N): the position of expert ids[j] of matrix i among all m * experts in memory."""
    return Tensor.arange(self.shape[0]).unsqueeze(-1) * self.shape[1] + ids

class FusedExperts(Weight):
  """(m, experts, rows, n) that lies as (experts, m, rows, n) in memory. It has experts() and of_blocks() only."""
  def _places(self, ids: Tensor) -> Tensor: return ids * self.shape[0] + Tensor.arange(self.shape[0]).unsqueeze(-1)

  def _matrices(self) -> Tensor:
    return self.packed.reshape(self.shape[1], self.shape[0], *self.packed.shape[2:]).transpose(0, 1)
