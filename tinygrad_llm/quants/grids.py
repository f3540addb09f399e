"""
The grids of the IQ1, IQ2 and IQ3 types: tables that turn a code into 4 or 8 neighbouring weights, up to scale and sign.

They are subsets of lattices that were chosen by hand, so no arithmetic replaces them. They come from gguf-py.
"""
from __future__ import annotations
from functools import cache
import numpy as np
from tinygrad import Tensor, dtypes
from tinygrad.helpers import Context

@cache
def _table(name: str, device: str) -> Tensor:
  """(codes * words of an entry,) uint32 on a device, 1 to 16 KiB: a byte a number."""
  from gguf import quants
  quant = getattr(quants, name)
  quant.init_grid()
  grid = quant.grid.reshape(quant.grid_shape)
  words = (grid - min(grid.min(), 0)).astype(np.uint8).view(np.uint32).ravel()
  with Context(CAPTURING=0): return Tensor(words, device=device).realize()  # no part of a graph that is being recorded

@cache
def _width(name: str) -> int:
  """Weights a code."""
  from gguf import quants
  return int(getattr(quants, name).grid_shape[1])

def look_up(name: str, code: Tensor) -> Tensor:
  """
  code (...), uint32 below the number of codes -> (..., 4 or 8) int32, the numbers that it stands for in type `name`.
  None is negative: IQ1's -1, 0, 1 are 0, 1, 2.

  Each number looks its own entry up: were an entry read once and then spread out, it would be stored on the way.
  Neighbours share the load all the same, once the sum over all codes that tinygrad takes an index for is gone.
  """
  assert isinstance(code.device, str), "tensors over several devices are not supported"
  words = _width(name) // 4
  entry = (code * words).unsqueeze(-1) + Tensor.arange(words).cast(dtypes.uint32)
  word = _table(name, code.device)[entry.unsqueeze(-1).expand(*entry.shape, 4)]
  return ((word >> (Tensor.arange(4) * 8).cast(dtypes.uint32)) & 255).cast(dtypes.int32).flatten(-2)
