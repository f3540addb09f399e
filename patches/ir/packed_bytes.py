"""
Arithmetic on the bytes of words: four numbers of at most 8 bits are added, shifted and joined by one operation. What
dot products of bytes are recognised by, on CPUs (isa/dot_int8_cpu.py) and on GPUs (isa/dot_int8_gpu.py).

Whoever asks has constants of its own kind, one value or that of all lanes: `number` makes one, `value` reads one.
"""
from __future__ import annotations
from collections.abc import Callable
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.ir.indices import stripped

BYTES = 4            # of a word
ONES = 0x01010101    # times a number of at most 8 bits is that in each byte
SPREAD = 0x204081    # 1 + 2**7 + 2**14 + 2**21: of four bits, bit i goes to 8 * i, among others

Packed = tuple[UOp, int]  # a word, and how many bits the largest of its bytes may have

def with_offset(u: UOp) -> tuple[UOp|None, int]:
  """The integer that a float was converted from, and the whole number that was added to it; (None, 0) if neither."""
  offset = 0
  if u.op is Ops.ADD:
    u, more = u.src
    if more.op is Ops.CAST: more = more.src[0]
    if more.op is not Ops.CONST or int(more.val) != more.val: return None, 0
    offset = int(more.val)
  return (u.src[0], offset) if u.op is Ops.CAST and dtypes.is_int(u.src[0].dtype) else (None, 0)

def signed_byte(u: UOp, value: Callable[[UOp], int|None]) -> tuple[UOp, UOp|None]|None:
  """The word that an int8 is a byte of, and what it is shifted by before the low byte is taken, if it is."""
  u = stripped(u)
  if u.op is not Ops.BITCAST or u.dtype is not dtypes.int8 or u.src[0].op is not Ops.CAST: return None
  u = u.src[0].src[0]
  if u.op is Ops.AND and (mask := value(u.src[1])) is not None:
    if mask != 255: return None
    u = u.src[0]
  return (u.src[0], u.src[1]) if u.op is Ops.SHR else (u, None)

def joined(op: Ops, a: Packed, b: Packed) -> Packed|None:
  """The sums, or bits, of the bytes of two words; None if one may not fit its byte."""
  bits = min(a[1], b[1]) if op is Ops.AND else max(a[1], b[1]) + (op is Ops.ADD)
  return (a[0].alu(op, b[0]), bits) if bits <= 8 else None

def shifted(a: Packed, by: int, number: Callable[[int], UOp]) -> Packed|None:
  """Each byte times 2**by; None if one may not fit."""
  return (a[0].alu(Ops.SHL, number(by)), a[1] + by) if a[1] + by <= 8 else None

def spread(word: UOp, number: Callable[[int], UOp]) -> Packed:
  """The four lowest bits of a word, one a byte."""
  return word.alu(Ops.AND, number(15)).alu(Ops.MUL, number(SPREAD)).alu(Ops.AND, number(ONES)), 1
