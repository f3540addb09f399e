"""
Narrowing to the minimum bit width: quants of a few bits are unpacked in byte lanes, and widened at the end.

Why: A quant of 5 or 6 bits is assembled from fields of two bytes. In lanes of 32 bits each shift, mask and addition
  takes a register of 512 bits, or several. In lanes of 8 bits it takes 128 bits.
How: When a loop over lanes becomes vectors, the pass looks for integers that are assembled from fields of neighbouring
  bytes. If an integer and all its parts are below 256, it is computed in vectors of bytes and converted at the end.
Rewrite:
  int lane: ((w0 >> 2) & 15) | ((w1 & 3) << 4), vectors of 512 bits
  --> the same in vectors of 16 bytes, converted at the end
Numbers: Matvec 8192 x 2048, one core, GB/s: Q6_K 8.1 -> 9.3, Q3_K 4.3 -> 4.6, Q5_K 8.3 -> 8.0 (Zen 4, AVX-512,
  medians).
Upstream: not sent; it needs loops over lanes first.
"""
from __future__ import annotations
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.vector.vectorizer import Vectorizer, vector_rules

SEAMS = {
  "tinygrad.renderer.cstyle:base_rewrite": "ef3d9dfef266",
}

BITS = 8

def bits(v: Vectorizer, u: UOp) -> int|None:
  """How many bits hold a value in all lanes; None if it, or a value it is computed from, needs more than 8 bits."""
  memo: dict[UOp, int|None] = v.notes.setdefault("narrow", {})
  if u not in memo: memo[u] = _bits(v, u)
  return memo[u]

def _bits(v: Vectorizer, u: UOp) -> int|None:
  if not dtypes.is_int(u.dtype): return None
  if (values := v.const(u)) is not None:
    return max(values).bit_length() if 0 <= min(values) <= max(values) < 256 else None
  if (field := v.byte_field(u)) is not None: return field[3]
  if u.op is Ops.CAST: return bits(v, u.src[0])
  if u.op not in (Ops.AND, Ops.OR, Ops.XOR, Ops.ADD, Ops.SHL, Ops.SHR): return None
  if (a := bits(v, u.src[0])) is None or (b := bits(v, u.src[1])) is None: return None
  if u.op in (Ops.SHL, Ops.SHR):
    if (by := v.const(u.src[1])) is None: return None
    found = a + max(by) if u.op is Ops.SHL else max(a - min(by), 0)
  else: found = min(a, b) if u.op is Ops.AND else max(a, b) + (u.op is Ops.ADD and not _apart(v, *u.src))
  return found if found <= BITS else None

def _apart(v: Vectorizer, a: UOp, b: UOp) -> bool:
  """Whether a sum has no carries: one operand is shifted above the other's bits."""
  for low, high in ((a, b), (b, a)):
    if high.op is Ops.SHL and (by := v.const(high.src[1])) is not None and min(by) >= (bits(v, low) or 0): return True
  return False

def octets(v: Vectorizer, u: UOp) -> UOp:
  """The value in all lanes as a vector of bytes."""
  if (values := v.const(u)) is not None: return UOp(Ops.STACK, src=tuple(UOp.cconst(x, dtypes.uint8) for x in values))
  if (field := v.byte_field(u)) is not None: return v.bits_of_octets(*field)
  if u.op is Ops.CAST: return octets(v, u.src[0])
  return UOp(u.op, dtypes.uint8, (octets(v, u.src[0]), octets(v, u.src[1])))

def narrow(v: Vectorizer, u: UOp) -> UOp|None:
  """The value in all lanes, computed in bytes and converted to u's type; None if bytes cannot hold it."""
  made = u.src[0] if u.op is Ops.CAST else u
  if v.n != 16 or u.dtype.itemsize != 4 or made.op not in (Ops.ADD, Ops.OR, Ops.XOR): return None
  return octets(v, made).cast(u.dtype) if v.const(made) is None and bits(v, made) is not None else None

def install() -> None: vector_rules.append(narrow)
