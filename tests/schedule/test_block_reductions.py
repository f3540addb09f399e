"""schedule/block_reductions: threads share a loop of symbolic length; graphs before and after, evaluated by numpy."""
import pytest
from tests.support.interpret import same
from tests.support.scheduling import kernel, opts, output, reduced, started
from tinygrad import dtypes
from tinygrad.codegen.opt import KernelOptError, Opt, OptOps
from tinygrad.dtype import AddrSpace
from tinygrad.uop.ops import AxisType, Ops, UOp
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.schedule.block_reductions import THREADS, UNROLLED, _shared, apply, share

pytestmark = pytest.mark.skipif(not is_on("block_reductions"), reason="it is off")

N = UOp.variable("n", 1, 40, param=True)
ROW, COLUMN = output(2), output(8, 1)

def total(k: UOp, op: Ops = Ops.ADD, weighted: bool = False, columns: UOp = COLUMN, rows: UOp = ROW) -> UOp:
  """For rows and columns: the sum over k of x, or of x times weights with a second reduction over them."""
  width = int(columns.vmax) + 1
  end = (int(rows.vmax) + 1) * 40 * width
  value = UOp.param(0, dtypes.float, (end,)).index((rows * 40 + k) * width + columns)
  value = value * UOp.param(1, dtypes.float, (4096,)).index(k) if weighted else value
  found = value.reduce(k, arg=op)
  other = reduced(N, 9)
  if weighted: found = found * UOp.param(2, dtypes.float, (4096,)).index(other).reduce(other, arg=Ops.MAX)
  return kernel(rows * width + columns, found, rows, columns)

SINK = total(reduced(N))

def of_length(n: int, *sinks: UOp) -> list[UOp]:
  return [sink.substitute({N: UOp.const(n)}, walk=True) for sink in sinks]

@pytest.mark.parametrize("sink", [SINK, total(reduced(N), Ops.MAX), total(reduced(N), weighted=True)])
@pytest.mark.parametrize("n", [1, 3, 8, 13, 40])
def test_results_match_reference(sink, n):
  """Lengths below, at and above the elements that the threads take in an iteration."""
  made = _shared(sink, N, 4)
  assert same(*of_length(n, sink, made)) and made is not sink

def test_threads_share_a_loop():
  """sum k in n: x[k] --> thread s of 4: sum i in n / 8, u in 2: x[(i * 2 + u) * 4 + s]; shared; barrier; sum over 4"""
  made = _shared(SINK, N, 4)
  inner, outer = [u for u in made.toposort() if u.op is Ops.REDUCE]
  array, = {u for u in made.toposort() if u.op is Ops.BUFFER}
  assert array.addrspace is AddrSpace.LOCAL and array.shape == (4,)
  steps, unrolled = inner.src[1:]
  assert steps.src[0] is (N + (4 * UNROLLED - 1)) // (4 * UNROLLED) and int(unrolled.vmax) + 1 == UNROLLED
  assert outer.src[1].arg[-1] is AxisType.UNROLL and int(outer.src[1].vmax) == 3
  thread, = [u for u in made.toposort() if u.op is Ops.RANGE and u.arg[-1] is AxisType.LOCAL]
  assert array in outer.toposort() and thread not in outer.ranges  # all threads get the total

def test_threads_take_columns():
  """Each thread has 4 columns, 2 threads have a row, and the others share the loop with an array of 4 each."""
  made = share(k := started(SINK, "CUDA"))
  assert opts(made) == [("UPCAST", 4), ("LOCAL", 2), ("GROUP", THREADS // 2)] and not k.applied_opts
  assert same(*of_length(13, SINK, made.ast))
  array, = {u for u in made.ast.toposort() if u.op is Ops.BUFFER}
  assert array.shape == (THREADS * 4,)

@pytest.mark.parametrize("sink", [
  total(reduced(40)), kernel(ROW, UOp.param(0, dtypes.float, (64,)).index(ROW), ROW),  # a known length; no sum
  total(reduced(N), rows=output(1 << 14)),                                            # many outputs
  total(reduced(N), rows=output(N)),                                                  # a symbolic number of outputs
  total(reduced(N * 2), weighted=True)])                                              # loops of two lengths
def test_other_kernels_unchanged(sink): assert share(started(sink, "CUDA")) is None

def test_rejects_invalid_actions():
  """The action is tinygrad's for other loops, and refused for too many threads and without shared memory."""
  group = Opt(OptOps.GROUP, 0, 8)
  assert not apply(started(total(reduced(40)), "CUDA"), group) and apply(started(SINK, "CUDA"), group)
  for k, opt in ((started(SINK, "CUDA"), Opt(OptOps.GROUP, 0, THREADS + 1)), (started(SINK, "CPU"), group)):
    with pytest.raises(KernelOptError): apply(k, opt)
