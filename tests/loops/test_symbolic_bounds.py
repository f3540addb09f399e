"""loops/symbolic_bounds: a masked loop of symbolic length keeps its length; graphs before and after, and numbers."""
import numpy as np
import pytest
from tinygrad import Tensor, Variable, dtypes
from tinygrad.codegen import simplify
from tinygrad.uop.ops import KernelInfo, Ops, UOp, graph_rewrite
from tinygrad_llm.device.buffers import read
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.loops.symbolic_bounds import pm_symbolic_bounds

pytestmark = pytest.mark.skipif(not is_on("symbolic_bounds"), reason="it is off")

def masked(size: int | UOp, bound: int, also_whole: bool) -> UOp:
  """for i in range(size): out[i] = in[i] if i < bound, and perhaps in2[i] without a mask"""
  out, a, b = (UOp.param(i, dtypes.float, (64,), "CPU") for i in range(3))
  i = UOp.range(size, 0)
  value = a.index((i < bound).where(i, UOp.invalid())).load()
  if also_whole: value = value + b.index(i).load()
  return out.index((i < bound).where(i, UOp.invalid())).store(value).end(i).sink(arg=KernelInfo())

def length(u: UOp) -> UOp:
  loop, = (x for x in u.toposort() if x.op is Ops.RANGE)
  return loop.src[0]

def simplified(u: UOp) -> UOp: return graph_rewrite(u, pm_symbolic_bounds + simplify.pm_simplify_ranges, ctx={})

@pytest.mark.parametrize("also_whole", [False, True])
def test_symbolic_loop_keeps_its_length(also_whole):
  """for i in range(n) with i < 2 --> the same, whichever bound n has; a loop of constant length becomes range(2)."""
  n = Variable("n", 1, 16)
  assert length(simplified(masked(n, 2, also_whole))) is n
  assert length(simplified(masked(16, 2, False))).val == 2
  assert length(simplified(masked(16, 2, True))).val == 16

@pytest.mark.parametrize("n", [1, 2, 3, 16])
def test_rows_before_and_after(n):
  """A sum of shifted rows, which reads a prompt's rows and two rows from before it, in a loop of symbolic length."""
  rng = np.random.default_rng(n)
  before, rows = (rng.standard_normal((1, size, 8)).astype(np.float32) for size in (2, 16))
  count = Variable("n", 1, 16).bind(n)
  all_rows = Tensor(before).realize().cat(Tensor(rows).realize()[:, :count], dim=1)
  y = all_rows[:, :count] * 2 + all_rows[:, 1:1 + count] * 3 + all_rows[:, 2:2 + count]
  whole = np.concatenate([before, rows[:, :n]], 1)
  want = whole[:, :n] * 2 + whole[:, 1:1 + n] * 3 + whole[:, 2:]
  np.testing.assert_allclose(read(y.contiguous().realize(), n, 8), want[0], rtol=1e-5, atol=1e-5)
