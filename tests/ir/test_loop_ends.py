"""ir/loop_ends: each range is closed by one END; graphs before and after, evaluated by numpy."""
from tests.support.interpret import same
from tests.support.random_sums import LOOPS, OUTPUTS, kernel, load
from tinygrad.uop.ops import Ops
from tinygrad_llm.patches.ir.loop_ends import split_loops

A, B, _ = LOOPS
ROW, COLUMN = OUTPUTS

def test_nested_reductions_get_their_own_range():
  """(sum a b: x) + (sum a: y) --> the second sum has an a of its own"""
  sink = kernel(load(0, A, B, ROW).reduce(A, B, arg=Ops.ADD) + load(1, A, COLUMN).reduce(A, arg=Ops.ADD))
  made = split_loops(sink)
  ends = [u.src[1:] for u in made.toposort() if u.op is Ops.REDUCE]
  assert same(sink, made) and len(ends) == 2 and not set(ends[0]) & set(ends[1])
  assert split_loops(made) is made
