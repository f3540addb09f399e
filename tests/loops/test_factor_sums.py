"""loops/factor_sums: a flat sum of products becomes nested sums; graphs before and after, evaluated by numpy."""
import pytest
from tests.loops.test_hoist_factors import shared_factors
from tests.loops.test_hoist_sums import shared_sums
from tests.support.interpret import same
from tests.support.random_sums import LOOPS, OUTPUTS, changed, kernel, kernels, load
from tinygrad.uop.ops import AxisType, Ops, UOp, graph_rewrite
from tinygrad_llm.patches.ir.loop_ends import split_loops
from tinygrad_llm.patches.loops import factor_sums

A, B, C = LOOPS
ROW, COLUMN = OUTPUTS

def nested(sink: UOp) -> UOp: return split_loops(graph_rewrite(sink, factor_sums.pm_nest))
def all_of_them(sink: UOp) -> UOp: return nested(shared_factors(shared_sums(sink)))

@pytest.mark.parametrize("run", [nested, all_of_them])
def test_rewrite_preserves_values(run):
  """Random sums of products keep their values; some change."""
  assert changed(run, kernels(80)) > 10

def test_factor_moves_out_of_sum():
  """sum a b: x[a] * y[a b] --> sum a: x[a] * (sum b: y[a b])"""
  sink = kernel((load(0, A, ROW) * load(1, A, B, COLUMN)).reduce(A, B, arg=Ops.ADD))
  wanted = (load(0, A, ROW) * load(1, A, B, COLUMN).reduce(B, arg=Ops.ADD)).reduce(A, arg=Ops.ADD)
  assert nested(sink) is kernel(wanted)

def test_factors_at_three_levels():
  """sum a b c: d[a] * s[a b] * q[a b c] --> sum a: d[a] * (sum b: s[a b] * (sum c: q[a b c]))"""
  d, s, q = load(0, A, ROW), load(1, A, B, ROW), load(2, A, B, C, ROW)
  made = nested(sink := kernel((d * s * q).reduce(A, B, C, arg=Ops.ADD)))
  inner = s * q.reduce(C, arg=Ops.ADD)
  assert made is kernel((d * inner.reduce(B, arg=Ops.ADD)).reduce(A, arg=Ops.ADD)) and same(sink, made)

def test_loop_independent_term_is_multiplied():
  """sum a b: x[a] + y[a b] --> sum a: x[a] * 4 + (sum b: y[a b])"""
  sink = kernel((load(0, A, ROW) + load(1, A, B, COLUMN)).reduce(A, B, arg=Ops.ADD))
  assert same(sink, made := nested(sink)) and made is not sink
  assert any(u.op is Ops.CONST and u.val == 4 for u in made.toposort())

def test_group_threads_stay_outermost():
  """sum a, thread: x[thread] * y[a thread] --> sum thread: x[thread] * (sum a: y[a thread])"""
  thread = UOp.range(4, 9, AxisType.GROUP_REDUCE)
  x, y = load(0, thread, ROW), load(1, A, thread, COLUMN)
  made = nested(sink := kernel((x * y).reduce(A, thread, arg=Ops.ADD)))
  assert same(sink, made)
  top, = [u for u in made.toposort() if u.op is Ops.REDUCE and thread in u.src[1:]]
  assert top.src[1:] == (thread,) and made is not sink
  left = kernel((load(0, A, ROW) * load(1, A, thread, COLUMN)).reduce(A, thread, arg=Ops.ADD))
  assert nested(left) is left  # not sum a: x[a] * (sum thread: y[a thread])

def test_other_sums_unchanged():
  """No change: all factors depend on all loops; a maximum; a loop of symbolic length."""
  n = UOp.variable("n", 1, 4)
  symbolic = UOp.range(n, 9, AxisType.REDUCE)
  for sink in (kernel((load(0, A, B, ROW) * load(1, A, B)).reduce(A, B, arg=Ops.ADD)),
               kernel((load(0, A, ROW) * load(1, A, B)).reduce(A, B, arg=Ops.MAX)),
               kernel((load(0, A, ROW) * load(1, A, symbolic)).reduce(A, symbolic, arg=Ops.ADD))):
    assert graph_rewrite(sink, factor_sums.pm_nest) is sink

def test_sums_share_a_loop():
  """for a: x; for a, thread: y --> for a: x, y"""
  thread = UOp.range(4, 9, AxisType.LOCAL)
  out = UOp.placeholder((64,), A.dtype, 0)
  ends = [out.index(at).store(UOp.const(1)).end(A).replace(tag="mergeable") for at in (A, A + thread)]
  made = factor_sums.join_ends(UOp.sink(*ends))
  end, = set(made.src)
  assert end.op is Ops.END and end.src[1:] == (A,) and set(end.src[0].src) == {e.src[0] for e in ends}
  assert factor_sums.join_ends(UOp.sink(*(e.replace(tag=None) for e in ends))) is None

def test_data_detects_wrong_rewrites():
  """The test's arrays distinguish sums that differ in one loop, sign or factor."""
  good = kernel((load(0, A, ROW) * load(1, A, B, COLUMN)).reduce(A, B, arg=Ops.ADD))
  for bad in ((load(0, A, ROW) * load(1, A, B, COLUMN)).reduce(A, arg=Ops.ADD).reduce(C, B, arg=Ops.ADD),
              (load(0, A, ROW) * load(1, A, B, COLUMN) * -1).reduce(A, B, arg=Ops.ADD),
              (load(0, ROW, A) * load(1, A, B, COLUMN)).reduce(A, B, arg=Ops.ADD)):
    assert not same(good, kernel(bad))
