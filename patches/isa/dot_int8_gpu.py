"""
dp4a: int8 dot products of packed words on GPUs, four multiply-adds an instruction; activations are two bytes each.

Why: Unpacking a 4-bit weight, converting it to float and multiplying take four operations. At the bandwidth of the
  largest cards that takes all of the arithmetic units' time, and more. A dp4a multiplies four bytes of a word by four
  bytes of another and adds them up, and one mask unpacks four weights.
How: The pass looks at the nested sums (loops/factor_sums.py). A value of x is 256 times a signed byte of one word plus
  a signed byte of another. A weight has at most 8 bits, and its bits for four steps of the sum lie a byte apart or next
  to each other. The four steps then become two dot products of words, for the high and the low bytes of x, joined as
  floats. Weights of 8 bits become signed by a flip of the highest bit. The offset that a format subtracts multiplies
  the sum of x, which all rows of a thread share. An accumulator starts as the bits of 1.5 * 2**23, so its final bits
  are a float and need no conversion (int_to_float.py). Codes of at most 4 bits are looked up by byte permutations.
  CUDA, PTX and OpenCL each have a spelling for it; OpenCL's is plain C, which executes the same schedule.
Rewrite:
  sum c in 4: float((w >> 4 * c) & 15) * x[c], x[c] = scale * (256 * high[c] + low[c])
  --> scale * (256 * float(dp4a(w & 0x0f0f0f0f, high)) + float(dp4a(w & 0x0f0f0f0f, low)))
Numbers: Instructions of machine code a weight, sm_90, 2048 x 2048: Q4_0 4.7 -> 2.0, Q4_K 6.0 -> 2.5, Q6_K 8.7 -> 3.6,
  Q8_0 4.7 -> 1.4, MXFP4 10.7 -> 4.6, NVFP4 11.4 -> 5.4, IQ4_XS 10.6 -> 4.7; registers at most 107, no stack. In 100
  decode steps executed by tests/support/card (the bundled model, a random one of Q4_K_M) logits are at most 0.0017
  standard deviations from float64's; 0.0013 with floats. On an H100 a 1B Llama in Q4_K_M decodes 1,452 tok/s with it,
  1,561 with floats.
Upstream: not sent; there, dp4a could be a small tensor core of 4 x 1 x 1, if its int8 sums were recognised.
"""
from __future__ import annotations
from collections.abc import Sequence
import itertools, math
from tinygrad import codegen
from tinygrad.codegen import expand_broadcast, maybe_load
from tinygrad.dtype import dtypes
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import GroupOp, Ops, PatternMatcher, UOp, UPat, graph_rewrite
from tinygrad_llm.patches import hooks, is_on, places
from tinygrad_llm.patches.ir.indices import evaluate, stripped, terms
from tinygrad_llm.patches.ir.intrinsics import DOT, Intrinsic, Language, language, named
from tinygrad_llm.patches.ir.packed_bytes import BYTES, ONES, Packed, joined, shifted, signed_byte, spread, with_offset
from tinygrad_llm.patches.isa.int_to_float import BITS
from tinygrad_llm.patches.isa.table_lookup_gpu import PERMUTE
from tinygrad_llm.patches.isa.shuffle_reduce import pm_each

SEAMS = {
  "tinygrad.codegen:full_rewrite_to_sink": "a1124f83af03",
  "tinygrad.codegen:devectorizer2": "566768760ee6",
  "tinygrad.codegen:expand_broadcast": "cfde8363a304",
  "tinygrad.codegen:pm_add_loads": "22266df0cafa",
  "tinygrad.uop.ops:exec_alu": "8e39e85b4a5a",
}

CODES = 16  # entries of a look-up table
SIGNS = 0x80808080
ZERO = 3 << BITS - 1  # 1.5 * 2**23: the float whose mantissa a signed integer may be added to

# {2} plus the dot product of the four signed bytes of words {0} and {1}
DOT4 = Intrinsic("dot of four bytes", DOT, {
  Language.CUDA: "__dp4a((int)({0}), (int)({1}), {2})", Language.PTX: "dp4a.s32.s32 {d}, {0}, {1}, {2};",
  Language.OPENCL: "({2}" + "".join(f"+((int)({{0}}<<{i}u)>>24)*((int)({{1}}<<{i}u)>>24)"
                                    for i in (24, 16, 8, 0)) + ")"}, since=61)

def available(ren: Renderer) -> bool:
  """Whether the target has the instruction and this pass is on."""
  return DOT4.text(ren) is not None and language(ren) is not Language.OPENCL and is_on("dot_int8_gpu")

# *** four steps of a sum as bytes

def _byte(x: UOp) -> tuple[UOp, UOp]|None:
  """The word that a float's signed byte comes from, and the shift that brings it down; None if it is no such float."""
  if x.op is not Ops.CAST or x.dtype is not dtypes.float: return None
  found = signed_byte(x.src[0], lambda u: u.val if u.op is Ops.CONST else None)
  if found is None or found[1] is None or found[0].dtype is not dtypes.uint32: return None
  return found[0], found[1]

def _each(u: UOp, loops: Sequence[UOp]) -> list[int]|None:
  """An integer in each step of the loops, minus its value in the first step; None if it depends on other loops, too."""
  if not set(loops).issuperset(u.ranges): return None
  steps = itertools.product(*[range(int(r.vmax) + 1) for r in loops])
  found = [int(evaluate(u, dict(zip(loops, step)))) for step in steps]
  return [x - found[0] for x in found]

def _in_order(by: UOp) -> tuple[UOp, ...]|None:
  """The loops over a word's four bytes, ordered so that the shift counts 0, 8, 16, 24; None if no order does."""
  for loops in itertools.permutations(by.ranges):
    if math.prod(int(r.vmax) + 1 for r in loops) == BYTES and _each(by, loops) == [0, 8, 16, 24]: return loops
  return None

def _first(u: UOp, loops: Sequence[UOp]) -> UOp: return u.substitute({r: r.const_like(0) for r in loops})

def _constant(n: int) -> UOp: return UOp.const(n, dtypes.uint32)

def _word(u: UOp, loops: Sequence[UOp]) -> Packed|None:
  """Packs an integer of at most 8 bits, in four steps of the loops, into a word; also how many bits it has."""
  u = stripped(u)
  if u.op is Ops.CONST and 0 <= u.val < 256: return _constant(u.val * ONES), u.val.bit_length()
  if u.op is Ops.AND and u.src[1].op is Ops.CONST and u.src[0].op is Ops.SHR: return _field(u, loops)
  if u.op in (Ops.ADD, Ops.OR, Ops.XOR):
    if (left := _word(u.src[0], loops)) is None or (right := _word(u.src[1], loops)) is None: return None
    return joined(u.op, left, right)
  if u.op is Ops.SHL and u.src[1].op is Ops.CONST and (found := _word(u.src[0], loops)) is not None:
    return shifted(found, u.src[1].val, _constant)
  return None

def _field(u: UOp, loops: Sequence[UOp]) -> Packed|None:
  bits, word, most, each = u.src[1].val.bit_length(), u.src[0], 0, [0] * BYTES
  if u.src[1].val != (1 << bits) - 1: return None
  while word.op is Ops.SHR:
    for by in terms(word.src[1]):
      if not set(loops).intersection(by.ranges): most += int(by.vmax)
      elif (steps := _each(by, loops)) is None: return None
      else: each = [a + b for a, b in zip(each, steps)]
    word = word.src[0]
  if word.dtype is not dtypes.uint32 or set(loops).intersection(word.ranges): return None
  value = _first(u.src[0], loops)
  if each == [0, 8, 16, 24] and most + bits <= 8: return value & u.src[1].val * ONES, bits
  return spread(value, _constant) if each == [0, 1, 2, 3] and bits == 1 else None

def _is_code(u: UOp) -> bool:
  if u.op is not Ops.AND or u.src[1].op is not Ops.CONST or not 0 < u.src[1].val < CODES: return False
  word = u.src[0]
  while word.op is Ops.SHR: word = word.src[0]
  return word.op is Ops.INDEX

def _looked_up(u: UOp, less: int, loops: Sequence[UOp], permute: str) -> UOp|None:
  """The signed bytes that four fields of at most 4 bits stand for, looked up at once; None if there is no table."""
  inside = u.toposort(lambda v: not _is_code(v))
  codes = {v for w in inside for v in w.src if _is_code(v)}
  if len(fields := {v.src[0] for v in codes}) != 1: return None
  if not all(v.op in GroupOp.ALU or v.op in (Ops.CAST, Ops.CONST) for v in inside): return None
  values = [int(evaluate(u, {v: code & v.src[1].val for v in codes})) - less for code in range(CODES)]
  if min(values) < -128 or max(values) > 127 or (found := _field(fields.pop() & CODES - 1, loops)) is None: return None
  word = found[0]
  def chosen(a: UOp|int, b: UOp|int, at: UOp|int) -> UOp:
    src = tuple(s if isinstance(s, UOp) else _constant(s) for s in (a, b, at))
    return UOp(Ops.CUSTOM, dtypes.uint32, src, permute)
  table = [sum((value & 255) << 8 * i for i, value in enumerate(values[at:at + 4])) for at in range(0, CODES, 4)]
  at = chosen(word | (word >> 4), 0, 0x20)
  low = at & 0x7777  # the highest bit of a nibble makes PTX's prmt replicate the byte's sign
  return chosen(chosen(table[0], table[1], low), chosen(table[2], table[3], low), (at >> 1) & 0x4444 | 0x3210)

HIGH = 256  # factor of the high byte of x

def _two_bytes(x: UOp) -> tuple[UOp, UOp, UOp]|None:
  """A value of x as HIGH * signed byte + signed byte: both words, and the shift that both share; None if it is none."""
  if x.op is not Ops.ADD: return None
  high, low = x.src if x.src[0].op is Ops.MUL else x.src[::-1]
  if high.op is not Ops.MUL or high.src[1].op is not Ops.CONST or high.src[1].val != HIGH: return None
  a, b = _byte(high.src[0]), _byte(low)
  return (a[0], b[0], a[1]) if a is not None and b is not None and a[1] is b[1] else None

def dot(ctx: Renderer, red: UOp) -> UOp|None:
  """A reduction over values of x, or over their products with weights, as two reductions of dp4a."""
  factors = tuple(red.src[0].split_uop(Ops.MUL))
  if len(factors) > 2 or not all(r.op is Ops.RANGE and r.src[0].op is Ops.CONST for r in red.src[1:]): return None
  x, *rest = factors if _two_bytes(factors[0]) is not None else factors[::-1]
  if (found := _two_bytes(x)) is None or (loops := _in_order(found[2])) is None: return None
  high, low, _ = found
  if not set(loops) <= set(red.src[1:]) or set(loops).intersection(high.ranges | low.ranges): return None
  number, offset = with_offset(rest[0]) if rest else (UOp.const(1, dtypes.int), 0)
  if number is None: return None
  less = -offset
  if (weights := _word(number, loops)) is not None:
    word = weights[0]
    if weights[1] == 8: word, less = word ^ SIGNS, less - 128
  elif (looked := _looked_up(number, less, loops, PERMUTE.text(ctx) or "")) is not None: word, less = looked, 0
  else: return None
  others = [r for r in red.src[1:] if r not in loops]
  steps = math.prod(int(r.vmax) + 1 for r in red.src[1:])
  if steps * 128 * (128 + abs(less)) >= 1 << BITS - 1: return None
  def total(word: UOp, x: UOp) -> UOp:
    of_word = UOp(Ops.CUSTOM, dtypes.int, (word, x, UOp.const(0, dtypes.int)), DOT4.text(ctx))
    return of_word.reduce(*others, arg=Ops.ADD) if others else of_word
  def of_bytes(x: UOp) -> UOp:
    value = total(word, x) + (2 * (127 + BITS) + 1 << BITS - 1)  # the bits of ZERO
    if less: value = value + total(UOp.const(ONES, dtypes.uint32), x) * -less
    return value.bitcast(dtypes.float32) - float(ZERO)
  return of_bytes(high) * HIGH + of_bytes(low)

pm_dot = PatternMatcher([(UPat(Ops.REDUCE, dtypes.float, arg=(Ops.ADD, 0), name="red"), dot)])

def run(sink: UOp, ren: Renderer) -> UOp:
  if DOT4.text(ren) is None or not any(u.dtype is dtypes.int8 for u in sink.toposort()): return sink
  made: UOp = graph_rewrite(sink, pm_dot, ctx=ren, name="word dots")
  return made

# *** each adds to the one before

def _is_dot(u: UOp) -> bool: return u.op is Ops.CUSTOM and named(u.arg) is DOT4

def _append(d: UOp, y: UOp) -> UOp|None:
  if not _is_dot(d): return None
  before = d.src[2]
  return d.replace(src=(*d.src[:2], y if before.op is Ops.CONST and before.val == 0 else before.alu(Ops.ADD, y)))

pm_append = PatternMatcher([(UPat(Ops.CUSTOM, dtypes.int, name="d") + UPat.var("y"), _append)])

def append(sink: UOp, ren: Renderer) -> UOp:
  return graph_rewrite(sink, pm_append, name="append dots") if any(map(_is_dot, sink.toposort())) else sink

pm_operands = PatternMatcher([
  (UPat(Ops.CUSTOM, dtypes.ints, name="x"), expand_broadcast),
  (UPat(Ops.CUSTOM, dtypes.ints, name="x"), lambda x: x.replace(src=tuple(map(maybe_load, x.src)))),
])

def install() -> None:
  hooks.after_opts.append(run)
  hooks.before_linearize.append(append)
  places.rules(codegen, "pm_add_loads", pm_operands)
  places.rules(codegen, "devectorizer2", pm_each)
