"""graph/clamps: moves bounds from a materialised value to its readers; graphs before and after, evaluated by numpy."""
import numpy as np
import pytest
from tests.support.interpret import Interpreter, same
from tests.support.random_sums import stage
from tinygrad import dtypes
from tinygrad.uop.ops import UOp, graph_rewrite
from tinygrad_llm.patches.graph import clamps

R = UOp.range(8, 0)
X = UOp.param(0, dtypes.int, (8,)).index(R)

def bounded(u: UOp) -> UOp: return graph_rewrite(u, clamps.pm_bounds)

@pytest.mark.parametrize("most", [-2, 0, 5])
def test_minimum_becomes_negated_maximum(most):
  """c < x ? c : x --> -max(-x, -c), whose bounds tinygrad knows"""
  c = UOp.const(most, dtypes.int)
  after = bounded(before := (c < X).where(c, X))
  assert after is not before and after.vmax == most
  ids = {0: np.arange(-4, 4)}
  assert Interpreter(ids, after).value(after).ravel().tolist() == np.minimum(ids[0], most).tolist()

def test_lower_bound_moves_to_readers():
  """store max(x, 2); read it --> store x; max(read it, 2)"""
  after = bounded(before := stage(X.maximum(2), R).index(UOp.range(8, 1)))
  assert after is stage(X, R).index(UOp.range(8, 1)).maximum(2) and after.vmin == 2
  assert same(before, after)

def test_lower_and_upper_bound_move_to_readers():
  """store max(min(x, 5), 0); read it --> store -max(-x, -5); max(read it, 0)"""
  most = UOp.const(5, dtypes.int)
  after = bounded(before := stage((most < X).where(most, X).maximum(0), R).index(UOp.range(8, 1)))
  assert after is stage((X * -1).maximum(-most) * -1, R).index(UOp.range(8, 1)).maximum(0)
  assert after.vmin == 0 and same(before, after, arrays={0: np.arange(-4, 12, 2)})

def test_other_selects_unchanged():
  """No change: a maximum of two values or of floats, a choice between other values, and the larger of two."""
  y, f = UOp.param(1, dtypes.int, (8,)).index(R), UOp.param(2, dtypes.float, (8,)).index(R)
  c, d = UOp.const(3, dtypes.int), UOp.const(4, dtypes.int)
  choices = (c < X).where(d, X), (X < c).where(c, X)  # noqa: SIM300
  for u in (stage(X.maximum(y), R).index(R), stage(f.maximum(2.0), R).index(R), *choices):
    assert bounded(u) is u
