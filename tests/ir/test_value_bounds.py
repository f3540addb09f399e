"""ir/value_bounds: exact bounds of the numbers that a few bits stand for."""
import operator
import random
from tinygrad import dtypes
from tinygrad.uop.ops import UOp
from tinygrad_llm.patches.ir.indices import evaluate
from tinygrad_llm.patches.ir.value_bounds import MOST, bounds

E2M1 = [0, 1, 2, 3, 4, 6, 8, 12]
OPERATIONS = (operator.add, operator.sub, operator.mul, operator.and_, operator.or_, operator.xor)

def word(slot: int = 0) -> UOp: return UOp.param(slot, dtypes.uint32, (16,)).index(UOp.const(0))

def field(of: UOp, shift: int, bits: int) -> UOp: return ((of >> shift) & ((1 << bits) - 1)).cast(dtypes.int)

def drawn(rng: random.Random, leaves: list[UOp], depth: int) -> UOp:
  if depth == 0 or rng.random() < 0.2: return rng.choice([*leaves, UOp.const(rng.randint(-9, 9), dtypes.int)])
  return rng.choice(OPERATIONS)(*[drawn(rng, leaves, depth - 1) for _ in range(2)])

def test_codes_of_4_bit_floats():
  """A sign that XOR and a sum apply makes interval arithmetic give up; the codes stand for -12 to 12."""
  code = (word() >> 4) & 15
  size, minus = ((0xC8643210 >> ((code & 7) << 2)) & 15).cast(dtypes.int), (code >> 3).cast(dtypes.int)
  value = (size ^ -minus) + minus + 12
  assert value.vmin < 0 and bounds(value) == (12 - max(E2M1), 12 + max(E2M1))

def test_bounds_are_reached_by_functions_of_one_field():
  rng, tighter = random.Random(1), 0
  for _ in range(300):
    leaf = field(word(), rng.randint(0, 28), bits := rng.randint(1, 4))
    value = drawn(rng, [leaf], 3)
    found = [int(evaluate(value, {leaf: n})) for n in range(1 << bits)]
    assert bounds(value) == (min(found), max(found))
    tighter += (min(found), max(found)) != (value.vmin, value.vmax)
  assert tighter > 30

def test_bounds_hold_for_all_words():
  """Fields of one word may overlap: what they are together is within the bounds of what each may be."""
  rng = random.Random(2)
  for _ in range(100):
    of = word()
    value = drawn(rng, [field(of, rng.randint(0, 6), rng.randint(1, 3)) for _ in range(2)], 3)
    least, most = bounds(value)
    for _ in range(20): assert least <= evaluate(value, {of: rng.randrange(1 << 32)}) <= most

def test_other_values_keep_their_intervals():
  """A whole word, and more combinations of bits than are tried, have the bounds of interval arithmetic."""
  wide = word().cast(dtypes.int) + 1
  many = sum([field(word(slot), 0, 4) for slot in range(1, 3)], field(word(), 0, 4))
  assert MOST < 16 ** 3
  for value in (wide, many): assert bounds(value) == (value.vmin, value.vmax)
