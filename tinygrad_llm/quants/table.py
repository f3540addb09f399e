"""
Quantised weights: the table of GGML types, and packing of file rows for memory.

A weight keeps the file's bits, seen as uint32 words. Padding only makes rows, or fields, whole words. Types whose row
in the table names the fields of a block are laid out by weights/layout.py; the others keep the file's order.

A decode expression is arithmetic on those words: shifts, masks and products that are constant along an axis. It has no
table, select or gather, so that it fuses into the kernel that uses the weight. There are two exceptions. Types with a
grid look numbers up. TQ1_0 has selects until it is compiled, because the parts of its blocks differ in shape. An
expression depends only on the words' shape, so weights/expressions.py caches its graph.

Layouts: ggml-common.h and ggml-quants.c of llama.cpp; OCP Microscaling Formats (MX) 1.0 for e2m1 and e8m0.
"""
from __future__ import annotations
from dataclasses import dataclass
from typing import TypeAlias
import numpy as np
from tinygrad.helpers import ceildiv
from tinygrad_llm.errors import InputError
from tinygrad_llm.files.gguf import GGML_TYPES, TensorInfo
from tinygrad_llm.quants import float4, iq_quants, k_quants, legacy, scalars, ternary
from tinygrad_llm.quants.row import Row

Buffer: TypeAlias = bytes | bytearray | memoryview | np.ndarray

@dataclass(frozen=True, kw_only=True)
class QuantType(Row):
  """One GGML type. id: its number in a GGUF file; block: weights per block; nbytes: bytes of a block in the file."""
  id: int
  block: int
  nbytes: int

  @property
  def unit(self) -> int:
    """Bytes of a unit of a block, for uint32 storage: 4, 2 or 1."""
    return 1 if self.held % 2 else 2 if self.held % 4 else 4

  def row_nbytes(self, n: int) -> int:
    """Bytes of a row of n weights in the file. ValueError if n is not a multiple of the block."""
    if n <= 0 or n % self.block: raise ValueError(f"{n} weights are not whole blocks of {self.block} ({self.name})")
    return n // self.block * self.nbytes

  def row_items(self, n: int) -> int:
    """Items (of `dtype`) of a row of n weights in memory."""
    return ceildiv(self.row_nbytes(n) // self.nbytes * self.held, self.dtype.itemsize)

  def verbatim(self, n: int) -> bool:
    """Whether rows of n weights have the same bytes in memory as in the file, so that pack() is not needed."""
    return self.row_items(n) * self.dtype.itemsize == self.row_nbytes(n)

def _quant_type(row: Row) -> QuantType:
  id = next(id for id, known in GGML_TYPES.items() if known[0] == row.name)
  return QuantType(**vars(row), id=id, block=GGML_TYPES[id][1], nbytes=GGML_TYPES[id][2])

FAMILIES = (scalars, legacy, k_quants, iq_quants, float4, ternary)
QUANT_TYPES: dict[int, QuantType] = {qt.id: qt for family in FAMILIES for qt in map(_quant_type, family.ROWS)}

def quant_type(info: TensorInfo) -> QuantType:
  """The table's row for a tensor's type. InputError if the type is not supported."""
  if (qt := QUANT_TYPES.get(info.type)) is not None: return qt
  raise InputError(f"{info.path}: tensor {ascii(info.name)}: type {GGML_TYPES[info.type][0]} is not supported; "
                   f"convert the model to one of {', '.join(qt.name for qt in QUANT_TYPES.values())}")

# *** bytes in, weights out

def pack(qt: QuantType, src: Buffer, n: int, out: np.ndarray) -> None:
  """
  Copies rows of n weights from a GGUF file's bytes into `out`: C-contiguous (..., qt.row_items(n)) of the storage
  dtype.

  Padding is zeroed, and 8-byte numbers are rounded to float32. ValueError if the sizes do not fit.
  """
  raw, nbytes, items = np.frombuffer(src, dtype=np.uint8), qt.row_nbytes(n), qt.row_items(n)
  fits = out.shape[-1] == items and out.itemsize == qt.dtype.itemsize and out.flags.c_contiguous
  if not fits or raw.size * items != nbytes * out.size:
    raise ValueError(f"{raw.size} bytes of {qt.name} rows of {n} do not fit {out.dtype} {out.shape}")
  if qt.held < qt.nbytes:
    with np.errstate(over="ignore"): out[...] = raw.view(scalars.NUMBERS[qt.name]).reshape(out.shape)
    return
  # either each block is padded, or each row
  used, size = (qt.nbytes, qt.held) if qt.held > qt.nbytes else (nbytes, items * out.itemsize)
  to, end = out.view(np.uint8).reshape(-1, size), qt.front + used
  to[:, :qt.front], to[:, qt.front:end], to[:, end:] = 0, raw.reshape(-1, used), 0

def reference(qt: QuantType, src: Buffer, n: int) -> np.ndarray:
  """
  Reference decoder for tests, in numpy: file bytes of rows of n weights -> float32 (rows, n).

  gguf-py decodes the types, except Q1_0 and the types in scalars.NUMBERS, which it does not convert.
  """
  if qt.name in scalars.NUMBERS:
    values = np.frombuffer(src, scalars.NUMBERS[qt.name])
    with np.errstate(over="ignore"): return values.astype(np.float32).reshape(-1, n)
  if qt.name == "Q1_0":
    raw = np.frombuffer(src, np.uint8).reshape(-1, qt.nbytes)
    signs = np.unpackbits(raw[:, 2:], axis=1, bitorder="little").astype(np.float32) * 2 - 1
    return (raw[:, :2].copy().view(np.float16).astype(np.float32) * signs).reshape(-1, n)
  from gguf import GGMLQuantizationType, quants
  rows = np.frombuffer(src, dtype=np.uint8).reshape(-1, qt.row_nbytes(n))
  return quants.dequantize(rows, GGMLQuantizationType(qt.id)).reshape(-1, n)
