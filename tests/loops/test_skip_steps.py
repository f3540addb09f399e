"""loops/skip_steps: skips iterations whose results are not stored; graphs before and after, evaluated by numpy."""
import pytest
from tests.gpu import gpu_renderers
from tests.support.interpret import arrays_for, results, same
from tests.support.random_sums import LOOPS, OUT, OUTPUTS, SIZE, load
from tinygrad import Device, dtypes
from tinygrad.uop.ops import AxisType, KernelInfo, Ops, UOp
from tinygrad_llm.patches.ir.indices import while_true
from tinygrad_llm.patches.loops.skip_steps import run

A = LOOPS[0]
ROW, COLUMN = OUTPUTS

def kernel(row: UOp, condition: UOp | None, value: UOp | None = None) -> UOp:
  """A kernel that stores a row only if a condition holds."""
  value = load(0, A, row, COLUMN).reduce(A, arg=Ops.ADD) if value is None else value
  place = row * 8 + COLUMN
  out = UOp.param(OUT, dtypes.float, (SIZE,))
  store = out.index(place if condition is None else place.valid(condition)).store(value)
  return UOp.sink(store.end(COLUMN).end(row), arg=KernelInfo())

def skipped(sink: UOp) -> UOp: return run(sink, Device["CPU"].renderer)

@pytest.mark.parametrize("condition", [ROW < 3, UOp.param(5, dtypes.int, (8,)).index(ROW) < 1])
def test_iteration_without_store_is_skipped(condition):
  """for row: y = ..; if c(row): store y --> for row: if not c(row): continue; y = ..; store y"""
  made = skipped(sink := kernel(ROW, condition))
  custom, = [u for u in made.toposort() if u.op is Ops.CUSTOM]
  assert custom.arg == "({{ if (!{0}) continue; {1}; }})" and custom.src[0] is condition
  store, = [u for u in made.toposort() if u.op is Ops.STORE]
  step = while_true(condition, ROW, "continue")
  assert store.src[0].src[1].get_valid().op is Ops.CONST and store.src[0].src[1] is step * 8 + COLUMN
  assert store.src[1] is load(0, A, ROW, COLUMN).reduce(A, arg=Ops.ADD).substitute({ROW: step}, walk=True)
  assert same(sink, made)
  arrays = arrays_for(sink)
  assert any((after != before).any() for after, before in zip(results(sink, arrays), arrays.values()))

def test_clauses_that_follow_from_others_are_left_out():
  """c(row) and (y > 0 or c(row)) --> c(row), as a comparison of what is not stored everywhere leaves it"""
  c, other = UOp.param(5, dtypes.int, (8,)).index(ROW) < 1, load(1, ROW, COLUMN) < 0.5
  made = skipped(sink := kernel(ROW, (other | c) & c))
  assert made is skipped(kernel(ROW, c)) and same(sink, made)
  assert skipped(sink := kernel(ROW, other & c)) is sink

def test_other_loops_unchanged():
  """No change: no condition; a condition on two loops or on none; a loop of threads; two stores; a GPU."""
  thread = UOp.range(4, 0, AxisType.THREAD)
  n = UOp.param(5, dtypes.int, (8,)).index(UOp.const(0))
  two = [kernel(ROW, ROW < 3).src[0], kernel(ROW, ROW < 2, load(1, ROW)).src[0]]
  for sink in (kernel(ROW, None), kernel(ROW, ROW < COLUMN), kernel(ROW, n < 1), kernel(thread, thread < 3),
               UOp.sink(*two, arg=KernelInfo())):
    assert skipped(sink) is sink
  assert run(sink := kernel(ROW, ROW < 3), gpu_renderers.named("CUDA")) is sink
