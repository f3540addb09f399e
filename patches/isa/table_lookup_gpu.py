"""
Table look-ups by byte permutations (prmt): codes of four bits become bytes, four at once.

Why: Some formats' codes are no numbers (4-bit floats, levels of a codebook). They cost a GPU ten integer operations a
  weight: a polynomial, or shifts of a constant by the code. NVIDIA's cards select four of eight bytes in one
  instruction.
How: The pass looks at floats made by int_to_float.py that depend on four neighbouring bits of a word alone. It
  evaluates them for all 16 codes. If the results are whole numbers of 8 bits, they become a table in four words. Half
  of a word's codes select from the first eight bytes, then from the other eight. Their highest bits then select between
  both results. That gives four bytes, which fields_in_place.py makes into floats.
Rewrite:
  float f((w >> 4 * i) & 15), i in 4
  --> float((prmt(prmt(t0, t1, w), prmt(t2, t3, w), ((w >> 1) & 0x4444) | 0x3210) >> 8 * i) & 255) - 128
Numbers: Operations a weight, 4096 x 14336, sm_90: IQ4_NL 15.0 -> 4.6, IQ4_XS 15.2 -> 4.7, MXFP4 14.2 -> 4.7, NVFP4 15.1
  -> 5.5. H100, us of 8 experts of 768 x 2048 in MXFP4: 19 -> 14.
Upstream: not sent; there, rules of the CUDA and PTX renderers.
"""
from __future__ import annotations
from collections.abc import Callable
import numpy as np
from tinygrad.dtype import _to_np_dtype, dtypes
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import Ops, PatternMatcher, UOp, UPat, graph_rewrite
from tinygrad_llm.patches import hooks
from tinygrad_llm.patches.ir.intrinsics import INT, Intrinsic, Language, language
from tinygrad_llm.patches.isa.fields_in_place import EXPONENT, constant, fields, lowered
from tinygrad_llm.patches.isa.int_to_float import BITS

SEAMS = {
  "tinygrad.codegen:full_rewrite_to_sink": "a1124f83af03",
}

# four bytes of the words {0} and {1}: each of the low four nibbles of {2}, 0 to 7, selects one
PERMUTE = Intrinsic("permute bytes", INT, {
  Language.CUDA: "__byte_perm({0}, {1}, {2})", Language.PTX: "prmt.b32 {d}, {0}, {1}, {2};",
  Language.OPENCL: "(" + "|".join(f"(((({{2}}>>{i}u&4u)?{{1}}:{{0}})>>(({{2}}>>{i}u&3u)*8u)&255u)<<{2 * i}u)"
                                  for i in (0, 4, 8, 12)) + ")"})

CODE, HALF, SIGN = 4, 16, 128  # bits of a code; bits of the four codes of a look-up; offset that makes a byte unsigned
CODES = np.arange(1 << CODE, dtype=np.uint32)
NUMPY: dict[Ops, Callable[..., np.ndarray]] = {
  Ops.AND: np.bitwise_and, Ops.OR: np.bitwise_or, Ops.XOR: np.bitwise_xor, Ops.ADD: np.add, Ops.MUL: np.multiply,
  Ops.SUB: np.subtract, Ops.SHL: np.left_shift, Ops.SHR: np.right_shift, Ops.NEG: np.negative, Ops.MAX: np.maximum,
  Ops.WHERE: np.where, Ops.CMPLT: np.less, Ops.CMPNE: np.not_equal, Ops.CMPEQ: np.equal}

Field = tuple[UOp, int, int]  # a word, the constant that it is shifted down by, and the mask

def _field(u: UOp) -> Field|None:
  if u.op is not Ops.AND or u.dtype is not dtypes.uint32 or (mask := constant(u.src[1])) is None: return None
  word, down = u.src[0], 0
  while word.op is Ops.SHR and (by := constant(word.src[1])) is not None: word, down = word.src[0], down + by
  of = word.src[0] if word.op is Ops.SHR else word  # a shift by a thread's number or a loop's is part of the word
  return (word, down, mask) if of.op not in NUMPY and constant(of) is None else None

def _code(x: UOp) -> tuple[UOp, int, dict[UOp, Field]]|None:
  """The word, the first bit and the fields of the aligned four bits that alone decide a value; None if more bits do."""
  leaves, seen, left = dict[UOp, Field](), set[UOp](), [x]
  while left:
    if (u := left.pop()) in seen or constant(u) is not None: continue
    seen.add(u)
    if (found := _field(u)) is not None: leaves[u] = found
    elif u.op in NUMPY or u.op is Ops.CAST: left += u.src
    else: return None
  words, bits = {word for word, _, _ in leaves.values()}, 0
  for _, down, mask in leaves.values(): bits |= mask << down
  place = (bits & -bits).bit_length() - 1 & -CODE
  return (words.pop(), place, leaves) if len(words) == 1 and bits >> place < 1 << CODE else None

def _of_codes(u: UOp, leaves: dict[UOp, Field], place: int, memo: dict[UOp, np.ndarray]) -> np.ndarray:
  """A value for all 16 codes."""
  if u not in memo:
    kind = _to_np_dtype(u.dtype)
    if u in leaves: found = (CODES << place >> leaves[u][1] & leaves[u][2]).astype(kind)
    elif (n := constant(u)) is not None: found = np.array(n).astype(kind)
    else:
      src = [_of_codes(s, leaves, place, memo) for s in u.src]
      found = src[0].astype(kind) if u.op is Ops.CAST else NUMPY[u.op](*src).astype(kind)
    memo[u] = found
  return memo[u]

def _word(n: int) -> UOp: return lowered(n, dtypes.uint32)

def _looked_up(table: list[int], codes: UOp, permute: str) -> UOp:
  """The bytes that the four lowest codes of a word stand for, in their order."""
  def chosen(a: UOp, b: UOp, at: UOp) -> UOp: return UOp(Ops.CUSTOM, dtypes.uint32, (a, b, at), permute)
  words = [_word(sum(value << 8 * i for i, value in enumerate(table[at:at + 4]))) for at in range(0, len(table), 4)]
  at = codes.alu(Ops.AND, _word(0x7777))  # the highest bit of a nibble would replicate the byte's sign
  halves = codes.alu(Ops.SHR, _word(1)).alu(Ops.AND, _word(0x4444)).alu(Ops.OR, _word(0x3210))
  return chosen(chosen(words[0], words[1], at), chosen(words[2], words[3], at), halves)

def _table(x: UOp, added: float, place: int, leaves: dict[UOp, Field]) -> list[int]|None:
  """as_float(x) + added + SIGN for all codes, if all are unsigned bytes; else None."""
  with np.errstate(all="ignore"):
    values = _of_codes(x, leaves, place, {}).view(np.float32).astype(np.float64) + added + SIGN
    right = values.shape == CODES.shape and bool(((values == np.round(values)) & (values >= 0) & (values < 256)).all())
  return [int(n) for n in values] if right else None

def look_up(ctx: str, x: UOp, c: UOp) -> UOp|None:
  if (added := constant(c)) is None or fields(x) is not None or (found := _code(x)) is None: return None
  word, place, leaves = found
  if (table := _table(x, added, place, leaves)) is None: return None
  codes = word if place < HALF else word.alu(Ops.SHR, _word(HALF))
  byte = _looked_up(table, codes, ctx)
  at = place % HALF // CODE * 8
  byte = (byte.alu(Ops.SHR, _word(at)) if at else byte).alu(Ops.AND, _word(255)).alu(Ops.OR, _word(EXPONENT << BITS))
  value: UOp = byte.bitcast(dtypes.float32).alu(Ops.ADD, lowered(-float(1 << BITS) - SIGN, dtypes.float32))
  return value

pm_look_up = PatternMatcher([
  (UPat(Ops.BITCAST, dtypes.float32, src=(UPat.var("x", (dtypes.uint32, dtypes.int32)),)) + UPat.var("c"), look_up),
])

def run(sink: UOp, ren: Renderer) -> UOp:
  if (permute := PERMUTE.text(ren)) is None or language(ren) is Language.OPENCL: return sink
  made: UOp = graph_rewrite(sink, pm_look_up, ctx=permute, name="table look-ups")
  return made

def install() -> None: hooks.before_linearize.append(run)
