"""graph/split_products: materialises one of two large sums; graphs before and after, evaluated by numpy."""
import random

import pytest
from tests.support.interpret import same, steps
from tests.support.random_sums import LOOPS, OUTPUTS, load
from tinygrad import dtypes
from tinygrad.uop.ops import Ops, UOp, graph_rewrite
from tinygrad_llm.patches.graph import split_products

A, ROW = LOOPS[0], OUTPUTS[0]
K, L, SHORT = UOp.range(128, 5), UOp.range(256, 6), UOp.range(127, 7)

def summed(slot: int, loop: UOp, *loops: UOp, op: Ops = Ops.ADD) -> UOp:
  return load(slot, loop, *loops).reduce(loop, arg=op)
def split(u: UOp) -> UOp: return graph_rewrite(u, split_products.pm_separate)

def test_one_of_two_products_is_stored():
  """y = (sum k: a) + (sum l: b), both large --> t = sum l: b; y = (sum k: a) + t"""
  after = split(before := summed(0, K, ROW) + summed(1, L, ROW))
  staged, = [u for u in after.toposort() if u.op is Ops.STAGE]
  assert after is summed(0, K, ROW) + staged.index(ROW) and staged.src == (summed(1, L, ROW), ROW)
  assert not staged.arg.removable and same(before, after) and steps(before) == 4 * (128 + 256)

def test_other_sums_unchanged():
  """No change: a short sum; 127 iterations; a maximum; the same sum in both terms; a product; a scalar."""
  large = summed(0, K, ROW)
  for u in (large + summed(1, A, ROW), large + summed(1, SHORT, ROW), large + summed(1, L, ROW, op=Ops.MAX),
            large + large * 2.0, large + large * summed(1, L, ROW), large * summed(1, L, ROW), large + summed(1, L)):
    assert split(u) is u

@pytest.mark.parametrize("seed", range(20))
def test_large_sums_of_random_graphs(seed):
  """large_sums() equals a traversal from each node: only large sums within the kernel, each once."""
  rng = random.Random(seed)
  loops = [UOp.range(n, i) for i, n in enumerate((4, 64, 256, 1024))]
  nodes = [r.cast(dtypes.float) for r in loops] + [UOp.const(1.0, dtypes.float)]
  for _ in range(60):
    a, b = rng.choices(nodes[-7:] + nodes[:5], k=2)
    kind = rng.randrange(5)
    if kind < 2: nodes.append(a + b)
    elif kind == 2: nodes.append(UOp(Ops.STAGE, dtypes.float, (a, loops[0])))
    else: nodes.append(UOp(Ops.REDUCE, dtypes.float, (a, *rng.sample(loops, 2)), (rng.choice([Ops.ADD, Ops.MAX]), 0)))
  rng.shuffle(nodes)  # queries come in random order
  for u in nodes:
    expected = {red for red in split_products.sums(u) if split_products.is_large(red)}
    assert split_products.large_sums(u) == expected
  assert any(map(split_products.large_sums, nodes))
