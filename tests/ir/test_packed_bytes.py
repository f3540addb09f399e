"""ir/packed_bytes: arithmetic on four numbers in the bytes of a word, compared with the numbers one by one."""
import random

import pytest
from tests.support.interpret import Interpreter
from tinygrad import UOp, dtypes
from tinygrad.uop.ops import Ops
from tinygrad_llm.patches.ir.packed_bytes import joined, shifted, signed_byte, spread, with_offset

Q = UOp.variable("q", 0, 15, dtypes.int)

def constant(n: int) -> UOp: return UOp.const(n, dtypes.uint32)
def value(u: UOp) -> int | None: return u.val if u.op is Ops.CONST else None
def bytes_of(word: UOp) -> list[int]: return list(int(Interpreter({}, word).value(word)).to_bytes(4, "little"))
def packed(four: list[int]) -> UOp: return constant(int.from_bytes(bytes(four), "little"))

@pytest.mark.parametrize("op", [Ops.ADD, Ops.OR, Ops.XOR, Ops.AND])
def test_bytewise_operations(op):
  rng = random.Random(str(op))
  for _ in range(50):
    bits = rng.randint(1, 8), rng.randint(1, 8)
    a, b = ([rng.randrange(1 << n) for _ in range(4)] for n in bits)
    made = joined(op, (packed(a), bits[0]), (packed(b), bits[1]))
    if made is None:
      assert op is Ops.ADD and max(bits) == 8
      continue
    wanted = [{Ops.ADD: x + y, Ops.OR: x | y, Ops.XOR: x ^ y, Ops.AND: x & y}[op] for x, y in zip(a, b)]
    assert bytes_of(made[0]) == wanted and max(wanted) < 1 << made[1]
    assert made[1] <= (min(bits) if op is Ops.AND else max(bits) + (op is Ops.ADD))

def test_bytewise_shifts():
  """A shift is allowed as long as no bit leaves its byte."""
  for bits in range(1, 9):
    for by in range(8):
      most = [(1 << bits) - 1] * 4
      made = shifted((packed(most), bits), by, constant)
      assert (made is None) == (bits + by > 8)
      if made is not None: assert bytes_of(made[0]) == [x << by for x in most] and made[1] == bits + by

def test_bits_spread_to_bytes():
  """Bit i goes to byte i, for the lowest four bits."""
  for n in range(256):
    word, bits = spread(constant(n), constant)
    assert bytes_of(word) == [n >> i & 1 for i in range(4)] and bits == 1

def test_integer_offset_is_split_off():
  """float(q) + c splits into q and c if c is an integer."""
  q = Q.cast(dtypes.float)
  assert with_offset(q) == (Q, 0) and with_offset(q + -8.0) == (Q, -8)
  assert with_offset(q + UOp.const(3, dtypes.int).cast(dtypes.float))[1] in (0, 3)
  assert with_offset(q + 0.5) == (None, 0) and with_offset(q * 2.0) == (None, 0) and with_offset(q + q) == (None, 0)
  assert with_offset(UOp.variable("x", 0, 1, dtypes.float) + 1.0) == (None, 0)

def test_signed_byte_match():
  """Only int8(word >> by) matches, with the rest of the word masked or not."""
  word = UOp.variable("w", 0, 2**32 - 1, dtypes.uint32)
  def low(u: UOp) -> UOp: return u.cast(dtypes.uint8).bitcast(dtypes.int8)
  by = constant(8)
  for at in (word.alu(Ops.SHR, by), word.alu(Ops.SHR, by).alu(Ops.AND, constant(255))):
    assert signed_byte(low(at), value) == (word, by) == signed_byte(low(at).cast(dtypes.int), value)
  assert signed_byte(low(word), value) == (word, None)
  assert signed_byte(low(word.alu(Ops.AND, constant(127))), value) is None
  assert signed_byte(word.cast(dtypes.uint8), value) is None
