"""tiles/shared_operands: a block's threads load x once, coalesced; graphs before and after, evaluated by numpy."""
import itertools

import pytest
from tests.gpu import gpu_renderers
from tests.support.interpret import same
from tests.support.random_sums import OUT
from tinygrad import Device, dtypes
from tinygrad.dtype import AddrSpace
from tinygrad.uop.ops import AxisType, KernelInfo, Ops, UOp
from tinygrad_llm.patches.tiles.shared_operands import Order, numbers, run, wait

CUDA = gpu_renderers.named("CUDA")
LANE, ROW, MORE, U = (UOp.range(n, i, kind) for i, (n, kind) in enumerate((
  (32, AxisType.GROUP_REDUCE), (4, AxisType.LOCAL), (2, AxisType.REDUCE), (16, AxisType.UNROLL))))
LOOPS = (LANE, MORE, U)
K = MORE * 512 + LANE * 16 + U  # a thread has 16 consecutive numbers of x

def x(place: UOp = K, slot: int = 0, dtype=dtypes.float) -> UOp: return UOp.param(slot, dtype, (4096,)).index(place)
W = UOp.param(1, dtypes.float, (4096,)).index(ROW * 1024 + K)

def kernel(value: UOp, *others: UOp, op: Ops = Ops.ADD) -> UOp:
  """For each row: the sum of a value over the loops, times other sums of x alone."""
  total = value.reduce(*LOOPS, arg=op)
  for other in others: total = total * other.reduce(*LOOPS, arg=Ops.ADD)
  return UOp.sink(UOp.param(OUT, dtypes.float, (4,)).index(ROW).store(total).end(ROW), arg=KernelInfo())

def shared(sink: UOp) -> UOp: return run(sink, CUDA)
def arrays(sink: UOp) -> list[UOp]:
  return [u for u in sink.toposort() if u.op is Ops.BUFFER and u.addrspace is AddrSpace.LOCAL]
def of_x(sink: UOp) -> UOp:
  found, = [u for u in sink.toposort() if u.op is Ops.INDEX and u.src[0].op is Ops.PARAM and u.src[0].arg.slot == 0]
  return found

def places(index: UOp) -> list[int]:
  """The indices that a warp's threads load, in lane order, in the first iteration of all other loops."""
  at = index.src[1]
  others = {r: r.const_like(0) for r in at.ranges if r.arg[-1] not in (AxisType.LOCAL, AxisType.GROUP_REDUCE)}
  at = at.substitute(others, walk=True)
  steps = [{ROW: ROW.const_like(0), LANE: LANE.const_like(i)} for i in range(32)]
  return [int(at.substitute(step, walk=True).simplify().vmax) for step in steps]

def test_threads_load_adjacent_elements():
  """for u in 16: load x[16 * thread + u] --> shared[..] = x[4 * thread + ..]; barrier; load shared[16 * thread + u]"""
  made = shared(sink := kernel(W * x()))
  array, = arrays(made)
  assert sum(array.shape) >= 1024 and same(sink, made)
  assert [b - a for a, b in itertools.pairwise(places(of_x(sink)))] == [16] * 31
  assert places(of_x(made)) == list(range(0, 128, 4))  # 16 bytes a thread
  red, = [u for u in made.toposort() if u.op is Ops.REDUCE]
  assert W in red.src[0].src and array in red.src[0].toposort()

def test_product_of_loads_is_computed_once():
  """x[k] * norm[k] is computed once for all rows."""
  made = shared(sink := kernel(W * x() * x(slot=2)))
  array, = arrays(made)
  store, = [u for u in made.toposort() if u.op is Ops.STORE and u.src[0].buf_uop is array]
  assert store.src[1].op is Ops.MUL and same(sink, made)

def test_squares_are_summed_while_fetching():
  """(sum: w * x) * (sum: x * x) --> each thread adds up the squares that it fetches"""
  made = shared(sink := kernel(W * x(), x() * x()))
  assert len(arrays(made)) == 2 and same(sink, made)

@pytest.mark.parametrize("value", [
  W * x() + W * x(slot=2) * -3.0, W * (x() * x(MORE * 1024 + LANE * 32 + U * 2, slot=2))])
def test_two_arrays(value):
  """Two terms, or two factors with different orders in memory, get an array each."""
  made = shared(sink := kernel(value))
  assert len(arrays(made)) == 2 and same(sink, made)

@pytest.mark.parametrize("sink", [
  kernel(W * x(MORE * 512 + U * 32 + LANE)),            # already coalesced
  kernel(W * x(ROW * 1024 + K)),                        # a different x for each row
  kernel(W * x(K // 3)), kernel(W * x(K + LANE // 2)), kernel(W * x(), op=Ops.MAX)])
def test_other_kernels_unchanged(sink): assert shared(sink) is sink

def test_not_applied_without_shared_memory(): assert run(sink := kernel(W * x()), Device["CPU"].renderer) is sink

@pytest.mark.parametrize(("sizes", "steps"), [((4, 32), (1, 4)), ((2, 3, 5), (1, 2, 6)), ((2, 3, 4, 5), (3, 1, 6, 24))])
def test_thread_numbering(sizes, steps):
  """The first axis varies fastest. If there are more than three, the first ones are merged, their last one fastest."""
  threads = [UOp.range(n, i, AxisType.LOCAL) for i, n in enumerate(sizes)]
  assert tuple(numbers(threads, CUDA)[r] for r in threads) == steps

def test_padded_order():
  """A padded order gives each element its own place, and a load's elements stay consecutive."""
  order = Order((16, 32, 2), (1, 16, 512)).padded((1, 2), 4)
  assert order.steps == (1, 20, 644)
  found = [order.place(group, i, 4) for group in range(256) for i in range(4)]
  assert found == [i % 16 + i // 16 % 32 * 20 + i // 512 * 644 for i in range(1024)]

def test_weights_are_loaded_after_the_barrier():
  """barrier; load shared; load w, before it --> barrier; load shared; load w, after it"""
  made = shared(kernel(W * x()))
  array, = arrays(made)
  barrier = UOp(Ops.BARRIER, src=(array.index(UOp.const(0)).store(x(UOp.const(0)).load()),))
  after = array.replace(src=array.src).after(barrier).index(UOp.const(1)).load()
  weight = W.substitute({r: r.const_like(1) for r in W.ranges})
  late, = wait(UOp.sink(weight.load() * after), CUDA).src
  assert late.src[0].src[0].src[0] is weight.src[0].after(barrier) and late.src[1] is after
  assert wait(sink := UOp.sink(weight.load()), CUDA) is sink
