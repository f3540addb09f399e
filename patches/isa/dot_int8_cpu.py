"""
int8 dot products on CPUs (VNNI, AVX2, ARM dotprod): one instruction multiplies and adds four small integers a lane.

Why: Every current CPU multiplies and adds four bytes a lane in one instruction (vpdpbusd, udot). With int8 activations
  such an instruction fits the quantised matmul, at an eighth of the float32 work.
How: The pass finds reductions of float(a) * float(b) over integers of at most 8 bits, one of them a byte of a packed
  activation word. They become reductions of a * b in int32, which are exact. An integer offset that a format subtracts
  from all weights becomes a product of its own. Where the lanes are rows of a matrix, four products of neighbouring
  bytes become one instruction. The words of weights are unpacked as a whole, all four bytes at once. Codes that stand
  for other numbers are looked up, 64 at once. Bits stored apart from the rest of their weights are spread over the
  bytes of a word. Activation sums take 16 bytes at once. With AVX2, int16_sums.py adds words of small weights.
Rewrite:
  sum c in 4: float(byte(w, c)) * float(byte(x, c))
  --> float(vpdpbusd(0, w, x)): four products in int32
Numbers: Matvec 8192 x 2048 with 2 threads, in the cache, GB/s, float32 against int8: Q4_K 17 -> 74, Q6_K 19 -> 80, Q5_K
  16 -> 72, Q8_0 32 -> 114, Q4_0 20 -> 97, MXFP4 15 -> 58, NVFP4 6 -> 51, IQ4_XS 17 -> 66, Q5_0 11 -> 67 (Zen 4, AVX-512
  VNNI, medians; float32 without rows as lanes). A prompt of 32 tokens by 2048 x 2048, 10^9 products a second, without
  and with the offset as a product of its own: Q8_0 17 -> 70, IQ4_NL 7 -> 57, MXFP4 7 -> 51. With activation sums of 16
  bytes: Q4_K 41 -> 80.
Upstream: not sent; there, VNNI could be a tensor core of its ClangRenderer, if int8 sums were recognised.
"""
from __future__ import annotations
from collections.abc import Sequence
import functools
from tinygrad.dtype import dtypes
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import Ops, PatternMatcher, UOp, UPat, graph_rewrite
from tinygrad_llm.patches import is_on, hooks
from tinygrad_llm.patches.ir.indices import stripped
from tinygrad_llm.patches.ir.packed_bytes import BYTES, ONES, Packed, joined, shifted, signed_byte, spread, with_offset
from tinygrad_llm.patches.ir.targets import LANES, adds_pairs, has_vectors
from tinygrad_llm.patches.isa import int16_sums, table_lookup
from tinygrad_llm.patches.isa.int16_sums import OF_7_BITS, Word
from tinygrad_llm.patches.vector.ordered_loads import offset
from tinygrad_llm.patches.vector.vectorizer import Vectorizer, c_functions, uniform_rules, vector_rules

SEAMS = {
  "tinygrad.renderer.cstyle:ClangRenderer": "9763a2d76a66",
}

def is_int8(u: UOp) -> bool: return u.dtype is dtypes.int8 and any(s.op is Ops.INDEX for s in u.toposort())

def add_integers(red: UOp, x: UOp, y: UOp) -> UOp|None:
  (a, c), (b, d) = with_offset(x), with_offset(y)
  if a is None or b is None or not (is_int8(a) and c == 0 or is_int8(b) and d == 0): return None
  if not all(r.op is Ops.RANGE for r in red.src[1:]): return None
  a, b = a.cast(dtypes.int), b.cast(dtypes.int)
  # the offsets get products of their own: without them, the integers still fit their few bits
  return (a * b + b * c + a * d).reduce(*red.src[1:], arg=Ops.ADD).cast(red.dtype)

def add_activations(red: UOp, x: UOp) -> UOp|None:
  if (a := with_offset(x)[0]) is None or not is_int8(a): return None
  return a.cast(dtypes.int).reduce(*red.src[1:], arg=Ops.ADD).cast(red.dtype)

pm_add_integers = PatternMatcher([
  (UPat(Ops.REDUCE, dtypes.float, src=(UPat(Ops.MUL, src=(UPat.var("x"), UPat.var("y"))),), name="red",
        arg=(Ops.ADD, 0), allow_any_len=True), add_integers),
  (UPat(Ops.REDUCE, dtypes.float, src=(UPat(Ops.CAST, name="x"),), name="red", arg=(Ops.ADD, 0), allow_any_len=True),
   add_activations),
])

def run(sink: UOp, ren: Renderer) -> UOp:
  return graph_rewrite(sink, pm_add_integers, name="int dots") if has_vectors(ren) else sink

def available(ren: Renderer) -> bool:
  """Whether this pass makes dot products for the target."""
  return has_vectors(ren) and is_on("dot_int8_cpu")

# *** vectors

def _word(v: Vectorizer, value: int) -> UOp:
  """A constant in all lanes."""
  return v.splat(UOp.cconst(value, dtypes.uint))

def words(v: Vectorizer, us: Sequence[UOp]) -> Packed|None:
  """Packs four values of at most 8 bits, in all lanes, into bytes of one word a lane; also how many bits they have."""
  us = [stripped(u) for u in us]
  if all((c := v.const(u)) is not None and set(c) == {c[0]} and 0 <= c[0] < 256 for u in us):
    values = [v.const(u)[0] for u in us]  # type: ignore[index]
    if len(set(values)) > 1: return None
    return _word(v, values[0] * ONES), values[0].bit_length()
  fields = [v.field(u) for u in us]
  if all(f is not None for f in fields): return _fields(v, fields) or _spread(v, fields)  # type: ignore[arg-type]
  if len({u.op for u in us}) > 1: return None
  if (found := _looked_up(v, us)) is not None: return found
  if us[0].op in (Ops.ADD, Ops.OR, Ops.XOR, Ops.AND):
    for order in ((0, 1), (1, 0)):
      left, right = (words(v, [u.src[i if n == 0 else order[i]] for n, u in enumerate(us)]) for i in (0, 1))
      if left is None or right is None: continue
      return joined(us[0].op, left, right)
  if us[0].op is Ops.SHL and (by := v.const(us[0].src[1])) is not None and len(set(by)) == 1:
    if any(v.const(u.src[1]) != by for u in us) or (left := words(v, [u.src[0] for u in us])) is None: return None
    return shifted(left, by[0], functools.partial(_word, v))
  return None

def _fields(v: Vectorizer, fields: Sequence[tuple[UOp, UOp|None, list[int], list[int]]]) -> Packed|None:
  load, same, at, length = fields[0]
  k = length[0]
  for i, field in enumerate(fields):
    if field[0].src[0].src[0] is not load.src[0].src[0] or field[1] is not same: return None
    if field[2] != [a + 8 * i for a in at] or set(field[3]) != {k}: return None
  word, shift = divmod(at[0], 32)
  if at != [at[0] + 32 * i for i in range(v.n)] or shift + k > 8: return None
  start = v.at(same, word, dtypes.int)
  value = v.read(load, UOp(Ops.SHRINK, src=(v.rewrite(load.src[0].src[0]), start, UOp.cconst(v.n, dtypes.int))))
  if shift: value = value.alu(Ops.SHR, _word(v, shift))
  return value.alu(Ops.AND, _word(v, ((1 << k) - 1) * ONES)) if k < 8 else value, k

def _spread(v: Vectorizer, fields: Sequence[tuple[UOp, UOp|None, list[int], list[int]]]) -> Packed|None:
  """Spreads four consecutive bits of a word to the lowest bits of its four bytes."""
  load, _, at, length = fields[0]
  for i, field in enumerate(fields):
    if field[0] is not load or field[2] != [a + i for a in at] or set(field[3]) != {1}: return None
  shift = at[0] % 32
  if shift > 28 or set(length) != {1} or any(a % 32 != shift for a in at): return None
  word = v.rewrite(load)
  if shift: word = word.alu(Ops.SHR, _word(v, shift))
  return spread(word, functools.partial(_word, v))

def _looked_up(v: Vectorizer, us: Sequence[UOp]) -> Packed|None:
  """Looks up the bytes that four fields of at most 4 bits stand for."""
  found = [table_lookup.lookup(v, u) for u in us]
  if any(f is None for f in found) or any(f[1] != found[0][1] for f in found): return None  # type: ignore[index]
  values = found[0][1]  # type: ignore[index]
  if min(values) < 0 or max(values) > 255: return None
  if (index := _fields(v, [f[0] for f in found])) is None: return None  # type: ignore[index]
  entries = UOp(Ops.STACK, src=tuple(UOp.cconst(x, dtypes.uint8) for x in values))
  made = UOp(Ops.CUSTOMI, dtypes.uint, (index[0], entries), "look_up({0},{1})")
  return made, max(values).bit_length()

def _byte(v: Vectorizer, u: UOp) -> tuple[UOp, int]|None:
  """An int8 that all lanes share: the word that holds it, and the number of its byte; None if it is no such byte."""
  def value(x: UOp) -> int|None: return found[0] if (found := v.const(x)) is not None else None
  if (found := signed_byte(u, value)) is None: return None
  word, amount = found
  by = 0
  if amount is not None:
    if (known := value(amount)) is None: word = word.alu(Ops.SHR, amount)  # the low byte after a run-time shift
    else: by = known
  return None if word.dtype is not dtypes.uint32 or v.inside[word] or by % 8 else (word, by // 8)

def _is_signed(u: UOp) -> bool:
  """Whether an integer is the sign-extended low byte of another."""
  return (u := stripped(u)).op is Ops.BITCAST and u.dtype is dtypes.int8 and u.src[0].op is Ops.CAST

def dot(v: Vectorizer, u: UOp) -> UOp|None:
  """A sum of products with int8 values that all lanes share, as one instruction for each four bytes."""
  if v.n != LANES or u.dtype is not dtypes.int or u.op is not Ops.ADD: return None
  weights: dict[tuple[UOp, bool], dict[int, UOp]] = {}  # (x word, weight is constant) -> each byte's
  same = list[UOp]()  # terms that all lanes share
  for term in u.split_uop(Ops.ADD):
    if term.op is not Ops.MUL:
      if v.inside[term]: return None
      same.append(v.rewrite(term))
      continue
    found = [(byte, w) for x, w in (term.src, term.src[::-1]) if (byte := _byte(v, x)) is not None]
    if not found: return None
    (word, i), w = found[0]
    if weights.setdefault((word, v.const(w) is not None), {}).setdefault(i, w) is not w: return None
  if not weights: return None
  zero = v.splat(UOp.cconst(0, dtypes.int))
  totals = {1: v.splat(functools.reduce(lambda a, b: a.alu(Ops.ADD, b), same))} if same else dict[int, UOp]()
  signs: dict[int, list[Word]] = {}
  for (word, _), four in weights.items():
    if len(four) < BYTES: return None
    consts, sign = v.const(four[0]), 1
    if consts is not None and consts[0] < 0: four, sign = {i: -w for i, w in four.items()}, -1
    bytes = [four[i] for i in range(BYTES)]
    if signed := all(map(_is_signed, bytes)): bytes = [stripped(w).src[0].src[0] & 255 for w in bytes]
    if (unpacked := words(v, bytes)) is None: return None
    kind = "signed" if signed else OF_7_BITS if unpacked[1] <= 7 else "bytes"
    most = int16_sums.largest(bytes, unpacked[1])
    signs.setdefault(sign, []).append(Word(kind, most, unpacked[0], v.rewrite(word)))
  for sign, of in signs.items():
    total = totals.get(sign, zero)
    if adds_pairs(v.ren): totals[sign] = int16_sums.summed(total, of, zero)
    else: totals[sign] = functools.reduce(lambda total, word: word.added(total), of, total)
  plus = totals.get(1, zero)
  return plus.alu(Ops.SUB, totals[-1]) if -1 in totals else plus

def sums(v: Vectorizer, u: UOp) -> UOp|None:
  """An activation sum: the bytes of words that all lanes share, added up four words at once."""
  if u.op is not Ops.ADD or u.dtype is not dtypes.int: return None
  found: dict[UOp, set[int]] = {}
  for term in u.split_uop(Ops.ADD):
    if (byte := _byte(v, term)) is None or byte[1] in found.setdefault(byte[0], set()): return None
    found[byte[0]].add(byte[1])
  if len(found) % BYTES or any(len(bytes) < BYTES for bytes in found.values()): return None
  words = [v.rewrite(word) for word in sorted(found, key=_offset)]
  made = [UOp(Ops.CUSTOM, dtypes.int, tuple(words[i:i + BYTES]), "sum_of_bytes({0},{1},{2},{3})")
          for i in range(0, len(words), BYTES)]
  return functools.reduce(lambda a, b: a.alu(Ops.ADD, b), made)

def _offset(word: UOp) -> int:
  """The constant parts of the addresses that a word is loaded from, added up."""
  return sum(offset(u.src[1]) for u in word.toposort() if u.op in (Ops.INDEX, Ops.SHRINK))

# *** in C

NAMES = ("add_dots_of_", "sum_of_bytes", "look_up")
FUNCTIONS = """
typedef int dots __attribute__((aligned(4),ext_vector_type(16)));
typedef unsigned int dot_words __attribute__((aligned(4),ext_vector_type(16)));
typedef int half_dots __attribute__((ext_vector_type(8)));
typedef unsigned int half_words __attribute__((ext_vector_type(8)));
typedef unsigned int quarter_words __attribute__((ext_vector_type(4)));
typedef int quarter_dots __attribute__((ext_vector_type(4)));
typedef int lanes __attribute__((vector_size(64)));
typedef int half_lanes __attribute__((vector_size(32)));
typedef unsigned char look_ups __attribute__((aligned(1),ext_vector_type(16)));
#if defined(__AVX512VNNI__) && defined(__AVX512VL__) || defined(__AVXVNNI__)
#define HALF_VNNI
#endif
static inline half_dots half_add_dots_of_7_bits(half_dots r, half_words w, half_words x) {
#if defined(HALF_VNNI)
  r = (half_dots)__builtin_ia32_vpdpbusd256((half_lanes)r, (half_lanes)w, (half_lanes)x);
#elif defined(__AVX2__)
  half_dots p, ones = (half_dots)65537;
  __asm__("vpmaddubsw %2, %1, %0" : "=x"(p) : "x"(w), "x"(x));
  __asm__("vpmaddwd %1, %0, %0" : "+x"(p) : "x"(ones));
  r += p;
#elif defined(__ARM_FEATURE_DOTPROD)
  quarter_dots low = r.lo, high = r.hi;
  __asm__("sdot %0.4s, %1.16b, %2.16b" : "+w"(low) : "w"(w.lo), "w"(x.lo));
  __asm__("sdot %0.4s, %1.16b, %2.16b" : "+w"(high) : "w"(w.hi), "w"(x.hi));
  r = __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
#else
  for (int i = 0; i < 32; i += 8) r += (half_dots)((w >> i) & 255u) * ((half_dots)(x << (24 - i)) >> 24);
#endif
  return r;
}
static inline half_dots half_add_dots_of_bytes(half_dots r, half_words w, half_words x) {
#if defined(HALF_VNNI)
  return half_add_dots_of_7_bits(r, w, x);
#else
  half_dots top = half_add_dots_of_7_bits((half_dots)0, (w >> 7) & 0x01010101u, x);
  return half_add_dots_of_7_bits(r, w & 0x7f7f7f7fu, x) + (top << 7);
#endif
}
static inline half_dots half_add_dots_of_signed(half_dots r, half_words w, half_words x) {
#if defined(__AVX2__)
  __asm__("vpsignb %1, %0, %0" : "+x"(x) : "x"(w));
  __asm__("vpabsb %0, %0" : "+x"(w));
  return half_add_dots_of_7_bits(r, w, x);
#elif defined(__ARM_FEATURE_DOTPROD)
  return half_add_dots_of_7_bits(r, w, x);
#else
  for (int i = 24; i >= 0; i -= 8) r += ((half_dots)(w << i) >> 24) * ((half_dots)(x << i) >> 24);
  return r;
#endif
}
static inline int sum_of_bytes(unsigned int a, unsigned int b, unsigned int c, unsigned int d) {
  quarter_words x = {a, b, c, d};
  quarter_dots r = 0;
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  quarter_words ones = 0x01010101;
  __asm__("vpdpbusd %2, %1, %0" : "+v"(r) : "v"(ones), "v"(x));
#else
  for (int i = 0; i < 32; i += 8) r += (quarter_dots)(x << (24 - i)) >> 24;
#endif
  return r[0] + r[1] + r[2] + r[3];
}
static inline dots add_dots_of_bytes(dots r, dot_words w, unsigned int x) {
#if defined(__AVX512VNNI__)
  r = (dots)__builtin_ia32_vpdpbusd512((lanes)r, (lanes)w, (lanes)(dot_words)x);
#else
  r.lo = half_add_dots_of_bytes(r.lo, w.lo, (half_words)x);
  r.hi = half_add_dots_of_bytes(r.hi, w.hi, (half_words)x);
#endif
  return r;
}
static inline dots add_dots_of_7_bits(dots r, dot_words w, unsigned int x) {
#if defined(__AVX512VNNI__)
  return add_dots_of_bytes(r, w, x);
#else
  r.lo = half_add_dots_of_7_bits(r.lo, w.lo, (half_words)x);
  r.hi = half_add_dots_of_7_bits(r.hi, w.hi, (half_words)x);
  return r;
#endif
}
static inline dots add_dots_of_signed(dots r, dot_words w, unsigned int x) {
  r.lo = half_add_dots_of_signed(r.lo, w.lo, (half_words)x);
  r.hi = half_add_dots_of_signed(r.hi, w.hi, (half_words)x);
  return r;
}
static inline quarter_words quarter_look_up(quarter_words i, look_ups t) {
  quarter_words r;
#if defined(__SSSE3__)
  r = (quarter_words)t;
  __asm__("pshufb %1, %0" : "+x"(r) : "x"(i));
#elif defined(__aarch64__)
  __asm__("tbl %0.16b, {%1.16b}, %2.16b" : "=w"(r) : "w"(t), "w"(i));
#else
  for (int j = 0; j < 16; j++) ((unsigned char*)&r)[j] = t[((unsigned char*)&i)[j]];
#endif
  return r;
}
static inline half_words half_look_up(half_words i, look_ups t) {
  half_words r;
#if defined(__AVX2__)
  quarter_words q = (quarter_words)t;
  half_words p = __builtin_shufflevector(q, q, 0, 1, 2, 3, 0, 1, 2, 3);
  __asm__("vpshufb %2, %1, %0" : "=x"(r) : "x"(p), "x"(i));
#else
  r.lo = quarter_look_up(i.lo, t);
  r.hi = quarter_look_up(i.hi, t);
#endif
  return r;
}
static inline dot_words look_up(dot_words i, look_ups t) {
  dot_words r;
#if defined(__AVX512BW__)
  quarter_words q = (quarter_words)t;
  dot_words p = __builtin_shufflevector(q, q, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3);
  __asm__("vpshufb %2, %1, %0" : "=v"(r) : "v"(p), "v"(i));
#else
  r.lo = half_look_up(i.lo, t);
  r.hi = half_look_up(i.hi, t);
#endif
  return r;
}
"""

def install() -> None:
  c_functions.append((NAMES, FUNCTIONS))
  c_functions.append((int16_sums.NAMES, int16_sums.FUNCTIONS))
  hooks.after_opts.append(run)
  vector_rules.append(dot)
  uniform_rules.append(sums)
