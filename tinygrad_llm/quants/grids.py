"""
The grids of the IQ1, IQ2 and IQ3 types: tables that turn a code into 4 or 8 neighbouring weights, up to scale and sign.

A grid is a hand-chosen subset of a lattice, so no arithmetic can replace the table. The tables come from gguf-py.
"""
from __future__ import annotations
from functools import cache
import numpy as np
from tinygrad import Tensor, dtypes
from tinygrad.helpers import Context

@cache
def _table(name: str, device: str) -> Tensor:
  """A grid on a device: (codes * words per entry,) uint32, one byte per number, 1 to 16 KiB."""
  from gguf import quants
  quant = getattr(quants, name)
  quant.init_grid()
  grid = quant.grid.reshape(quant.grid_shape)
  words = (grid - min(grid.min(), 0)).astype(np.uint8).view(np.uint32).ravel()
  with Context(CAPTURING=0): return Tensor(words, device=device).realize()  # not part of a graph being captured

@cache
def _width(name: str) -> int:
  """Weights per code."""
  from gguf import quants
  return int(getattr(quants, name).grid_shape[1])

def look_up(name: str, code: Tensor) -> Tensor:
  """
  Looks up codes in the grid of type `name`: code (...), uint32 below the number of codes -> (..., 4 or 8) int32. No
  number is negative: IQ1's -1, 0, 1 are 0, 1, 2.

  Each number indexes its own entry, because an entry that is read once and expanded would be materialised. tinygrad
  lowers an index to a sum over all codes. A pass removes that sum, and neighbours then share one load.
  """
  assert isinstance(code.device, str), "tensors over several devices are not supported"
  words = _width(name) // 4
  entry = (code * words).unsqueeze(-1) + Tensor.arange(words).cast(dtypes.uint32)
  word = _table(name, code.device)[entry.unsqueeze(-1).expand(*entry.shape, 4)]
  return ((word >> (Tensor.arange(4) * 8).cast(dtypes.uint32)) & 255).cast(dtypes.int32).flatten(-2)
