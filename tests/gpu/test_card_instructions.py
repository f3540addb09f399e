"""Each instruction of the simulator's table, on random operands, against Python integers and exact fractions."""
import math
import re
import zlib
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from tests.support.card import build
from tests.support.card.driver import Card
from tests.support.card.instructions import TABLE
from tests.support.card.parse import BITS, PTXError
from tests.support.card.translate import to_c
from tests.support.exact import FORMATS, nearest, random_bits, value

pytestmark = pytest.mark.skipif(bool(build.missing()), reason=build.missing())
THREADS = 32
HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
PAIRS = {"f16x2": "f16", "bf16x2": "bf16"}

def signed(x: int, bits: int) -> int: return x - (1 << bits) if x >> (bits - 1) & 1 else x
def dot(a: int, b: int, a_signed: bool, b_signed: bool) -> int:
  parts = [[x >> 8 * i & 255 for i in range(4)] for x in (a, b)]
  return sum((signed(x, 8) if a_signed else x) * (signed(y, 8) if b_signed else y) for x, y in zip(*parts))
def quotient(a: int, b: int) -> int: return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
def field(a: int, start: int, length: int, bits: int, keep: bool) -> int:
  start, length = start & 255, length & 255
  text = "".join(str(a >> i & 1) for i in range(bits))  # lowest bit first
  sign = text[min(start + length - 1, bits - 1)] if keep and length else "0"
  found = text[start:start + length].ljust(bits, sign)[:bits] if length else "0" * bits
  return int(found[::-1], 2)
def planted(a: int, b: int, start: int, length: int, bits: int) -> int:
  start, length = start & 255, length & 255
  into = [b >> i & 1 for i in range(bits)]
  for i in range(min(length, max(bits - start, 0))): into[start + i] = a >> i & 1
  return sum(x << i for i, x in enumerate(into))
def permuted(a: int, b: int, s: int) -> int:
  data = (b << 32 | a).to_bytes(8, "little")
  picked = [(s >> 4 * i & 15) for i in range(4)]
  return int.from_bytes(bytes((255 if data[n & 7] >> 7 else 0) if n & 8 else data[n] for n in picked), "little")
def funnel(a: int, b: int, n: int, left: bool, clamp: bool) -> int:
  n = min(n, 32) if clamp else n & 31
  both = b << 32 | a
  return (both << n >> 32 if left else both >> n) & 0xffffffff

# integers: operands, width of the type -> the result; only its low bits count
INTEGERS: dict[str, Callable[..., int]] = {
  "add": lambda a, b, w: a + b, "sub": lambda a, b, w: a - b,
  "mul.lo": lambda a, b, w: a * b, "mul.hi": lambda a, b, w: a * b >> w, "mul.wide": lambda a, b, w: a * b,
  "mad.lo": lambda a, b, c, w: a * b + c, "mad.hi": lambda a, b, c, w: (a * b >> w) + c,
  "mad.wide": lambda a, b, c, w: a * b + c,
  "div": lambda a, b, w: quotient(a, b) if b else -1,
  "rem": lambda a, b, w: a - b * quotient(a, b) if b else -1,
  "min": lambda a, b, w: min(a, b), "max": lambda a, b, w: max(a, b),
  "neg": lambda a, w: -a, "abs": lambda a, w: abs(a),
  "and": lambda a, b, w: a & b, "or": lambda a, b, w: a | b, "xor": lambda a, b, w: a ^ b, "not": lambda a, w: ~a,
  "shl": lambda a, b, w: a << b if b < w else 0, "shr": lambda a, b, w: a >> min(b, w),
  "shf.l.wrap": lambda a, b, c, w: funnel(a, b, c, True, False),
  "shf.r.wrap": lambda a, b, c, w: funnel(a, b, c, False, False),
  "shf.l.clamp": lambda a, b, c, w: funnel(a, b, c, True, True),
  "shf.r.clamp": lambda a, b, c, w: funnel(a, b, c, False, True),
  "prmt": lambda a, b, c, w: permuted(a, b, c),
  "lop3": lambda a, b, c, e, w: sum((0xe4 >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i
                                    for i in range(32)),
  "bfi": lambda a, b, c, e, w: planted(a, b, c, e, w),
  "popc": lambda a, w: a.bit_count(), "clz": lambda a, w: w - a.bit_length(),
  "brev": lambda a, w: int(f"{a:032b}"[::-1], 2),
  "mov": lambda a, w: a,
}
# floats: exact fractions -> an exact fraction
FRACTIONS: dict[str, Callable[..., Fraction]] = {
  "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "fma": lambda a, b, c: a * b + c,
  "mad": lambda a, b, c: a * b + c, "div": lambda a, b: a / b, "rcp": lambda a: 1 / a, "min": min, "max": max,
  "neg": lambda a: -a, "abs": abs, "mov": lambda a: a,
}
# functions that a GPU approximates: within a part in a million (2 ** -10 for f16, 2 ** -8 for bf16)
CLOSE: dict[str, Callable[[float], float]] = {
  "sqrt": lambda a: math.sqrt(abs(a)), "rsqrt": lambda a: 1 / math.sqrt(abs(a)), "ex2": lambda a: 2 ** a,
  "lg2": lambda a: math.log2(abs(a)), "sin": math.sin, "cos": math.cos, "tanh": math.tanh,
}

def operand_types(spelling: str) -> list[str]:
  """The types in which a row's operands are loaded and stored, the result's first."""
  t = spelling.rsplit(".", 1)[1]
  wide = t[0] + str(2 * BITS[t]) if t[0] in "su" and BITS[t] < 64 else t
  named = {"T": t, "B": "pred" if t == "pred" else f"b{BITS[t]}", "W": wide}
  c, types = TABLE[spelling].c, TABLE[spelling].types
  count = 1 + max(i for i, name in enumerate("abce", 1) if re.search(rf"\b{name}\b", c))
  types = types or ("T",) * count
  return [named.get(x, x) for x in (*types, *(types[-1:] * (count - len(types))))]

def register(t: str) -> str: return "pred" if t == "pred" else f"b{max(16, BITS[t])}"

def entry(number: int, spelling: str, types: list[str]) -> str:
  """An entry that computes one result a thread. Its arguments are pointers to results and operands, 8 bytes each."""
  names = ["d", "a", "b", "c", "e"][:len(types)]
  lines = [f".reg .{register(t)} %{n};" for n, t in zip(names, types)] + [".reg .b64 %at<9>;", ".reg .b32 %t;",
           "mov.u32 %t, %tid.x;", "mul.wide.u32 %at8, %t, 8;"]
  for i, (n, t) in enumerate(zip(names, types)):
    lines += [f"ld.param.u64 %at{i}, [k{number}_{i}];", f"add.s64 %at{i}, %at{i}, %at8;"]
    if i and t == "pred": lines += [f"ld.global.u32 %t, [%at{i}];", f"setp.ne.s32 %{n}, %t, 0;"]
    elif i and not (spelling == "lop3.b32" and n == "e"): lines.append(f"ld.global.b{BITS[t]} %{n}, [%at{i}];")
  operands = ", ".join("0xe4" if spelling == "lop3.b32" and n == "e" else f"%{n}" for n in names)
  lines.append(f"{spelling} {operands};")
  lines += ["selp.b32 %t, 1, 0, %d;", "st.global.b32 [%at0], %t;"] if types[0] == "pred" else \
    [f"st.global.b{BITS[types[0]]} [%at0], %d;"]
  parameters = ", ".join(f".param .u64 k{number}_{i}" for i in range(len(types)))
  return f".visible .entry k{number}({parameters})\n{{\n" + "\n".join(lines) + "\nret;\n}\n"

ALL = sorted(TABLE)
TYPES = {x: operand_types(x) for x in ALL}

@pytest.fixture(scope="module")
def results() -> dict[str, tuple[list[list[int]], list[int]]]:
  """{row: (the operands' bits, a list for each thread, and the results' bits)}."""
  stand_in = Card()
  ptx, found = HEAD + "".join(entry(i, x, TYPES[x]) for i, x in enumerate(ALL)), {}
  kernels = stand_in.kernels(ptx, [f"k{i}" for i in range(len(ALL))])
  for i, x in enumerate(ALL):
    rng = np.random.default_rng(zlib.crc32(x.encode()))
    operands = [random_operand(rng, t, x, place) for place, t in enumerate(TYPES[x][1:], 1)]
    out = stand_in.buffer(np.zeros(THREADS, np.uint64))
    given = [stand_in.buffer(np.array(o, np.uint64)) for o in operands]
    stand_in.launch(kernels[i], out, *given, block=(THREADS, 1, 1))
    found[x] = [list(o) for o in zip(*operands)], [int(v) for v in stand_in.read(out, np.zeros(THREADS, np.uint64))]
  return found

def random_operand(rng: np.random.Generator, t: str, spelling: str, place: int) -> list[int]:
  name = spelling.split(".")[0]
  if t == "pred": return [int(x) for x in rng.integers(0, 2, THREADS)]
  if t in PAIRS:
    low, high = (random_operand(rng, PAIRS[t], spelling, place) for _ in range(2))
    return [a | b << 16 for a, b in zip(low, high)]
  if t in FORMATS:
    bits = random_bits(rng, t, THREADS, 3 if name in CLOSE else 12)
    if name in ("sqrt", "rsqrt", "lg2"): bits = [b & ~(1 << (BITS[t] - 1)) or nearest(Fraction(1), t) for b in bits]
    return [b if value(b, t) or name not in ("div", "rcp") else nearest(Fraction(3), t) for b in bits]
  if (name in ("shl", "shr") and place == 2) or (name in ("bfe", "bfi") and place >= TYPES[spelling].index("u32", 1)) \
     or (name == "shf" and place == 3):
    return [int(x) for x in rng.integers(0, BITS[TYPES[spelling][1]] + 5, THREADS)]
  wide = [int.from_bytes(rng.bytes(8), "little") & ((1 << BITS[t]) - 1) for _ in range(THREADS)]
  small = [int(x) & ((1 << BITS[t]) - 1) for x in rng.integers(-5, 6, THREADS)]
  return [s if i % 3 == 2 else w for i, (w, s) in enumerate(zip(wide, small))]

def number(bits: int, t: str) -> int: return signed(bits, BITS[t]) if t[0] == "s" else bits

def expected(spelling: str, operands: list[int]) -> int | float:
  """The result's bits; a float for instructions that a GPU approximates."""
  name, *mods = spelling.split(".")
  t, types = mods[-1], TYPES[spelling]
  if name == "selp": return operands[0] if operands[2] else operands[1]
  if name == "testp": return {"finite": 1, "number": 1}.get(mods[0], 0)
  if name == "copysign":
    top = 1 << (BITS[t] - 1)
    return operands[0] & top | operands[1] & ~top
  if name == "bfe": return field(*operands, BITS[t], t[0] == "s")
  if name == "dp4a": return dot(*operands[:2], mods[0][0] == "s", mods[1][0] == "s") + operands[2]
  if t in FORMATS and name != "mov":
    exact = [value(x, t) for x in operands]
    if name in CLOSE: return CLOSE[name](float(exact[0]))
    result = FRACTIONS[name](*exact)
    if "sat" in mods: result = min(max(result, Fraction(0)), Fraction(1))
    return nearest(result, t)
  key = next(k for k in (f"{name}.{'.'.join(mods[:2])}", f"{name}.{mods[0]}", name) if k in INTEGERS)
  return INTEGERS[key](*(number(x, k) for x, k in zip(operands, types[1:])), BITS[t])

def same(spelling: str, operands: list[int], got: int) -> bool:
  t, to = spelling.rsplit(".", 1)[1], TYPES[spelling][0]
  if t in PAIRS:
    single = spelling.replace(t, PAIRS[t])
    TYPES.setdefault(single, [PAIRS[t]] * len(TYPES[spelling]))
    return all(same(single, [x >> shift & 0xffff for x in operands], got >> shift & 0xffff) for shift in (0, 16))
  want = expected(spelling, operands)
  if isinstance(want, float):
    return abs(float(value(got, t)) - want) <= max(1, abs(want)) * {"f16": 2 ** -10, "bf16": 2 ** -8}.get(t, 1e-6)
  want &= (1 << BITS[to]) - 1
  zero = t in FORMATS and not want << 1 & ((1 << BITS[t]) - 1)  # a zero's sign is not checked
  return got == want or zero and not got << 1 & ((1 << BITS[t]) - 1)

@pytest.mark.parametrize("name", sorted({x.split(".")[0] for x in ALL}))
def test_instruction_results(results: dict[str, tuple[list[list[int]], list[int]]], name: str) -> None:
  for x in (x for x in ALL if x.split(".")[0] == name):
    for operands, got in zip(*results[x]):
      assert same(x, operands, got), (x, [hex(o) for o in operands], hex(got), expected(x, operands)
                                      if x.rsplit(".", 1)[1] not in PAIRS else "")

# *** what is not in the table

REGISTERS = ".reg .b64 %out, %in, %x<9>;\n.reg .b32 %r<9>;\n.reg .b16 %h<9>;\n.reg .f32 %f<9>;\n.reg .pred %p<9>;\n"

def kernel(name: str, *lines: str) -> str:
  """An entry in which each thread has 8 bytes at [%in] and 8 at [%out]."""
  return f".visible .entry {name}(.param .u64 {name}_0, .param .u64 {name}_1)\n{{\n{REGISTERS}" \
    f"ld.param.u64 %out, [{name}_0];\nld.param.u64 %in, [{name}_1];\nmov.u32 %r0, %tid.x;\n" \
    "mul.wide.u32 %x0, %r0, 8;\nadd.s64 %out, %out, %x0;\nadd.s64 %in, %in, %x0;\n" + "\n".join(lines) + "\nret;\n}\n"

def run(kernels: list[str], data: list[list[int]]) -> list[list[int]]:
  """The results of kernels k0, k1, .. of one module, each on its list of numbers, one a thread."""
  stand_in, found = Card(), []
  for k, given in zip(stand_in.kernels(HEAD + "".join(kernels), [f"k{i}" for i in range(len(kernels))]), data):
    out = np.zeros(len(given), np.uint64)
    at = stand_in.buffer(out)
    stand_in.launch(k, at, stand_in.buffer(np.array([x & (1 << 64) - 1 for x in given], np.uint64)),
                    block=(len(given), 1, 1))
    found.append([int(x) for x in stand_in.read(at, out)])
  return found

NAN, INF = 0x7fc00000, 0x7f800000
CONVERSIONS: tuple[tuple[str, list[int], list[int]], ...] = (
  # saturation, NaN and rounding of floats to integers
  ("cvt.rzi.s32.f32", [0x4f000000, 0xcf800000, NAN, 0xbfc00000], [0x7fffffff, 0x80000000, 0, 0xffffffff]),
  ("cvt.rni.s32.f32", [0x3f000000, 0x3fc00000, 0xbf000000, 0x40200000], [0, 2, 0, 2]),
  ("cvt.rmi.s32.f32", [0xbf000000, 0x3f000000], [0xffffffff, 0]),
  ("cvt.rpi.s32.f32", [0xbf000000, 0x3f000000], [0, 1]),
  ("cvt.rzi.u32.f32", [0xbf800000, 0x4f800000, INF, 0x4f000000], [0, 0xffffffff, 0xffffffff, 0x80000000]),
  ("cvt.rn.f32.s32", [-1, 0x1000001, 7], [0xbf800000, 0x4b800000, 0x40e00000]),
  ("cvt.rn.f32.u32", [0xffffffff, 0x1000003], [0x4f800000, 0x4b800002]),
  ("cvt.rzi.f32.f32", [0xbfc00000, 0x40100000], [0xbf800000, 0x40000000]),
  ("cvt.rna.tf32.f32", [0x3f801000, 0x3f800fff, 0xbf801000], [0x3f802000, 0x3f800000, 0xbf802000]),
  ("cvt.s32.s8", [0x80, 0x7f, 0xff], [0xffffff80, 0x7f, 0xffffffff]),
  ("cvt.u32.u16", [0x12345678], [0x5678]),
)
def test_conversions() -> None:
  got = run([kernel(f"k{i}", "ld.global.b32 %r1, [%in];", f"{how} %r2, %r1;", "st.global.b32 [%out], %r2;")
             for i, (how, _, _) in enumerate(CONVERSIONS)], [data for _, data, _ in CONVERSIONS])
  for numbers, (how, _, want) in zip(got, CONVERSIONS): assert [*map(hex, numbers)] == [*map(hex, want)], how

def test_narrowing_rounds_once() -> None:
  rng, data = np.random.default_rng(3), {}
  for t in ("f16", "bf16"):
    near = [nearest(value(x, t) + Fraction(2) ** -40, "f32") for x in random_bits(rng, t, 32, 3)]
    data[t] = random_bits(rng, "f32", 256, 14) + near
  got = run([kernel(f"k{i}", "ld.global.b32 %r1, [%in];", f"cvt.rn.{t}.f32 %h1, %r1;", "st.global.b16 [%out], %h1;")
             for i, t in enumerate(data)], [*data.values()])
  assert got == [[nearest(value(x, "f32"), t) for x in given] for t, given in data.items()]

PLAIN: dict[str, Callable[[float, float], bool]] = {
  "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
  "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b}
def test_comparisons() -> None:
  """Both results of setp and the result of set, with numbers and with NaN on either side."""
  pairs = [(1.0, 2.0), (2.0, 1.0), (1.0, 1.0), (0.0, -0.0)]
  data = [int(np.array(p, np.float32).view(np.uint64)[0]) for p in pairs] + [NAN, NAN << 32, NAN << 32 | NAN]
  want = {how: [plain(a, b) for a, b in pairs] + [False] * 3 for how, plain in PLAIN.items()}
  want |= {f"{how}u": want[how][:4] + [True] * 3 for how in PLAIN}
  want |= {"num": [True] * 4 + [False] * 3, "nan": [False] * 4 + [True] * 3}
  got = run([kernel(f"k{i}", "ld.global.v2.f32 {%f1, %f2}, [%in];", f"setp.{how}.f32 %p1|%p2, %f1, %f2;",
                    "selp.b32 %r1, 1, 0, %p1;", "@%p2 add.s32 %r1, %r1, 2;", f"set.{how}.u32.f32 %r2, %f1, %f2;",
                    "st.global.v2.b32 [%out], {%r1, %r2};") for i, how in enumerate(want)], [data] * len(want))
  for numbers, (how, true) in zip(got, want.items()):
    assert numbers == [1 | 0xffffffff << 32 if x else 2 for x in true], how

def test_ftz_flushes_subnormals() -> None:
  data = [1, 0x007fffff, 0x00800000]
  got = run([kernel(f"k{i}", "ld.global.f32 %f1, [%in];", f"add{mods}.f32 %f2, %f1, 0f00000000;",
                    "st.global.f32 [%out], %f2;") for i, mods in enumerate((".rn", ".ftz"))], [data, data])
  assert got == [data, [0, 0, 0x00800000]]

@pytest.mark.parametrize("line", [
  "add.rz.f32 %f1, %f1, %f1;", "vadd.s32 %r1, %r1, %r1;", "atom.global.add.u32 %r1, [%in], 1;", "bar.sync 1, 64;",
  "cvt.rz.f32.s32 %f1, %r1;", "add.cc.u32 %r1, %r1, %r1;", "ld.global.b128 %r1, [%in];", "mov.u32 %r1, %clock;",
  "mov.u32 %r1, %nobody;", "call foo;", ".tex .u64 t;"])
def test_unknown_instruction_is_named(line: str) -> None:
  with pytest.raises(PTXError, match=re.escape(f"k: `{line.removesuffix(';')}`")): to_c(HEAD + kernel("k", line))
