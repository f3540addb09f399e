"""
Lazy weights: how a type's packed rows lie in memory, and the tensor that dequantises them.

quants/table.py says which expressions a type's decode may use.
"""
from __future__ import annotations
from tinygrad import Tensor, dtypes
from tinygrad.renderer import Renderer
from tinygrad_llm.quants.bit_fields import split
from tinygrad_llm.quants.table import QuantType
from tinygrad_llm.weights.expressions import made_once
from tinygrad_llm.weights.layout import Blocks, Layout, Units, choose, unpack

def layout(qt: QuantType, ren: Renderer, rows: int, n: int) -> Layout|None:
  """The layout of `rows` rows of n weights for a renderer's device; None: the rows stay as pack() leaves them."""
  if not qt.fields: return None
  return choose(ren, Blocks(qt.unit, qt.fields, qt.stream), rows, n // qt.block, qt.row_nbytes(n))

def dequantize(qt: QuantType, packed: Tensor, n: int, layout: Layout|None = None) -> Tensor:
  """
  packed (..., items of a row) -> float32 (..., n), lazy: nothing is computed or stored here.

  Use `select` to take some rows or experts.
  """
  return _decoded(packed, qt, n, layout)

@made_once
def _decoded(packed: Tensor, qt: QuantType, n: int, layout: Layout|None) -> Tensor:
  blocks, size, units = n // qt.block, qt.dtype.itemsize, packed
  if layout is not None: return qt.decode(Units(layout, packed, blocks)).reshape(*packed.shape[:-1], n)
  if qt.dtype == dtypes.uint32 and qt.held % 4:
    size = qt.unit
    units = unpack(packed, size)[..., :blocks * qt.held // size]
  return qt.decode(split(units, blocks, qt.held // size)).reshape(*packed.shape[:-1], n)

def select(qt: QuantType, packed: Tensor, n: int, index: Tensor | tuple[Tensor | slice, ...],
           layout: Layout|None = None) -> Tensor:
  """
  dequantize(qt, packed, n, layout)[index], lazy.

  index: chooses rows or experts, as for a tensor; it leaves the last axis alone. Indexing the weights reads only the
  chosen rows and stays fused in the kernel that uses them (patches/graph/gathers.py). Indexing `packed` would copy the
  rows first.
  """
  return dequantize(qt, packed, n, layout)[index]
