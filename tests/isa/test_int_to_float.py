"""isa/int_to_float: small integers become floats by magic numbers; graphs before and after, evaluated by numpy."""
import random

import pytest
from tests.gpu import gpu_renderers
from tests.support.interpret import same
from tests.support.random_sums import OUTPUTS, kernel, load
from tinygrad import Device, dtypes
from tinygrad.uop.ops import AxisType, Ops, UOp
from tinygrad_llm.patches.isa.int_to_float import BITS, int_to_float, run

K = UOp.range(8, 5, AxisType.REDUCE)
WORD = UOp.param(4, dtypes.uint32, (64,)).index(OUTPUTS[0] * 8 + K)
CUDA = gpu_renderers.named("CUDA")

def floated(q: UOp) -> UOp | None: return int_to_float({}, q)
def masked(bits: int) -> UOp: return WORD & ((1 << bits) - 1)
def signed(q: UOp) -> UOp: return q.cast(dtypes.int)

@pytest.mark.parametrize("bits", [1, 4, 8, BITS])
def test_unsigned_field_uses_exponent_trick(bits):
  """float(q), 0 <= q < 2**23 --> as_float(q | bits(2**23)) - 2**23"""
  made = floated(q := masked(bits))
  assert made is (q | 0x4b000000).bitcast(dtypes.float32) - float(1 << 23) and same(q.cast(dtypes.float), made)

def test_signed_number_uses_exponent_trick():
  """float(q), -2**22 <= q < 2**22 --> as_float(q + bits(1.5 * 2**23)) - 1.5 * 2**23"""
  made = floated(q := signed(masked(4)) - 8)
  assert made is (q + 0x4b400000).bitcast(dtypes.float32) - 1.5 * (1 << 23) and same(q.cast(dtypes.float), made)

def test_range_from_all_field_values():
  """float(((w & 1) * 2 - 1) * (w & 7)), which is in -7 .. 7"""
  q = (signed(masked(1)) * 2 - 1) * signed(masked(3))
  assert (made := floated(q)) is not None and same(q.cast(dtypes.float), made)

@pytest.mark.parametrize("q", [
  masked(BITS + 1), masked(BITS) + 1, WORD, WORD >> 8, masked(12) * masked(12),  # 2**23 and above
  signed(masked(22)) - (1 << 22) - 1, signed(masked(23)) - 8,       # beyond the signed range
  (WORD.bitcast(dtypes.int) >> 9) - 1, (K + 1).cast(dtypes.int)])               # beyond it, too; not loaded
def test_other_conversions_unchanged(q): assert floated(q) is None

def test_smallest_signed_number_that_fits():
  """The smallest signed number that fits is -2**22."""
  assert same((q := signed(masked(22)) - (1 << 22)).cast(dtypes.float), floated(q))

@pytest.mark.parametrize(("q", "fits"), [
  (signed(WORD) >> 9, True), (signed(WORD) >> 8, False), ((signed(WORD) >> 9) + 1, False),
  (WORD.cast(dtypes.int8).cast(dtypes.int) >> 2, True), (WORD.cast(dtypes.int16).cast(dtypes.int), True)])
def test_casts_that_wrap(q, fits):
  """A word cast to int is negative where its first bit is set."""
  made = floated(q)
  assert same(q.cast(dtypes.float), made) if fits else made is None

def test_random_casts():
  """Fields that casts wrap to fewer bits or another sign, and arithmetic on them, keep their values."""
  rng, changed = random.Random(11), 0
  narrow = (dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16, dtypes.int)
  for seed in range(200):
    q = WORD >> rng.randint(0, 24)
    for _ in range(rng.randint(1, 4)):
      q = rng.choice((q.cast(rng.choice(narrow)), q >> rng.randint(1, 9), q & rng.randint(1, 127),
                      q + rng.randint(1, 50), q * rng.randint(1, 3)))
    if (made := floated(q)) is not None: assert same(q.cast(dtypes.float), made), seed
    changed += made is not None
  assert changed > 100

def test_random_fields():
  """Joined, shifted, multiplied and subtracted fields keep their values; most are changed."""
  rng, changed = random.Random(3), 0
  for seed in range(150):
    q = (WORD >> rng.randint(0, 20)) & ((1 << rng.randint(1, 12)) - 1)
    for _ in range(rng.randint(0, 3)):
      other = masked(rng.randint(1, 9))
      q = rng.choice((q + other, q | other, q ^ other, (q & 255) * (other & 15), (q & 1023) << rng.randint(0, 9)))
    if rng.random() < 0.5: q = signed(q) - rng.randint(1, 300)
    if (made := floated(q)) is not None: assert same(q.cast(dtypes.float), made), seed
    changed += made is not None
  assert changed > 70

def test_conversions_in_sums():
  """sum k: float(q) * x[k] is changed; sum k: float(q) is not, or it would add up the large magic numbers."""
  q = masked(4).cast(dtypes.float)
  product, alone = (kernel(v.reduce(K, arg=Ops.ADD)) for v in (q * load(0, K), q))
  assert same(product, made := run(product, CUDA)) and any(u.op is Ops.BITCAST for u in made.toposort())
  assert run(alone, CUDA) is alone and run(product, Device["CPU"].renderer) is product
