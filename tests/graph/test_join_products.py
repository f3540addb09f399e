"""graph/join_products: computes a product where its parts are read; graphs before and after, evaluated by numpy."""
import pytest
from tests.support.interpret import same
from tests.support.random_sums import load, stage
from tinygrad import dtypes
from tinygrad.uop.ops import Ops, UOp, graph_rewrite
from tinygrad_llm.patches.graph.join_products import pm_join

K, ROW, OWN, TOKEN, T, FEW, MORE = (UOp.range(n, i) for i, n in enumerate((128, 8, 4, 3, 3, 2, 12)))

def product(row: UOp, token: UOp, k: UOp = K) -> UOp:
  return (load(0, k, token) * load(1, k, row)).reduce(k, arg=Ops.ADD)
def joined(u: UOp) -> UOp: return graph_rewrite(u, pm_join)

STORED = stage(product(ROW, TOKEN), ROW, TOKEN)

def read(*starts: int, loop: UOp = OWN, token: UOp = T, of: UOp = STORED) -> UOp:
  """The elementwise product of several parts of the rows."""
  value = UOp.const(1.0)
  for start in starts: value = value * (of.index(loop + start if start else loop, token) + 2.0)
  return stage(value, OWN, T)

def test_gate_and_up_share_a_loop():
  """t = x @ [gate, up]; y = t[:4] * t[4:] --> y = (x @ gate) * (x @ up), two sums over the same loop"""
  after = joined(before := read(0, 4))
  value = UOp.const(1.0)
  for row in (OWN, OWN + 4): value = value * (product(row, T) + 2.0)
  assert after is stage(value, OWN, T)
  assert {u.src[1:] for u in after.toposort() if u.op is Ops.REDUCE} == {(K,)}
  assert same(before.index(OWN, T), after.index(OWN, T))

def test_store_to_buffer_reads_parts():
  """A store to a buffer may read the parts, too."""
  place = UOp.param(9, dtypes.float, (12,)).index(OWN, T)
  after = joined(place.store(read(4, 0).src[0]))
  assert after is place.store(joined(read(4, 0)).src[0])

@pytest.mark.parametrize("before", [
  read(0), read(0, 3), read(0, 5), read(1, 4),                    # one part; parts that overlap, or leave a row out
  read(0, 4, token=UOp.const(0)),                                 # one token
  stage(read(0, 4, token=FEW).src[0], OWN, FEW),                  # two tokens
  read(0, 4, of=stage(product(MORE, TOKEN), MORE, TOKEN)),        # 8 of 12 rows
  read(0, 4, loop=UOp.range(4, 9)),                               # another order: the stored value has other ranges
  read(0, 4, of=stage(product(ROW, TOKEN, UOp.range(127, 9)), ROW, TOKEN)),  # a short sum
  read(0, 4, of=stage(load(1, ROW, TOKEN), ROW, TOKEN))])                    # no sum
def test_other_products_unchanged(before): assert joined(before) is before
