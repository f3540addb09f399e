"""
Arithmetic on the bytes of words (SWAR): one operation adds, shifts or joins four numbers of at most 8 bits.

The recognition of dot products of bytes uses it, on CPUs (isa/dot_int8_cpu.py) and on GPUs (isa/dot_int8_gpu.py).
Each caller has its own kind of constants, one value or a vector of equal lanes: `number` makes one, `value` reads one.
"""
from __future__ import annotations
from collections.abc import Callable
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.ir.indices import stripped

BYTES = 4            # bytes of a word
ONES = 0x01010101    # times a number of at most 8 bits: the number in each byte
SPREAD = 0x204081    # 1 + 2**7 + 2**14 + 2**21: times four bits, copies bit i to bit 8 * i, among others

Packed = tuple[UOp, int]  # a word, and the most bits that one of its bytes may have

def with_offset(u: UOp) -> tuple[UOp|None, int]:
  """The integer that a float was converted from, and the whole number added to it; (None, 0) if there is none."""
  offset = 0
  if u.op is Ops.ADD:
    u, more = u.src
    if more.op is Ops.CAST: more = more.src[0]
    if more.op is not Ops.CONST or int(more.val) != more.val: return None, 0
    offset = int(more.val)
  return (u.src[0], offset) if u.op is Ops.CAST and dtypes.is_int(u.src[0].dtype) else (None, 0)

def signed_byte(u: UOp, value: Callable[[UOp], int|None]) -> tuple[UOp, UOp|None]|None:
  """
  The word that an int8 is a byte of, and the shift that brings the byte to the low end.

  The shift is None if there is none. The result is None if the int8 is not taken from a word.
  """
  u = stripped(u)
  if u.op is not Ops.BITCAST or u.dtype is not dtypes.int8 or u.src[0].op is not Ops.CAST: return None
  u = u.src[0].src[0]
  if u.op is Ops.AND and (mask := value(u.src[1])) is not None:
    if mask != 255: return None
    u = u.src[0]
  return (u.src[0], u.src[1]) if u.op is Ops.SHR else (u, None)

def joined(op: Ops, a: Packed, b: Packed) -> Packed|None:
  """Combines the bytes of two words by `op` (a sum or a bitwise one); None if a result may not fit its byte."""
  bits = min(a[1], b[1]) if op is Ops.AND else max(a[1], b[1]) + (op is Ops.ADD)
  return (a[0].alu(op, b[0]), bits) if bits <= 8 else None

def shifted(a: Packed, by: int, number: Callable[[int], UOp]) -> Packed|None:
  """Multiplies each byte by 2**by; None if one may not fit its byte."""
  return (a[0].alu(Ops.SHL, number(by)), a[1] + by) if a[1] + by <= 8 else None

def spread(word: UOp, number: Callable[[int], UOp]) -> Packed:
  """The four lowest bits of a word, one in each byte."""
  return word.alu(Ops.AND, number(15)).alu(Ops.MUL, number(SPREAD)).alu(Ops.AND, number(ONES)), 1
