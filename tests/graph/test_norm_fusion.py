"""graph/norm_fusion: fuses a norm's sum with the product; graphs before and after, evaluated by numpy."""
import pytest
from tests.gpu import gpu_renderers
from tests.support.interpret import same
from tests.support.random_sums import load, stage
from tinygrad import Device, dtypes
from tinygrad.uop.ops import Ops, UOp, graph_rewrite
from tinygrad_llm.patches.graph import norm_fusion
from tinygrad_llm.patches.graph.norm_fusion import align, pm_fuse

K, L, ROW, SHORT, OUTER, INNER = (UOp.range(n, i) for i, n in enumerate((128, 128, 4, 64, 16, 8)))

@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch): monkeypatch.setattr(norm_fusion, "_is_gpus", lambda ren: True)

def squares(k: UOp, slot: int = 0) -> UOp: return (load(slot, k) * load(slot, k)).reduce(k, arg=Ops.ADD)
def factor(s: UOp) -> UOp: return s * 0.5 + 1.0
def product(*factors: UOp, k: UOp = K) -> UOp:
  value = load(1, ROW, k) * load(0, k)
  for f in factors: value = value * f
  return value.reduce(k, arg=Ops.ADD)
def number(value: UOp, **options: bool) -> UOp: return stage(value, UOp.const(0), **options).index(UOp.const(0))
def out(value: UOp) -> UOp: return UOp.sink(stage(value, ROW, removable=False))
def fused(sink: UOp) -> UOp: return graph_rewrite(sink, pm_fuse)

def test_norm_is_fused_into_product():
  """s = sum l: x ** 2; y = sum k: w * x * f(s) --> y = (sum k: w * x) * f(sum k: x ** 2)"""
  after = fused(before := out(product(factor(number(squares(L))))))
  assert after is out(product() * factor(squares(K)))
  assert same(before.src[0].index(ROW), after.src[0].index(ROW))

def test_other_norms_unchanged():
  """
  No change: a norm that is stored or read elsewhere, or a norm of each row. No change either for a sum of another
  length, for a sum of values that the product does not load, and without a norm.
  """
  s, others = number(squares(L)), UOp.range(4, 9)
  again = UOp.sink(*out(product(factor(s))).src, stage(factor(s) + load(3, others), others, removable=False))
  of_rows = stage((load(0, L) * load(1, UOp.range(4, 8), L)).reduce(L, arg=Ops.ADD), UOp.range(4, 8)).index(ROW)
  for sink in (out(product(factor(number(squares(L), removable=False)))), again, out(product(factor(of_rows))),
               out(product(factor(number(squares(SHORT))))), out(product(factor(number(squares(L, 2))))),
               out(product(factor(load(2)))), out(product(factor(number(squares(SHORT))), k=SHORT))):
    assert fused(sink) is sink

def test_not_applied_on_cpu(monkeypatch):
  monkeypatch.setattr(norm_fusion, "_is_gpus", lambda ren: ren.has_local and ren.has_shared)
  assert fused(sink := out(product(factor(number(squares(L)))))) is sink
  assert align(sums := beside(OUTER * 8 + INNER), Device["CPU"].renderer) is sums is not align(sums, CUDA)

# *** ranges

CUDA = gpu_renderers.named("CUDA")

def at(place: UOp, slot: int = 0) -> UOp: return UOp.param(slot, dtypes.float, (1024,)).index(place)
def beside(place: UOp, k: UOp = K, slot: int = 0) -> UOp:
  """A product over two ranges, times a sum of squares over one."""
  main = (load(1, ROW, OUTER, INNER) * at(place)).reduce(OUTER, INNER, arg=Ops.ADD)
  return main * (at(k, slot) * at(k, slot)).reduce(k, arg=Ops.ADD)

def test_norm_sum_takes_the_product_loops():
  """(sum a b: w[a b] * x[8 * a + b]) * (sum k: x[k] ** 2) --> the second sum is over a b, too"""
  after = align(before := beside(OUTER * 8 + INNER), CUDA)
  assert {u.src[1:] for u in after.toposort() if u.op is Ops.REDUCE} == {(OUTER, INNER)} and same(before, after)

def test_mismatched_loops_unchanged():
  """No change: another array; another number of iterations; gaps between the indices; repeated indices."""
  for before in (beside(OUTER * 8 + INNER, slot=2), beside(OUTER * 8 + INNER, SHORT), beside(OUTER * 16 + INNER),
                 beside(OUTER * 4 + INNER)):
    assert align(before, CUDA) is before
