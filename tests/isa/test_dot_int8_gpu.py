"""isa/dot_int8_gpu: four byte products become one instruction; graphs before and after, evaluated by numpy."""
import random

import pytest
from tests.gpu import gpu_renderers
from tests.support.interpret import same
from tests.support.random_sums import LOOPS, OUTPUTS, kernel
from tinygrad import dtypes
from tinygrad.uop.ops import AxisType, Ops, UOp
from tinygrad_llm.patches.ir.intrinsics import named
from tinygrad_llm.patches.isa.dot_int8_gpu import DOT4, append, run
from tinygrad_llm.patches.isa.table_lookup_gpu import PERMUTE

CUDA = gpu_renderers.named("CUDA")
(A, _, _), (ROW, _) = LOOPS, OUTPUTS
C, C2, THREE = (UOp.range(n, 5 + i, AxisType.UNROLL) for i, n in enumerate((4, 2, 3)))

def word(slot: int, *loops: UOp) -> UOp:
  return UOp.param(slot, dtypes.uint32, (64,)).index(sum((r * 4**i for i, r in enumerate(loops)), UOp.const(0)))
def shift(by: UOp) -> UOp: return by.cast(dtypes.uint32)
def byte(w: UOp, by: UOp) -> UOp:
  return ((w >> shift(by)) & 255).cast(dtypes.uint8).bitcast(dtypes.int8).cast(dtypes.float)
def x(by: UOp = C * 8, high: float = 256) -> UOp: return byte(word(0, A), by) * high + byte(word(1, A), by)
def field(bits: int = 4, by: UOp = C * 8, at: int = 0) -> UOp:
  return (word(2, A, ROW) >> shift(by + at)) & ((1 << bits) - 1)
def total(value: UOp, *loops: UOp) -> UOp: return kernel(value.reduce(*(loops or (A, C)), arg=Ops.ADD))
def dots(sink: UOp) -> list[UOp]: return [u for u in sink.toposort() if named(u.arg) is DOT4]

def test_four_products_become_dp4a():
  """
  sum c in 4: float((w >> 8 * c) & 15) * (256 * high[c] + low[c])
  --> 256 * float(dp4a(w & 0x0f0f0f0f, high)) + float(dp4a(w & 0x0f0f0f0f, low))
  """
  made = run(sink := total(field().cast(dtypes.float) * x()), CUDA)
  assert same(sink, made)
  high, low = sorted(dots(made), key=lambda u: u.src[1].src[0].arg.slot)
  assert high.src[0] is low.src[0] and high.src[0].op is Ops.AND and high.src[0].src[1].val == 0x0f0f0f0f
  assert (high.src[1], low.src[1]) == (word(0, A), word(1, A))
  assert [u.src[1:] for u in made.toposort() if u.op is Ops.REDUCE] == [(A,), (A,)]

def test_weight_offset_becomes_second_dp4a():
  """sum c: (float(q) - 8) * x --> dp4a(q, x) - 8 * dp4a(0x01010101, x)"""
  made = run(sink := total((field().cast(dtypes.float) + -8.0) * x()), CUDA)
  assert same(sink, made) and {u.src[0].vmax for u in dots(made)} >= {0x01010101} and len(dots(made)) == 4

@pytest.mark.parametrize("weight", [
  field(8), field(3, at=5), field(4) | (field(2, at=4) << 4),     # all bits of a byte; its high bits; two fields
  field(1, by=C, at=9) << 3, field(4) ^ 8])                       # four consecutive bits; a flipped bit
def test_weight_expressions_become_dp4a(weight):
  made = run(sink := total(weight.cast(dtypes.float) * x()), CUDA)
  assert same(sink, made) and len(dots(made)) in (2, 4)

def test_table_lookup_feeds_dp4a():
  """sum c: float(f(q[c])) * x[c], f of 16 codes --> dp4a(prmt(table, q), x)"""
  code = field().cast(dtypes.int)
  made = run(sink := total((code * code - 100).cast(dtypes.float) * x()), CUDA)
  assert same(sink, made) and any(named(u.arg) is PERMUTE for u in made.toposort())

def test_activation_sum_becomes_dp4a():
  """sum c: x[c] --> dp4a(0x01010101, x)"""
  assert same(sink := total(x()), made := run(sink, CUDA)) and len(dots(made)) == 2

def test_random_weights():
  rng, changed = random.Random(4), 0
  for seed in range(60):
    by = rng.choice((C * 8, C * 8, C * 4, C, C * 8 + C2))
    w = field(rng.randint(1, 5), by, rng.randint(0, 5))
    if rng.random() < 0.5: w = rng.choice((w + field(2), w | (field(2) << rng.randint(0, 7)), w ^ 5))
    loops = (A, C, C2) if C2 in w.ranges else (A, C)
    made = run(sink := total((w.cast(dtypes.float) + float(rng.choice((0, -4)))) * x(), *loops), CUDA)
    assert same(sink, made), seed
    changed += made is not sink
  assert 10 < changed < 50

@pytest.mark.parametrize("sink", [
  total(field().cast(dtypes.float) * x(high=128)), total(field().cast(dtypes.float) * x(C * 4)),
  total(field(4, at=5).cast(dtypes.float) * x()),                                # bits across two bytes
  total((field(8) + field(2)).cast(dtypes.float) * x()),                         # 9 bits
  total((field().cast(dtypes.float) + -0.5) * x()),                              # a fractional offset
  total(field(by=THREE * 8).cast(dtypes.float) * x(THREE * 8), A, THREE),        # three bytes
  kernel((field().cast(dtypes.float) * x()).reduce(A, C, arg=Ops.MAX)), total(byte(word(1, A), C * 8))])
def test_other_sums_unchanged(sink): assert run(sink, CUDA) is sink

def test_not_applied_without_dp4a():
  sink = total(field().cast(dtypes.float) * x())
  assert run(sink, gpu_renderers.named("Metal")) is sink

def test_dp4a_accumulates_addend():
  """dp4a(a, b, 0) + y --> dp4a(a, b, y)"""
  a, b = word(0), word(1)
  y = UOp.param(3, dtypes.int, (1,)).index(UOp.const(0))
  one = UOp(Ops.CUSTOM, dtypes.int, (a, b, UOp.const(0, dtypes.int)), DOT4.text(CUDA))
  made = append(UOp.sink(one + y), CUDA)
  assert made.src[0] is one.replace(src=(a, b, y)) and same(one + y, made.src[0])
  two = append(UOp.sink(one.replace(src=(b, a, y)) + y), CUDA).src[0]
  assert two is one.replace(src=(b, a, y.alu(Ops.ADD, y))) and same(one.replace(src=(b, a, y)) + y, two)
