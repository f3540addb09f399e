"""graph/store_factors: materialises an expensive factor that many terms share; graphs evaluated by numpy."""
import pytest
from tests.support.interpret import same
from tests.support.random_sums import load
from tinygrad import dtypes
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.graph.store_factors import OPERATIONS, REPEATS, store

K, N, FEW = UOp.range(8, 0), UOp.range(REPEATS, 1), UOp.range(REPEATS - 1, 2)

def product(factor: UOp, n: UOp = N, op: Ops = Ops.ADD) -> UOp: return (load(1, n, K) * factor).reduce(K, arg=op)

def wide(x: UOp) -> UOp:
  """A factor of six operations."""
  for i in range(OPERATIONS + 2): x = x + float(i) if i % 2 == 0 else x.maximum(float(i))
  return x

def test_factor_is_materialised():
  """sum k: w[n k] * f(x[k]) for each of 16 n --> t[k] = f(x[k]); sum k: w[n k] * t[k]"""
  made, = store(UOp.sink(before := product(wide(load(0, K))))).src
  staged, = [u for u in made.toposort() if u.op is Ops.STAGE]
  own, = staged.src[1:]
  assert staged.src[0] is wide(load(0, own)) and own is not K and int(own.vmax) == int(K.vmax)
  assert made is product(staged.index(K)) and not staged.arg.removable and same(before, made)

def test_factor_over_several_loops():
  """A materialised factor over several ranges keeps its indices."""
  t = UOp.range(3, 5)
  made, = store(UOp.sink(before := product(wide(load(0, K, t))))).src
  assert made is not before and same(before, made)

@pytest.mark.parametrize("before", [
  product(wide(load(0, K)), FEW),                                      # 15 terms share it
  product(load(0, K).maximum(1.0).maximum(2.0).maximum(3.0).maximum(4.0)),  # 4 operations
  product(wide(load(0, K)), op=Ops.MAX), product(wide(load(0, K, N))), # no sum; a factor for each n
  product(wide(UOp.param(0, dtypes.int8, (8,)).index(K).cast(dtypes.float))),  # a packed weight
  product(wide(load(0, K, FEW).reduce(FEW, arg=Ops.ADD))), product(load(0, K))])
def test_other_factors_unchanged(before): assert store(UOp.sink(before)) is None
