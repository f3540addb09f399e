"""isa/table_lookup_gpu: functions of a 4-bit code become table lookups with the same floats as before."""
import random

import pytest
from tests.isa.words import AND_XOR, LEAVES, PERMUTED, number, value
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import Ops, UOp, graph_rewrite
from tinygrad_llm.patches.isa.fields_in_place import EXPONENT, pm_in_place
from tinygrad_llm.patches.isa.int_to_float import BITS
from tinygrad_llm.patches.isa.table_lookup_gpu import pm_look_up

MIDDLE = 2 * EXPONENT + 1 << BITS - 1  # the bits of 1.5 * 2**23

def field(word: UOp, at: int, bits: int) -> UOp:
  return (word.alu(Ops.SHR, number(at)) if at else word).alu(Ops.AND, number((1 << bits) - 1))

def a_float(whole: UOp) -> UOp:
  """A signed integer converted to a float as int_to_float.py does it."""
  return whole.alu(Ops.ADD, number(MIDDLE, dtypes.int32)).bitcast(dtypes.float32).alu(
    Ops.ADD, number(-float(3 << BITS - 1), dtypes.float32))

def polynomial(code: UOp, chance: random.Random) -> UOp:
  """An integer in -128 .. 127 that is a polynomial of a code."""
  whole = code.cast(dtypes.int32)
  for _ in range(2):
    whole = whole.alu(Ops.MUL, number(chance.randint(-9, 9), dtypes.int32)).alu(
      Ops.ADD, number(chance.randint(-99, 99), dtypes.int32))
  return whole.alu(Ops.AND, number(255, dtypes.int32)).alu(Ops.ADD, number(-128, dtypes.int32))

def four_bits(word: UOp, at: int, chance: random.Random) -> UOp:
  """A 4-bit code: a sign, and three bits that select a nibble of a constant."""
  by = field(word, at, 3).alu(Ops.SHL, number(2))
  size = number(chance.getrandbits(32)).alu(Ops.SHR, by).alu(Ops.AND, number(15)).cast(dtypes.int32)
  sign = field(word, at + 3, 1).cast(dtypes.int32).alu(Ops.MUL, number(-2, dtypes.int32)).alu(
    Ops.ADD, number(1, dtypes.int32))
  return size.alu(Ops.MUL, sign)

def test_random_tables() -> None:
  chance = random.Random(3)
  for _ in range(60):
    word, at = chance.choice(LEAVES), 4 * chance.randrange(8)
    whole = polynomial(field(word, at, 4), chance) if chance.random() < 0.5 else four_bits(word, at, chance)
    before = a_float(whole)
    looked = graph_rewrite(before, pm_look_up, ctx=PERMUTED)
    assert looked is not before and sum(u.arg == PERMUTED for u in looked.toposort()) <= 3
    after = graph_rewrite(looked, pm_in_place, ctx=AND_XOR)
    assert (value(looked) == value(before)).all() and (value(after) == value(before)).all()

def test_four_codes_share_one_lookup() -> None:
  values = [a_float(four_bits(LEAVES[0], at, random.Random(1))) for at in range(0, 32, 4)]
  found = [graph_rewrite(u, pm_look_up, ctx=PERMUTED) for u in values]
  assert len({u for f in found for u in f.toposort() if u.arg == PERMUTED}) == 2 * 3

@pytest.mark.parametrize("whole", [
  field(LEAVES[0], 0, 5).cast(dtypes.int32),                                                # five bits
  field(LEAVES[0], 2, 4).cast(dtypes.int32),                                                # bits of two codes
  field(LEAVES[0], 0, 4).alu(Ops.ADD, field(LEAVES[1], 0, 4)).cast(dtypes.int32),           # two words
  field(LEAVES[0], 0, 4).alu(Ops.MUL, number(9)).cast(dtypes.int32),                        # up to 135
  LEAVES[0].cast(dtypes.int32)])
def test_other_expressions_are_no_tables(whole: UOp) -> None:
  assert graph_rewrite(u := a_float(whole), pm_look_up, ctx=PERMUTED) is u
