"""isa/fields_in_place: any bit fields become the same floats as before, with no more operations."""
import random

import pytest
from tests.isa.words import AND_XOR, LEAVES, number, value
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import Ops, UOp, graph_rewrite
from tinygrad_llm.patches.isa.fields_in_place import BITS, EXPONENT, fields, pm_in_place

def weight(chance: random.Random) -> UOp:
  """A float made from one to three fields, with flipped bits and a subtracted integer."""
  bits, found = 0, None
  for _ in range(chance.choice((1, 1, 2, 3))):
    wide = chance.randint(1, min(8, BITS - bits - 1))
    down = chance.randint(0, 32 - wide)
    u = chance.choice(LEAVES)
    if down: u = u.alu(Ops.SHR, number(down))
    u = u.alu(Ops.AND, number((1 << wide) - 1))
    if bits: u = u.alu(Ops.SHL, number(bits))
    found, bits = u if found is None else found.alu(Ops.OR, u), bits + wide
  if chance.random() < 0.5: found = found.alu(Ops.XOR, number(chance.randrange(1 << bits)))
  found = found.alu(Ops.OR, number(EXPONENT << BITS)).bitcast(dtypes.float32)
  return found.alu(Ops.ADD, number(-float(1 << BITS) - chance.randint(0, 200), dtypes.float32))

def operations(u: UOp) -> int:
  return sum(u.op in (Ops.SHL, Ops.SHR, Ops.AND, Ops.CUSTOMI) for u in u.toposort())

@pytest.mark.parametrize("spelled", [AND_XOR, None])
def test_random_fields(spelled) -> None:
  chance, moved = random.Random(7), 0
  for _ in range(300):
    before = weight(chance)
    after = graph_rewrite(before, pm_in_place, ctx=spelled)
    assert (value(after) == value(before)).all(), before
    moved += operations(after) < operations(before)
    assert operations(after) <= operations(before) + any(s.op is Ops.CUSTOMI for s in after.toposort())
  assert moved > 100

def test_fields_of_a_word_share_one_shift() -> None:
  word, magic = LEAVES[0], number(EXPONENT << BITS)
  def one(at: int, wide: int) -> UOp:
    field = word.alu(Ops.SHR, number(at)) if at else word
    field = field.alu(Ops.AND, number((1 << wide) - 1)).alu(Ops.OR, magic).bitcast(dtypes.float32)
    return field.alu(Ops.ADD, number(-float(1 << BITS), dtypes.float32))
  for wide in (4, 8):
    found = [graph_rewrite(one(at, wide), pm_in_place, ctx=AND_XOR) for at in range(0, 32, wide)]
    assert len({u for f in found for u in f.toposort() if u.op is Ops.SHR}) == 1

def test_other_expressions_are_no_fields() -> None:
  """No change: overlapping fields, added fields, a float with another exponent."""
  a, b = (u.alu(Ops.AND, number(15)) for u in LEAVES[:2])
  assert fields(a.alu(Ops.OR, b)) is None and fields(a.alu(Ops.ADD, b)) is None
  assert fields(a.alu(Ops.OR, number(1))) is None
  other = a.alu(Ops.OR, number(EXPONENT + 1 << BITS)).bitcast(dtypes.float32).alu(Ops.ADD, number(-1.0, dtypes.float32))
  assert graph_rewrite(other, pm_in_place, ctx=AND_XOR) is other
