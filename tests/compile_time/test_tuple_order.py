"""compile_time/tuple_order: ranks of nodes have the order of tinygrad's tuplize trees."""
import itertools
import random

import pytest
from tests.compile_time.layers import random_graph
from tinygrad import dtypes
from tinygrad.codegen.late import linearizer
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.compile_time import tuple_order

pytestmark = pytest.mark.skipif(not is_on("tuple_order"), reason="it is off")

@pytest.mark.parametrize("seed", range(20))
def test_ranks_match_tuplize_order(seed):
  nodes = list(random_graph(random.Random(seed)).toposort())
  places = tuple_order.ranks_of(nodes)
  assert sorted(nodes, key=lambda u: places[u]) == sorted(nodes, key=lambda u: u.tuplize)

def test_deep_sums_get_distinct_ranks():
  """Sums of increasing depth get distinct ranks: the space between two ranks does not run out."""
  terms = [UOp.const(i, dtypes.int) for i in range(600)]
  sums = list(itertools.accumulate(terms, lambda x, y: UOp(Ops.ADD, dtypes.int, (x, y)), initial=UOp.range(3, 0)))[1:]
  places = tuple_order.ranks_of(UOp.sink(*sums).toposort())
  assert len({places[u] for u in sums}) == len(sums)

@pytest.mark.parametrize("arg", [float("nan"), (1, "x")])
def test_unorderable_arguments_fall_back_to_tinygrad(arg):
  """Arguments without an order fall back to tinygrad's sort."""
  a, b = UOp(Ops.CUSTOM, dtypes.float, (), arg), UOp(Ops.CUSTOM, dtypes.float, (), ("x", 1))
  with pytest.raises(TypeError): tuple_order.ranks_of([a, b])
  if isinstance(arg, float):
    with pytest.raises(TypeError): tuple_order.ranks_of([a, UOp(Ops.CUSTOM, dtypes.float, (), 1.0)])
  nodes = [*(UOp.range(3, 0) * 2).toposort(), UOp(Ops.CUSTOM, dtypes.float, (), float("nan"))]
  assert tuple_order.by_rank(nodes, lambda u: (0,)) == sorted(nodes, key=lambda u: u.tuplize)

def test_linearize_matches_tinygrad():
  """linearize() gives tinygrad's own order, and leaves nodes, which other threads may share, as they are."""
  loop = UOp.range(8, 0)
  x, y, out = (UOp.placeholder((8,), dtypes.float, slot) for slot in range(3))
  terms = [x.index(loop).load(), y.index(loop).load(), UOp.const(2.0, dtypes.float)]
  value = terms[0] * terms[1] + terms[1] * terms[2] + terms[0]
  sink = UOp.sink(out.index(loop).store(value).end(loop))
  before = {u: u.tuplize for u in sink.toposort()}
  made = tuple_order.linearize(sink)
  assert made == tuple_order._linearize(sink) and linearizer.linearize is tuple_order.linearize
  assert {u: u.tuplize for u in made} == before
