"""tiles/epilogues: an epilogue is computed for 16 rows at once; graphs before and after, evaluated by numpy."""
import pytest
from tests.gpu import gpu_renderers
from tests.support.interpret import same
from tests.support.random_sums import OUT, load
from tinygrad import Device, dtypes
from tinygrad.uop.ops import AxisType, KernelInfo, Ops, UOp
from tinygrad_llm.patches.ir.actions import ScheduleOps, action
from tinygrad_llm.patches.ir.builder import is_lanes, lanes
from tinygrad_llm.patches.tiles.epilogues import run

K, TOKEN, TOKENS = UOp.range(4, 9, AxisType.REDUCE), UOp.range(3, 5, AxisType.UPCAST), UOp.range(2, 6)

def rows(n: int, each: int = 1) -> tuple[UOp, UOp | None]:
  """A loop over rows, and an unrolled one over `each` of them."""
  return UOp.range(n, 1), UOp.range(each, 2, AxisType.UPCAST) if each > 1 else None

def kernel(n: int, each: int = 1, *, step: int = 1, tokens: int = 3, op: Ops | None = Ops.ADD,
           opts: tuple = (action(ScheduleOps.TOKENS, 3),)) -> UOp:
  """For tokens and rows: store f(sum k: w[row k] * x[token k])."""
  loop, inner = rows(n, each)
  value = load(0, loop, *([inner] if inner is not None else []), K) * load(1, TOKEN, TOKENS, K)
  total = value.reduce(K, arg=op) if op else value
  value = (total * 0.5 + load(2, TOKEN, loop)).maximum(0.0) + total
  place = (TOKENS * 3 + TOKEN) * (n * each * step) + loop * (each * step) + (0 if inner is None else inner * step)
  store = UOp.param(OUT, dtypes.float, (4096,)).index(place).store(value)
  ends = [r for r in (TOKEN, inner, loop, TOKENS) if r is not None]
  return UOp.sink(store.end(*ends), arg=KernelInfo(applied_opts=opts))

def made_of(sink: UOp) -> UOp: return run(sink, Device["CPU"].renderer)

@pytest.mark.parametrize(("n", "each"), [(16, 1), (32, 1), (8, 2), (4, 4), (16, 4)])
def test_epilogue_is_vectorised_over_rows(n, each):
  """for 16 rows: store f(sum k: v[row]) --> for 16 rows: a[row] = sum k: v[row]; store f(a), a vector of 16 rows"""
  made = made_of(sink := kernel(n, each))
  array, = {u for u in made.toposort() if u.op is Ops.BUFFER}
  lane, = {u for u in made.toposort() if u.op is Ops.RANGE and is_lanes(u)}
  assert array.shape == (3 * 16,) and same(sink, made)
  store = next(u for u in made.toposort() if u.op is Ops.STORE and u.src[0].buf_uop.op is Ops.PARAM)
  assert lane in store.ranges and not any(r.arg[-1] is AxisType.UPCAST for r in store.ranges)
  body = store.src[1].toposort(lambda u: u.op is not Ops.AFTER)
  assert not any(u.op is Ops.REDUCE for u in body) and any(u.op is Ops.MAX for u in body)

def test_two_sums_have_two_arrays():
  """Each has an array of its own."""
  loop, _ = rows(32)
  a, b = ((load(slot, loop, K) * load(2, TOKEN, K)).reduce(K, arg=Ops.ADD) for slot in (0, 1))
  store = UOp.param(OUT, dtypes.float, (4096,)).index(TOKEN * 32 + loop).store(a * b + a)
  made = made_of(sink := UOp.sink(store.end(TOKEN, loop), arg=kernel(16).arg))
  assert len({u for u in made.toposort() if u.op is Ops.BUFFER}) == 2 and same(sink, made)

@pytest.mark.parametrize("sink", [
  kernel(15), kernel(8), kernel(6, 4), kernel(15, 3),    # no whole vectors of rows
  kernel(16, step=2), kernel(16, op=None),               # rows that are not adjacent; no sum
  kernel(16, opts=())])                                  # no tokens that share rows
def test_other_epilogues_unchanged(sink): assert made_of(sink) is sink

def test_existing_lanes_unchanged():
  loop = lanes(16, 1, AxisType.WEAK)
  total = (load(0, loop, K) * load(1, TOKEN, K)).reduce(K, arg=Ops.ADD)
  store = UOp.param(OUT, dtypes.float, (4096,)).index(TOKEN * 16 + loop).store(total)
  assert made_of(sink := UOp.sink(store.end(TOKEN, loop), arg=kernel(16).arg)) is sink
  assert run(sink := kernel(16), gpu_renderers.named("CUDA")) is sink
