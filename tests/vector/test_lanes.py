"""vector/lanes: adjacent elements of a sum become lanes; graphs before and after, evaluated by numpy."""
import pytest
from tests.support.interpret import same
from tests.support.random_sums import LOOPS, OUTPUTS, kernel, load
from tinygrad.uop.ops import AxisType, Ops, UOp, graph_rewrite
from tinygrad_llm.patches.ir.builder import is_lanes
from tinygrad_llm.patches.vector import lanes

A, ROW = LOOPS[0], OUTPUTS[0]

@pytest.mark.parametrize("sizes", [(16,), (4, 4), (32,), (2, 8, 2), (2, 16), (64,)])
def test_sum_elements_become_lanes(sizes):
  """sum k: w[k] * x[k], unrolled --> sum lane of 16: (sum k / 16: ..)"""
  unrolled = [UOp.range(n, 10 + i, AxisType.UNROLL) for i, n in enumerate(sizes)]
  value = (load(0, *unrolled, A) * load(1, *unrolled, ROW) + load(2, A)).reduce(A, *unrolled, arg=Ops.ADD)
  sink = kernel(value)
  made = graph_rewrite(sink, lanes.pm_pull_lanes)
  assert same(sink, made)
  lane, = [r for r in made.toposort() if r.op is Ops.RANGE and is_lanes(r)]
  assert int(lane.vmax) + 1 == 16
