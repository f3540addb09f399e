"""graph/gathers: a sum that selects one of all rows becomes a load; graphs before and after, evaluated by numpy."""
import numpy as np
import pytest
from tests.support.interpret import same
from tests.support.random_sums import LOOPS, OUTPUTS, load
from tinygrad import Tensor, dtypes
from tinygrad.codegen import simplify
from tinygrad.uop.ops import Ops, UOp, graph_rewrite
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.graph import gathers

A, (ROW, COLUMN) = LOOPS[0], OUTPUTS
ID = UOp.param(1, dtypes.int, (4,)).index(ROW)

def gathered(i: UOp) -> UOp:
  """sum i: (i == id[row]) * x[i column], as tinygrad writes it."""
  wrong = ID.cast(dtypes.weakint).ne(i)
  x = UOp.param(0, dtypes.float, (64,)).index(i * 8 + COLUMN)
  return wrong.where(x.const_like(0), x).reduce(i, arg=Ops.ADD)

def test_gather_from_symbolic_number_of_rows():
  """sum i in n + 1, n unknown: (i == id) * x[i] --> x[id], 0 where id is none of the rows"""
  n = UOp.variable("n", 1, 7)
  i = UOp.range(n + 1, 9)
  made = gathers.of_any_length((red := gathered(i)), red.src[0])
  assert made is not None and not any(u.op in (Ops.REDUCE, Ops.RANGE) and u.arg == i.arg for u in made.toposort())
  assert any(u is i.src[0] for u in made.toposort())  # the range's length is the number of rows
  four = made.substitute({i.src[0]: UOp.const(4)}, walk=True)
  plain = gathered(UOp.range(4, 9))
  for ids in ([0, 3, 2, 1], [-1, 4, 5, 0]):
    arrays = {0: np.arange(64.), 1: np.array(ids)}
    assert same(plain, four, arrays=arrays)

def test_other_sums_unchanged():
  """No change: a known number of rows, which tinygrad's own rule covers; a sum of all rows; a maximum."""
  for loop in (UOp.range(4, 9), UOp.range(UOp.variable("n", 1, 8, param=True), 9)):
    red = gathered(loop)
    assert gathers.of_any_length(red, red.src[0]) is None
  i = UOp.range(UOp.variable("n", 1, 7) + 1, 9)
  for u in (load(0, i, COLUMN).reduce(i, arg=Ops.ADD), gathered(i).src[0].reduce(i, arg=Ops.MAX)):
    assert graph_rewrite(u, gathers.pm_of_any_length) is u

def test_gather_reduction_is_not_split(monkeypatch):
  """sum of 2**16: x --> two sums; sum of 2**16: (i == id) * x --> itself"""
  asked = []
  monkeypatch.setattr(gathers, "_split_reduceop", lambda reduce, x: asked.append(reduce))
  x, ids = Tensor.empty(1 << 16), Tensor.empty(1, dtype=dtypes.int)
  rows = Tensor.arange(1 << 16).eq(ids).where(x, 0)
  plain, gather = x.sum().uop, rows.sum().uop
  for u in (plain, gather, rows.max().uop):
    red = next(v for v in u.toposort() if v.op is Ops.REDUCE and v.src[0].shape == (1 << 16,) and x.uop in v.toposort())
    gathers.split_reduceop(red, red.src[0])
  assert len(asked) == 2 and gather not in asked

@pytest.mark.skipif(not is_on("gathers"), reason="it is off")
def test_row_lookup_becomes_a_load():
  """store x[ids]; y = f(it) --> y = f(x[ids]), one kernel without a loop over rows"""
  x, ids = Tensor.empty(1 << 16, 8, dtype=dtypes.half), Tensor.empty(5, dtype=dtypes.int)
  call, = (x[ids].float() * 2).linear_with_vars()[0].src
  made = graph_rewrite(call.src[0], simplify.pm_load_collapse)
  assert made is call.src[0] and max(int(r.vmax) for r in made.toposort() if r.op is Ops.RANGE) < 8
