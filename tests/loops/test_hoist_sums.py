"""loops/hoist_sums: partial sums that rows share are hoisted to an array; before and after, evaluated by numpy."""
import pytest
from tests.loops.test_hoist_factors import arrays
from tests.support.interpret import same, steps
from tests.support.random_sums import LOOPS, OUT, OUTPUTS, SIZE, changed, kernel, kernels, load
from tinygrad import Device, dtypes
from tinygrad.uop.ops import AxisType, KernelInfo, Ops, UOp, graph_rewrite
from tinygrad_llm.patches.loops import factor_sums, hoist_sums

A, B, C = LOOPS
ROW, COLUMN = OUTPUTS

def shared_sums(sink: UOp) -> UOp: return hoist_sums.share(sink, Device["CPU"].renderer)

def test_rewrite_preserves_values():
  """Random sums of products keep their values; some change."""
  assert changed(shared_sums, kernels(150)) > 10

def test_row_invariant_sum_is_hoisted():
  """sum a b: w[row a] * x[a b] for each row --> s[a] = sum b: x[a b] once; sum a: w[row a] * s[a]"""
  of = (load(0, ROW, COLUMN, A) * load(1, A, B)).reduce(A, B, arg=Ops.ADD)
  made = shared_sums(sink := kernel(of))
  assert same(sink, made) and made is not sink
  array, = arrays(made)
  assert array.shape == (int(A.vmax) + 1,)
  assert steps(graph_rewrite(made, factor_sums.pm_nest)) < steps(sink) / 2

def test_one_of_two_terms_is_hoisted():
  """sum a b: w[row a b] * x[a b] - m[row a] * x[a b] --> t[a] = sum b: x[a b]; sum a b: w * x - m[row a] * t[a] / 4"""
  w, m, x = load(0, ROW, COLUMN, A, B), load(1, ROW, A), load(2, A, B)
  made = shared_sums(sink := kernel((w * x + m * x * -1.0).reduce(A, B, arg=Ops.ADD)))
  assert same(sink, made) and [array.shape for array in arrays(made)] == [(2,)]
  assert any(u.op is Ops.CONST and u.val == 1 / 4 for u in made.toposort())

def test_scale_of_a_group_goes_with_its_sum():
  """sum a b: m[row a] * s[a] * x[a b] --> t[a] = s[a] * sum b: x[a b]; sum a: m[row a] * t[a]"""
  m, s, x = load(0, ROW, COLUMN, A), load(1, A), load(2, A, B)
  made = shared_sums(sink := kernel((m * s * x).reduce(A, B, arg=Ops.ADD)))
  array, = arrays(made)
  assert same(sink, made) and array.shape == (int(A.vmax) + 1,)
  red, = [u for u in made.toposort() if u.op is Ops.REDUCE and A in u.src[1:]]
  slots = {u.src[0].arg.slot for u in red.toposort(lambda u: u.op is not Ops.AFTER)
           if u.op is Ops.INDEX and u.src[0].op is Ops.PARAM}
  assert slots == {0}

@pytest.mark.parametrize("loaded", [False, True])
def test_array_is_made_in_a_loop_around_the_rows(loaded):
  """
  for pair: for row: sum a b: w[pair row a] * x[pair a b] --> for pair: t[a] = sum b: x[pair a b]; for row: ..

  Not for a loop inside of the loop over rows: each row would make the array again. Not for one that w lacks, as tokens.
  """
  out = UOp.param(OUT, dtypes.float, (SIZE,))
  for outside, shared in ((True, False), (False, False), (True, True)):
    pair, row = (UOp.range(n, i if outside else 1 - i, AxisType.WEAK) for i, n in enumerate((2, 16)))
    x = load(1, A, B, pair)
    number = UOp.param(6, dtypes.int, (8,)).index(pair) % 4
    if loaded: x = UOp.param(1, dtypes.float, (SIZE,)).index(A * 4 + B + number * 8)
    value = (load(0, *[pair] * (not shared), row, A) * x).reduce(A, B, arg=Ops.ADD)
    sink = UOp.sink(out.index(pair * 16 + row).store(value).end(row).end(pair), arg=KernelInfo())
    made = shared_sums(sink)
    is_made = outside and not shared
    assert (made is not sink) == is_made and same(sink, made)
    assert [array.shape for array in arrays(made)] == [(2,)] * is_made

def test_other_sums_unchanged():
  """No change: a sum for each row; 3 iterations, as 1/3 is inexact; only 8 rows; 4 rows for 8 tokens each."""
  own = (load(0, ROW, COLUMN, A) * load(1, A, B, ROW)).reduce(A, B, arg=Ops.ADD)
  thirds = (load(0, ROW, COLUMN, A) * load(1, A, C)).reduce(A, C, arg=Ops.ADD)
  few = (load(0, COLUMN, A) * load(1, A, B)).reduce(A, B, arg=Ops.ADD)
  token = UOp.range(8, 20, AxisType.UPCAST)
  of_tokens = (load(0, ROW, A) * load(1, token, A, B)).reduce(A, B, arg=Ops.ADD)
  for value in (own, thirds, few, of_tokens):
    assert shared_sums(sink := kernel(value)) is sink
