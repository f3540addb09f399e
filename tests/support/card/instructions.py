"""
The instruction table: each PTX instruction's form, as in the PTX manual, and its meaning in C.

In a form, `.{a b}` is a choice and `[.x]` is optional. In the C, a, b, c and e are the operands after the first, as
numbers of the form's last type T. The value of the C is assigned to the first operand. `types` overrides the types of
the first operand and of the others: B is T's bits, W an integer of twice its bits, BITS their number.

All rows share some rules. `.ftz` flushes subnormal single-precision operands and results. `.sat` clamps the result to
0 .. 1. T may be a pair (f16x2, bf16x2), whose halves are computed separately. An instruction not in the table is an
error.
"""
import itertools
import re
from typing import NamedTuple

class Row(NamedTuple):
  c: str
  types: tuple[str, ...]

INT = "s16 u16 s32 u32 s64 u64"
SIGNED, UNSIGNED = "s16 s32 s64", "u16 u32 u64"
FLOAT, HALF = "f32 f64", "f16 bf16 f16x2 bf16x2"
ROUND = "[.rn]"

FORMS: tuple[tuple[str, str, str], ...] = (
  # integers
  (f"add.{{{INT}}}", "a + b", ""),
  (f"sub.{{{INT}}}", "a - b", ""),
  (f"mul.lo.{{{INT}}}", "a * b", ""),
  (f"mul.hi.{{{INT}}}", "(W)a * (W)b >> BITS", ""),
  ("mul.wide.{s16 u16 s32 u32}", "(W)a * (W)b", "W T T"),
  (f"mad.lo.{{{INT}}}", "a * b + c", ""),
  (f"mad.hi.{{{INT}}}", "(T)((W)a * (W)b >> BITS) + c", ""),
  ("mad.wide.{s16 u16 s32 u32}", "(W)a * (W)b + c", "W T T W"),
  (f"div.{{{SIGNED}}}", "b == 0 ? -1 : b == -1 ? -a : a / b", ""),
  (f"div.{{{UNSIGNED}}}", "b == 0 ? -1 : a / b", ""),
  (f"rem.{{{SIGNED}}}", "b == 0 ? -1 : b == -1 ? 0 : a % b", ""),
  (f"rem.{{{UNSIGNED}}}", "b == 0 ? -1 : a % b", ""),
  (f"min.{{{INT}}}", "a < b ? a : b", ""),
  (f"max.{{{INT}}}", "a > b ? a : b", ""),
  (f"neg.{{{SIGNED}}}", "-a", ""),
  (f"abs.{{{SIGNED}}}", "a < 0 ? -a : a", ""),
  ("dp4a.s32.s32", "DOT(s8, s8, a, b, c)", ""),
  ("dp4a.u32.u32", "DOT(u8, u8, a, b, c)", ""),
  ("dp4a.u32.s32", "DOT(u8, s8, a, b, c)", ""),
  ("dp4a.s32.u32", "DOT(s8, u8, a, b, c)", "s32 s32 s32 s32"),
  # bits
  ("and.{b16 b32 b64 pred}", "a & b", ""),
  ("or.{b16 b32 b64 pred}", "a | b", ""),
  ("xor.{b16 b32 b64 pred}", "a ^ b", ""),
  ("not.{b16 b32 b64}", "~a", ""),
  ("not.pred", "!a", ""),
  ("shl.{b16 b32 b64}", "b < BITS ? a << b : 0", "T T u32"),
  (f"shr.{{b16 b32 b64 {UNSIGNED}}}", "b < BITS ? a >> b : 0", "T T u32"),
  (f"shr.{{{SIGNED}}}", "a >> (b < BITS ? b : BITS - 1)", "T T u32"),
  ("shf.l.wrap.b32", "shift_left(a, b, c & 31)", ""),
  ("shf.r.wrap.b32", "shift_right(a, b, c & 31)", ""),
  ("shf.l.clamp.b32", "shift_left(a, b, c)", ""),
  ("shf.r.clamp.b32", "shift_right(a, b, c)", ""),
  ("lop3.b32", "logic(a, b, c, e)", ""),
  ("prmt.b32", "permute(a, b, c)", ""),
  ("bfe.{u32 u64}", "extract(a, b, c, BITS)", "T T u32 u32"),
  ("bfe.{s32 s64}", "extract_signed((B)a, b, c, BITS)", "T T u32 u32"),
  ("bfi.{b32 b64}", "insert(a, b, c, e, BITS)", "T T T u32 u32"),
  ("popc.{b32 b64}", "__builtin_popcountll(a)", "u32 T"),
  ("clz.{b32 b64}", "a ? __builtin_clzll(a) - (64 - BITS) : BITS", "u32 T"),
  ("brev.b32", "reverse(a)", ""),
  ("mov.{b16 b32 b64 u16 s16 u32 s32 u64 s64 f32 f64 f16 bf16 pred}", "a", "B B"),
  ("selp.{b16 b32 b64 u16 s16 u32 s32 u64 s64 f32 f64}", "c ? a : b", "B B B pred"),
  # floating point
  (f"add{ROUND}[.ftz][.sat].{{{FLOAT} {HALF}}}", "a + b", ""),
  (f"sub{ROUND}[.ftz][.sat].{{{FLOAT} {HALF}}}", "a - b", ""),
  (f"mul{ROUND}[.ftz][.sat].{{{FLOAT} {HALF}}}", "a * b", ""),
  ("fma.rn[.ftz][.sat].f32", "__builtin_fmaf(a, b, c)", ""),
  ("mad.rn[.ftz][.sat].f32", "__builtin_fmaf(a, b, c)", ""),
  ("fma.rn.f64", "__builtin_fma(a, b, c)", ""),
  (f"fma.rn[.ftz][.sat].{{{HALF}}}", "(double)a * b + c", ""),
  ("div.rn[.ftz].f32", "a / b", ""),
  ("div.full[.ftz].f32", "a / b", ""),
  ("div.approx[.ftz].f32", "divide_fast(a, b)", ""),
  ("div.rn.f64", "a / b", ""),
  (f"min[.ftz].{{{FLOAT} {HALF}}}", "least(a, b)", ""),
  (f"max[.ftz].{{{FLOAT} {HALF}}}", "most(a, b)", ""),
  (f"min[.ftz].NaN.{{f32 {HALF}}}", "a != a || b != b ? NAN_ : least(a, b)", ""),
  (f"max[.ftz].NaN.{{f32 {HALF}}}", "a != a || b != b ? NAN_ : most(a, b)", ""),
  (f"neg[.ftz].{{{FLOAT} {HALF}}}", "-a", ""),
  ("abs[.ftz].f32", "__builtin_fabsf(a)", ""),
  (f"abs[.ftz].{{f64 {HALF}}}", "__builtin_fabs(a)", ""),
  ("copysign.{f32 f64}", "__builtin_copysign(b, a)", ""),
  ("rcp.{rn approx}[.ftz].f32", "1.0f / a", ""),
  ("rcp.rn.f64", "1.0 / a", ""),
  ("sqrt.{rn approx}[.ftz].f32", "sqrtf(a)", ""),
  ("sqrt.rn.f64", "sqrt(a)", ""),
  ("rsqrt.approx[.ftz].f32", "1.0f / sqrtf(a)", ""),
  ("ex2.approx[.ftz].f32", "exp2f(a)", ""),
  ("ex2.approx[.ftz].{f16 bf16 f16x2 bf16x2}", "exp2f(a)", ""),
  ("lg2.approx[.ftz].f32", "log2f(a)", ""),
  ("sin.approx[.ftz].f32", "sinf(a)", ""),
  ("cos.approx[.ftz].f32", "cosf(a)", ""),
  ("tanh.approx.{f32 f16 f16x2 bf16 bf16x2}", "tanhf(a)", ""),
  ("testp.finite.{f32 f64}", "__builtin_isfinite(a)", "pred T"),
  ("testp.infinite.{f32 f64}", "__builtin_isinf(a)", "pred T"),
  ("testp.number.{f32 f64}", "a == a", "pred T"),
  ("testp.notanumber.{f32 f64}", "a != a", "pred T"),
)

# comparisons of setp and set, of integers and of floats; a float comparison that ends with u is true for NaN
COMPARE = {"eq": "a == b", "ne": "a != b", "lt": "a < b", "le": "a <= b", "gt": "a > b", "ge": "a >= b"}
COMPARE_UNSIGNED = COMPARE | {"lo": "a < b", "ls": "a <= b", "hi": "a > b", "hs": "a >= b"}
COMPARE_FLOAT = COMPARE | {"ne": "a != b && a == a && b == b", "num": "a == a && b == b", "nan": "a != a || b != b"} | {
  f"{k}u": f"!({v})" for k, v in (("eq", "a < b || a > b"), ("ne", "a == b"), ("lt", "a >= b"), ("le", "a > b"),
                                  ("gt", "a <= b"), ("ge", "a < b"))}

# rounding of floats to integers, or to integral floats
ROUNDING = {"rni": "__builtin_rint", "rzi": "__builtin_trunc", "rmi": "__builtin_floor", "rpi": "__builtin_ceil"}

# warp-level instructions -> their names in card.h. The operands after the first go to in[0], in[1], .. The last one,
# the member mask, goes to the mask
EXCHANGE = {"shfl.sync.bfly.b32": "SHFL_BFLY", "shfl.sync.up.b32": "SHFL_UP", "shfl.sync.down.b32": "SHFL_DOWN",
            "shfl.sync.idx.b32": "SHFL_IDX", "vote.sync.any.pred": "VOTE_ANY", "vote.sync.all.pred": "VOTE_ALL",
            "vote.sync.ballot.b32": "VOTE_BALLOT", "redux.sync.add.s32": "REDUX_ADD", "redux.sync.add.u32": "REDUX_ADD",
            "redux.sync.and.b32": "REDUX_AND", "redux.sync.or.b32": "REDUX_OR", "redux.sync.xor.b32": "REDUX_XOR",
            "redux.sync.min.s32": "REDUX_MIN_S32", "redux.sync.max.s32": "REDUX_MAX_S32",
            "redux.sync.min.u32": "REDUX_MIN_U32", "redux.sync.max.u32": "REDUX_MAX_U32"}

BARRIERS = ("bar.sync", "barrier.sync", "barrier.sync.aligned", "bar.cta.sync")  # with the operand 0

# fences and hints do nothing: threads here see each other's writes at once
NOTHING = {"membar", "fence", "prefetch", "prefetchu", "nanosleep", "discard"}

SPECIAL = {f"%{name}.{axis}": f"t->{name}[{i}]" for name in ("tid", "ntid", "ctaid", "nctaid")
           for i, axis in enumerate("xyz")} | {"%laneid": "t->lane", "%warpid": "t->warp"}

def _spellings(form: str) -> list[str]:
  """All spellings of a form."""
  parts = re.findall(r"\[(.*?)\]|\{(.*?)\}|([^\[\]{}]+)", form)
  return ["".join(x) for x in itertools.product(*[(("", may) if may else one.split() if one else (plain,))
                                                 for may, one, plain in parts])]

TABLE = {spelling: Row(c, tuple(types.split())) for form, c, types in FORMS for spelling in _spellings(form)}
