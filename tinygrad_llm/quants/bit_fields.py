"""
Bit fields of words: the building blocks of all families' decode expressions.

They are pure arithmetic: shifts, masks and products that are constant along an axis. Units are words, 16-bit halves or
bytes, each in a uint32 of its own. In shapes, (...) stands for any leading axes.
"""
from __future__ import annotations
from tinygrad import Tensor, dtypes

def steps(count: int, step: int, trailing: int = 0) -> Tensor:
  """0, step, 2*step, .. as uint32, with `trailing` axes of size 1. It needs no buffer: it becomes a loop's index."""
  return (Tensor.arange(count) * step).cast(dtypes.uint32).reshape(count, *[1] * trailing)

def fields(w: Tensor, bits: int, *axes: tuple[int, int]) -> Tensor:
  """(...) -> (..., count, ..): fields of `bits` bits in each unit; each pair (count, distance in bits) adds an axis."""
  shift = sum((steps(*axis, len(axes) - i - 1) for i, axis in enumerate(axes)), start=steps(1, 0))
  return (w.reshape(*w.shape, *[1] * len(axes)) >> shift) & ((1 << bits) - 1)

def split(x: Tensor, *shape: int) -> Tensor:
  """(..., prod(shape)) -> (..., *shape)"""
  return x.reshape(*x.shape[:-1], *shape)

def reorder(x: Tensor, *order: int) -> Tensor:
  """Permutes the last len(order) axes into that order and flattens them into one."""
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
  """(..., units) -> (..., weights): all low nibbles, then all high nibbles."""
  return reorder(fields(units, 4, (2, 4), (unit_bytes, 8)), 1, 0, 2)

def bit_plane(units: Tensor, unit_bits: int) -> Tensor:
  """(..., units) -> (..., weights): bit j belongs to weight j."""
  return fields(units, 1, (unit_bits, 1)).flatten(-2)

# *** blocks of 256 weights in groups with scales
# Weights are fields of 32-byte chunks. Their order is (chunk c, field f, word i, byte b).

def chunked(w: Tensor, bits: int, chunks: int, count: int) -> Tensor:
  """(..., chunks*8) -> (..., 256): per chunk, the lowest `bits` bits of all bytes, then the next; `count` per byte."""
  return reorder(fields(split(w, chunks, 8), bits, (count, bits), (4, 8)), 0, 2, 1, 3)

def grouped(groups: int, scale: Tensor, q: Tensor) -> Tensor:
  """Multiplies each group's weights by its scale: scale (..., groups), q (..., 256) -> (..., groups, 256 / groups)."""
  return scale.unsqueeze(-1) * split(q, groups, 256 // groups)
