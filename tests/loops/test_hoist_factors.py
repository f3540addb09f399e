"""loops/hoist_factors: factors that rows share are hoisted to an array; before and after, evaluated by numpy."""
from tests.support.interpret import same
from tests.support.random_sums import LOOPS, OUTPUTS, changed, kernel, kernels, load
from tinygrad import Device
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.loops import hoist_factors

A, B, _ = LOOPS
ROW, COLUMN = OUTPUTS

def shared_factors(sink: UOp) -> UOp: return hoist_factors.share(sink, Device["CPU"].renderer)
def arrays(sink: UOp) -> list[UOp]: return [u for u in sink.toposort() if u.op is Ops.BUFFER]

def test_rewrite_preserves_values():
  """Random sums of products keep their values; some change."""
  assert changed(shared_factors, kernels(150)) > 10

def test_row_invariant_factors_are_hoisted():
  """sum a b: w[row a b] * (x[a b] * y[a b]) --> p[a b] = x[a b] * y[a b] once; sum a b: w[row a b] * p[a b]"""
  of = (load(0, ROW, COLUMN, A, B) * (load(1, A, B) * load(2, A, B))).reduce(A, B, arg=Ops.ADD)
  made = shared_factors(sink := kernel(of))
  assert same(sink, made) and made is not sink
  array, = arrays(made)
  assert array.shape == ((int(A.vmax) + 1) * (int(B.vmax) + 1),)
  filled, = [u for u in made.toposort() if u.op is Ops.STORE and u.src[0].buf_uop is array]
  assert filled.src[1].op is Ops.MUL and not {A, B, ROW, COLUMN} & set(filled.ranges)

def test_other_factors_unchanged():
  """No change: a single load; loads at two indices; a factor for each row; only 8 rows; a maximum."""
  w = load(0, ROW, COLUMN, A, B)
  for value in (w * load(1, A, B), w * (load(1, A, B) * load(2, B, A)), w * (load(1, A, ROW) * load(2, A, ROW))):
    assert shared_factors(sink := kernel(value.reduce(A, B, arg=Ops.ADD))) is sink
  few = (load(0, COLUMN, A, B) * (load(1, A, B) * load(2, A, B))).reduce(A, B, arg=Ops.ADD)
  assert shared_factors(sink := kernel(few)) is sink
  assert shared_factors(sink := kernel((w * (load(1, A, B) * load(2, A, B))).reduce(A, B, arg=Ops.MAX))) is sink
