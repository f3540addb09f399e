"""A row of the table of GGML types, as the file of its family gives it."""
from __future__ import annotations
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from tinygrad import Tensor, dtypes
from tinygrad.dtype import DType

@dataclass(frozen=True)
class Row:
  """
  name: as in GGML_TYPES; held: bytes of a block in memory, at least those in the file but for numbers of 8 bytes;
  decode: (..., blocks, units) -> float32 (..., blocks, [a block's weights in order]). The units of a block of uint32
  are words where `held` is a multiple of 4, else 16-bit halves or bytes, one a uint32.
  fields: the last unit + 1 of each part of a block that may lie apart from the others; none: it stays as in the file;
  stream: the fields in the order that one thread wants them in, in runs: (parts, field, ..), where each field of a run
  is cut in so many parts, and the first parts of all lie together, then the second ones; none: as in the file;
  dtype: its storage in memory; front: how many of the padding's bytes come before a block, not after it; grid: whether
  decode looks numbers up.
  """
  name: str
  held: int
  decode: Callable[[Any], Tensor]
  fields: tuple[int, ...] = ()
  stream: tuple[tuple[int, ...], ...] = ()
  dtype: DType = dtypes.uint32
  front: int = 0
  grid: bool = False
