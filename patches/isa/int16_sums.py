"""
Sums of byte products in int16: AVX2 without VNNI widens to int32 once for several words. A helper of dot_int8_cpu.py.

Why: AVX2 needs two instructions for a lane's four products. vpmaddubsw adds two of them to an int16, vpmaddwd adds two
  int16 to an int32; an addition follows. Where weights are small, most of that is not needed for each word.
How: Words are added as int16 while their weights' bounds allow it (`runs`), then widened together: 8 words of 4 bits,
  4 of 5, 2 of 6. The bounds are proven by the graph: a bit field's length, a constant, a table's largest entry.
Rewrite:
  add_dots(add_dots(r, w, x), v, y): vpmaddubsw, vpmaddwd, vpaddd for each word
  --> add_dots_of_pairs(r, add_pairs(add_pairs(0, w, x), v, y)): vpmaddubsw and vpaddw for each word
Numbers: new / old time of 4096 x 2048 for 1, 4, 8 tokens and a prompt of 256, AVX2, one core of a Zen 5 (medians in
  turns): Q4_K 0.93, 0.85, 0.78, 0.71; Q5_K 0.81, 0.81, 0.78, 0.59; Q6_K 0.90, 0.88, 0.90, 0.82; Q2_K 0.90, 0.80, 0.80,
  0.87; Q3_K 0.79, 0.89, 0.85, 0.75; Q4_0 0.89, 0.79, 0.76, 0.65; Q5_0 0.94, 0.79, 0.79, 0.60; MXFP4 0.73, 0.82, 0.77.
  All sums are equal to the bit. Codes' bounds (ir/value_bounds.py) let unpacked arrays do the same: 2, 4, 8 rows in
  NVFP4 take 0.72, 0.63, 0.63 of the time with signed bytes, 4 rows in MXFP4 from an array 0.51.
"""
from __future__ import annotations
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import Ops, UOp

OF_7_BITS = "7_bits"  # weights that vpmaddubsw multiplies without saturation
ROOM = 128  # what the largest weights of words in one int16 may add up to: 2 * ROOM * -128 is the smallest int16

@dataclass(frozen=True)
class Word:
  """
  Four weights of each lane, as bytes of a word, and the word of x that they meet.

  kind: the instruction's weights: 7_bits, bytes or signed. most: the largest weight, unless they are signed.
  """
  kind: str
  most: int
  weights: UOp
  x: UOp

  def added(self, total: UOp, name: str = "") -> UOp:
    """The total plus the word's dot product, by the function `name`."""
    text = f"{name or f'add_dots_of_{self.kind}'}({{0}},{{1}},{{2}})"
    return UOp(Ops.CUSTOMI, dtypes.int, (total, self.weights, self.x), text)

def largest(weights: Sequence[UOp], bits: int) -> int:
  """The largest value that weights of at most so many bits may have."""
  return max(min(int(w.vmax), (1 << bits) - 1) if w.vmin >= 0 else (1 << bits) - 1 for w in weights)

def runs(found: Sequence[Word]) -> list[list[Word]]:
  """
  Splits words, in their order, into runs whose products fit int16 for any x.

  An int16 adds two products of each word. No weight is negative and a byte of x is -128 to 127. So the sum is between
  -256 and 254 times what the words' largest weights add up to: at most ROOM, between -32768 and 32512.
  """
  made, room = list[list[Word]](), -1
  for word in found:
    if word.kind != OF_7_BITS or word.most > room:
      made.append([])
      room = ROOM
    made[-1].append(word)
    room = room - word.most if word.kind == OF_7_BITS else -1
  return made

def summed(total: UOp, found: Sequence[Word], zero: UOp) -> UOp:
  """The total plus the words' dot products. zero: the number in all lanes."""
  for run in runs(found):
    if len(run) == 1: total = run[0].added(total)
    else:
      pairs = functools.reduce(lambda pairs, word: word.added(pairs, "add_pairs"), run, zero)
      total = UOp(Ops.CUSTOMI, dtypes.int, (total, pairs), "add_dots_of_pairs({0},{1})")
  return total

# *** in C, after the functions of dot_int8_cpu.py

NAMES = ("add_pairs", "add_dots_of_pairs")
FUNCTIONS = """
typedef short half_pairs __attribute__((ext_vector_type(16)));
static inline half_dots half_add_pairs(half_dots p, half_words w, half_words x) {
#if defined(__AVX2__) && !defined(HALF_VNNI)
  half_pairs two;
  __asm__("vpmaddubsw %2, %1, %0" : "=x"(two) : "x"(w), "x"(x));
  return (half_dots)((half_pairs)p + two);
#else
  return half_add_dots_of_7_bits(p, w, x);
#endif
}
static inline half_dots half_add_dots_of_pairs(half_dots r, half_dots p) {
#if defined(__AVX2__) && !defined(HALF_VNNI)
  half_dots ones = (half_dots)65537;
  __asm__("vpmaddwd %1, %0, %0" : "+x"(p) : "x"(ones));
#endif
  return r + p;
}
static inline dots add_pairs(dots p, dot_words w, unsigned int x) {
  p.lo = half_add_pairs(p.lo, w.lo, (half_words)x);
  p.hi = half_add_pairs(p.hi, w.hi, (half_words)x);
  return p;
}
static inline dots add_dots_of_pairs(dots r, dots p) {
  r.lo = half_add_dots_of_pairs(r.lo, p.lo);
  r.hi = half_add_dots_of_pairs(r.hi, p.hi);
  return r;
}
"""
