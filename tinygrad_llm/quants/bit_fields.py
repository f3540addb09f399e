"""
Bit fields of words: what the decode expressions of all families are made of.

They are arithmetic: shifts, masks and products that are constant along an axis. Units are words, halves or bytes, one a
uint32; (...) are any axes before them.
"""
from __future__ import annotations
from tinygrad import Tensor, dtypes

def steps(count: int, step: int, trailing: int = 0) -> Tensor:
  """0, step, 2*step, .. and `trailing` axes of size 1, uint32. It is no buffer: it becomes the index of a loop."""
  return (Tensor.arange(count) * step).cast(dtypes.uint32).reshape(count, *[1] * trailing)

def fields(w: Tensor, bits: int, *axes: tuple[int, int]) -> Tensor:
  """(...) -> (..., count, ..): fields of `bits` bits of each unit; each pair (count, distance in bits) is an axis."""
  shift = sum((steps(*axis, len(axes) - i - 1) for i, axis in enumerate(axes)), start=steps(1, 0))
  return (w.reshape(*w.shape, *[1] * len(axes)) >> shift) & ((1 << bits) - 1)

def split(x: Tensor, *shape: int) -> Tensor:
  """(..., prod(shape)) -> (..., *shape)"""
  return x.reshape(*x.shape[:-1], *shape)

def reorder(x: Tensor, *order: int) -> Tensor:
  """The last len(order) axes in that order, made one."""
  lead = x.ndim - len(order)
  return x.permute(*range(lead), *[lead + i for i in order]).flatten(lead)

def to_float(x: Tensor) -> Tensor: return x.cast(dtypes.float32)
def to_int(x: Tensor) -> Tensor: return x.cast(dtypes.int32)
def signed_byte(byte: Tensor) -> Tensor: return to_float(byte ^ 128) - 128
def half(w: Tensor) -> Tensor:  # the low 16 bits
  return to_float((w & 0xFFFF).cast(dtypes.uint16).bitcast(dtypes.float16))
def halves(w: Tensor) -> Tensor: return half(fields(w, 16, (2, 16)))  # (...) -> (..., 2)
def octets(w: Tensor) -> Tensor: return fields(w, 8, (4, 8)).flatten(-2)  # (..., words) -> (..., bytes)

def nibbles(units: Tensor, unit_bytes: int) -> Tensor:
  """(..., units) -> (..., weights): all low nibbles, then all high ones."""
  return reorder(fields(units, 4, (2, 4), (unit_bytes, 8)), 1, 0, 2)

def bit_plane(units: Tensor, unit_bits: int) -> Tensor:
  """(..., units) -> (..., weights): bit j is weight j's."""
  return fields(units, 1, (unit_bits, 1)).flatten(-2)

# *** of blocks of 256 weights in groups with scales
# Their weights are fields of chunks (c) of 32 bytes: (c, field f, word i, byte b) is the order of the weights.

def chunked(w: Tensor, bits: int, chunks: int, count: int) -> Tensor:
  """(..., chunks*8) -> (..., 256): the low `bits` bits of all bytes of a chunk, then the next; `count` a byte."""
  return reorder(fields(split(w, chunks, 8), bits, (count, bits), (4, 8)), 0, 2, 1, 3)

def grouped(groups: int, scale: Tensor, q: Tensor) -> Tensor:
  """scale (..., groups) times q (..., 256)"""
  return scale.unsqueeze(-1) * split(q, groups, 256 // groups)
