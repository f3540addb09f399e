"""The row of one GGML type in the table of types. The family's file defines it."""
from __future__ import annotations
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from tinygrad import Tensor, dtypes
from tinygrad.dtype import DType

@dataclass(frozen=True)
class Row:
  """
  One GGML type.

  name: as in GGML_TYPES.

  held: bytes of a block in memory. At least the bytes in the file, except for 8-byte numbers, which become float32.

  decode: (..., blocks, units) -> float32 (..., blocks, [a block's weights in order]). For uint32 storage, units are
  words if `held` is a multiple of 4, else 16-bit halves or bytes, each in a uint32 of its own.

  fields: the end (last unit + 1) of each part of a block that may be laid out separately. (): the block stays as in the
  file.

  stream: the order in which one thread wants the fields, as runs (parts, field, ..). Each field of a run is cut into
  that many parts; the first parts of all fields lie together, then the second parts. (): the order of the file.

  dtype: the storage type in memory.

  front: how many bytes of the padding come before the block; the rest come after it.

  grid: whether decode looks numbers up in a table.
  """
  name: str
  held: int
  decode: Callable[[Any], Tensor]
  fields: tuple[int, ...] = ()
  stream: tuple[tuple[int, ...], ...] = ()
  dtype: DType = dtypes.uint32
  front: int = 0
  grid: bool = False
