"""loops/merge_fields: a packed word's field takes one shift and one mask; before and after, evaluated by numpy."""
import random

import pytest
from tests.gpu import gpu_renderers
from tests.support.interpret import same
from tinygrad import Device, dtypes
from tinygrad.uop.ops import AxisType, Ops, UOp, graph_rewrite
from tinygrad_llm.patches.loops.merge_fields import pm_fields, run

THREAD, UNROLLED = UOp.range(4, 0, AxisType.LOCAL), UOp.range(4, 1, AxisType.UNROLL)

def number(n: int) -> UOp: return UOp.const(n, dtypes.uint32)
def word(slot: int = 0, *loops: UOp) -> UOp:
  return UOp.param(slot, dtypes.uint32, (64,)).index(sum((r * 4**i for i, r in enumerate(loops)), UOp.const(0)))

W = word()

def field(x: UOp, wide: int, by: UOp, narrow: int) -> UOp:
  return ((x & number(wide)) >> by) & number(narrow)

def merged(u: UOp) -> UOp: return graph_rewrite(u, pm_fields)

def test_nested_masks_are_merged():
  """((w & 0xff) >> 4) & 15 --> (w >> 4) & 15"""
  assert merged(field(W, 0xff, number(4), 15)) is (W >> number(4)) & 15

def test_nested_shifts_are_merged():
  """(((w >> 8) & 0xff) >> 4) & 15 --> (w >> 12) & 15"""
  made = merged(before := field(W >> number(8), 0xff, number(4), 15))
  assert same(before, made) and [u.src[1].vmax for u in made.toposort() if u.op is Ops.SHR] == [12]

def test_thread_dependent_shift_comes_first():
  """w >> (unrolled + 8 * thread) --> (w >> 8 * thread) >> unrolled"""
  by = (UNROLLED + THREAD * 8).cast(dtypes.uint32)
  made = merged(before := word(0, THREAD) >> by)
  assert made.src[0].op is Ops.SHR and set(made.src[0].src[1].ranges) == {THREAD}
  assert set(made.src[1].ranges) == {UNROLLED} and same(before, made)

def test_disjoint_add_becomes_or():
  """(a & 15) + (b << 4) --> (a & 15) | (b << 4)"""
  low, high = W & number(15), word(1) & number(3)
  assert merged(low + (high << number(4))) is low | (high << number(4))

def test_random_fields():
  """Nested fields keep their values, and lose operations if the inner mask covers all bits of the outer one."""
  rng, fewer = random.Random(1), 0
  for seed in range(150):
    first, second = rng.randint(0, 31), rng.randint(0, 12)
    by = number(second) if seed % 2 else (UNROLLED * rng.randint(1, 3) + THREAD).cast(dtypes.uint32)
    before = field(word(0, UNROLLED) >> number(first), (1 << rng.randint(1, 16)) - 1, by, (1 << rng.randint(1, 8)) - 1)
    after = merged(before + (word(1) << number(rng.randint(1, 9))))
    assert same(before + (word(1) << after.src[1].src[1]), after), seed
    fewer += sum(u.op is Ops.AND for u in after.toposort()) < 2
  assert 20 < fewer < 130

@pytest.mark.parametrize("before", [
  field(W, 0xff, number(5), 15),             # bit 8 of the outer field is masked off
  field(W, 0xff, (THREAD * 4).cast(dtypes.uint32), 15),  # for some threads bits are masked off
  field(W, 0xf0, number(4), 15),             # not a mask of low bits
  (W >> number(20)) >> number(12),           # 32 bits together; a single shift by 32 would not clear the word
  (W & number(31)) + (word(1) << number(4)), # both have bit 4
  ((W & number(0xff)).cast(dtypes.int) >> 4) & 15])
def test_other_fields_unchanged(before): assert merged(before) is before

def test_not_applied_on_cpu():
  sink = UOp.sink(field(W, 0xff, number(4), 15))
  assert run(sink, Device["CPU"].renderer) is sink is not run(sink, gpu_renderers.named("CUDA"))
