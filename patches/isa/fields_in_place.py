"""
Bit fields in place: packed weights become floats at their position in the word, by one operation each.

Why: Unpacking shifts a field down, masks it and joins it with the bits of a large float (int_to_float.py). These are
  three integer operations a weight, which NVIDIA's cards execute at half the rate of floats. On an H100 they were most
  of the time of a product in Q4_K or Q6_K.
How: The float 2**(23 - p) has room for a field p bits above the lowest bit of its mantissa: there the field adds its
  own value to the float. So a field stays in place, or one shift of the word serves several fields. The mask and the
  constant are a single operation on three inputs (lop3). CUDA's compiler finds lop3 only for one constant, so the pass
  spells it. A field with parts in several words, such as six bits in Q6_K, is joined at the position of its first part.
Rewrite:
  as_float(((w >> 8) & 15) | bits(2**23)) - 2**23
  --> as_float(lop3(w, 15 << 8, bits(2**15))) - 2**15, lop3(w, m, k) = (w & m) ^ k
Numbers: Instructions of machine code of a thread, sm_90, 2048 rows: Q4_K 504 -> 416 for 64 weights; Q6_K 792 -> 504 for
  64 in a loop of two steps (with the exchanges of two warps of a row, shuffle_reduce.py). Operations a weight, 16384 x
  2048: Q4_0 5.98 -> 3.31, Q4_K 6.46 -> 4.15, Q5_K 11.2 -> 7.1, Q6_K 10.3 -> 5.9, Q8_0 6.9 -> 3.4. On an H100 decode of
  a 1B Llama in Q4_K_M takes 1.09 times as long without it, a prompt of 480 tokens 1.16 times.
Upstream: not sent; there, rules of the CUDA and PTX renderers.
"""
from __future__ import annotations
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
import numpy as np
from tinygrad.dtype import DType, dtypes
from tinygrad.renderer import Renderer
from tinygrad.renderer.cstyle import CUDARenderer
from tinygrad.uop.ops import Ops, PatternMatcher, UOp, UPat, graph_rewrite
from tinygrad_llm.patches import hooks, places
from tinygrad_llm.patches.ir.intrinsics import INT, Intrinsic, Language, named
from tinygrad_llm.patches.isa.int_to_float import BITS

SEAMS = {
  "tinygrad.codegen:full_rewrite_to_sink": "a1124f83af03",
  "tinygrad.renderer.cstyle:CUDARenderer": "1d185dc2e925",
}

WORD = 32        # bits
EXPONENT = 127 + BITS  # biased exponent of 2**23 as a float
SHIFTS = (0, 16, 8, 24)  # preferred shifts of a word, best first: one of them serves all fields of 4 or 8 bits
# ({0} & {1}) ^ {2}; its truth table 0x6a is (0xf0 & 0xcc) ^ 0xaa
LOP3 = Intrinsic("and xor", INT, {
  Language.CUDA: "lop3({0},{1},{2})", Language.PTX: "lop3.b32 {d}, {0}, {1}, {2}, 0x6a;"})
FUNCTION = ('static __device__ __forceinline__ uint lop3(uint a, uint m, uint k) '
            '{ uint d; asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(d) : "r"(a), "r"(m), "r"(k)); return d; }\n')

def lowered(n: float, dtype: DType) -> UOp:
  """A constant in the form that it has after lowering."""
  return UOp(Ops.CAST, dtype, (UOp(Ops.CONST, dtypes.weakfloat if dtype is dtypes.float32 else dtypes.weakint, (), n),),
             dtype)

@dataclass(frozen=True)
class Field:
  """((word >> down) & mask) << up"""
  word: UOp
  down: int
  mask: int
  up: int

  @property
  def bits(self) -> int: return self.mask << self.up

def constant(u: UOp) -> Any:
  """The value of a constant; None if u is no constant."""
  while u.op is Ops.CAST: u = u.src[0]
  return u.val if u.op is Ops.CONST else None

def fields(u: UOp) -> tuple[list[Field], int]|None:
  """Splits a word into disjoint bit fields and a constant, joined by XOR; None if it is anything else."""
  if (n := constant(u)) is not None: return [], n
  if u.dtype is not dtypes.uint32: return None
  if u.op in (Ops.OR, Ops.XOR):
    if (left := fields(u.src[0])) is None or (right := fields(u.src[1])) is None: return None
    a, b = (sum(f.bits for f in side[0]) for side in (left, right))
    if a & b or u.op is Ops.OR and (left[1] & (b | right[1]) or right[1] & a): return None
    return left[0] + right[0], left[1] ^ right[1]
  if u.op is Ops.SHL and (by := constant(u.src[1])) is not None and (inner := fields(u.src[0])) is not None:
    moved = [Field(f.word, f.down, f.mask, f.up + by) for f in inner[0]]
    return (moved, inner[1] << by) if all(f.bits >> WORD == 0 for f in moved) and inner[1] << by >> WORD == 0 else None
  if u.op is Ops.AND and (mask := constant(u.src[1])) is not None:
    word, down = u.src[0], 0
    if word.op is Ops.SHR and (by := constant(word.src[1])) is not None: word, down = word.src[0], by
    return ([Field(word, down, mask & (1 << WORD - down) - 1, 0)], 0) if word.dtype is dtypes.uint32 else None
  return None

def place(first: Field, bits: int) -> tuple[int, int]:
  """The shift of the first field's word, and the field's position then: `bits` from there on fit the mantissa."""
  for down in SHIFTS:
    if 0 <= (at := first.down - first.up - down) <= BITS - bits: return down, at
  return first.down - first.up, 0

def in_place(ctx: str|None, x: UOp, c: UOp) -> UOp|None:
  if (added := constant(c)) is None or (found := fields(x)) is None: return None
  if not found[0] or found[1] >> BITS != EXPONENT: return None
  (first, *others), number = found
  low = number & (1 << BITS) - 1
  bits = (sum(f.bits for f in found[0]) | low).bit_length()
  down, at = place(first, bits)
  less = added + 2.0 ** BITS - 2.0 ** (BITS - at)
  if bits > BITS or float(np.float32(less)) != less: return None
  def word(n: int) -> UOp: return lowered(n, dtypes.uint32)
  def moved(f: Field, down: int) -> UOp:
    return f.word if not down else f.word.alu(Ops.SHR if down > 0 else Ops.SHL, word(abs(down)))
  src = moved(first, down), word(first.bits << at), word((EXPONENT - at << BITS) | low << at)
  if ctx is None: value = src[0].alu(Ops.AND, src[1]).alu(Ops.XOR, src[2])
  else: value = UOp(Ops.CUSTOM if "{d}" in ctx else Ops.CUSTOMI, dtypes.uint32, src, ctx)  # PTX: a line of its own
  for f in others: value = value.alu(Ops.XOR, moved(f, f.down - f.up - at).alu(Ops.AND, word(f.bits << at)))
  return value.bitcast(dtypes.float32).alu(Ops.ADD, lowered(less, dtypes.float32))

pm_in_place = PatternMatcher([
  (UPat(Ops.BITCAST, dtypes.float32, src=(UPat.var("x", dtypes.uint32),)) + UPat.var("c"), in_place),
])

def run(sink: UOp, ren: Renderer) -> UOp:
  return graph_rewrite(sink, pm_in_place, ctx=LOP3.text(ren), name="fields in place") if ren.has_local else sink

_render_kernel: Callable[..., str]

def render_kernel(self: CUDARenderer, function_name: str, kernel: list[str], bufs: Any, uops: list[UOp],
                  prefix: list[str]|None = None) -> str:
  """The source of a kernel, with the function for LOP3 if it calls it."""
  source = _render_kernel(self, function_name, kernel, bufs, uops, prefix)
  if not any(u.op is Ops.CUSTOMI and named(u.arg) is LOP3 for u in uops): return source
  return source.replace('extern "C"', FUNCTION + 'extern "C"', 1)

def install() -> None:
  global _render_kernel
  hooks.before_linearize.append(run)
  _render_kernel = places.wrap(CUDARenderer, "render_kernel", render_kernel)
