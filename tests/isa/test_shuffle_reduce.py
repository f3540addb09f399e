"""isa/shuffle_reduce: lanes of a warp reduce sums by shuffles; graphs before and after, evaluated by numpy."""
import numpy as np
import pytest
from tests.gpu import gpu_renderers
from tests.support.interpret import same
from tinygrad import dtypes
from tinygrad.uop.ops import AxisType, KernelInfo, Ops, UOp
from tinygrad_llm.patches.ir.intrinsics import named
from tinygrad_llm.patches.ir.targets import WARP
from tinygrad_llm.patches.isa.shuffle_reduce import EXCHANGES, neighbours, run

def group(*sizes: int) -> list[UOp]: return [UOp.range(n, i, AxisType.GROUP_REDUCE) for i, n in enumerate(sizes)]
def others(*sizes: int) -> list[UOp]: return [UOp.range(n, 10 + i, AxisType.LOCAL) for i, n in enumerate(sizes)]

@pytest.mark.parametrize(("sums", "rows", "lanes"), [
  ((8,), (4,), 1), ((8,), (8,), 1), ((2,), (16,), 1), ((WARP,), (), 1), ((WARP,), (3,), 1), ((4, 8), (2,), 2),
  ((WARP, 4), (), 1), ((8,), (2, 4), 1), ((4, 8, 2), (4,), 2), ((4, 8), (2, 4), 2),
  ((2, 2, 8, 2), (4,), 3)])
def test_which_axes_become_lanes(sums, rows, lanes):
  """The reduction axes numbered first, in whole warps, become lanes: a row's threads, or a warp of them."""
  assert neighbours(of := group(*sums), others(*rows)) == of[:lanes]

@pytest.mark.parametrize(("sums", "rows"), [
  ((8,), (3,)), ((8,), ()), ((16,), (1,)),   # the last warp is not full: shuffles would read missing threads
  ((3,), (32,)), ((12,), (8,)),              # no power of two: a shuffle would leave its row
  ((16, 4), ()), ((8, 8), (1,)),             # several warps share a sum, with a part of each
  ((WARP,), (2, 2, 2)), ((2, 16), (2, 2, 2))])  # more axes than a thread index has
def test_axes_that_are_no_lanes(sums, rows): assert neighbours(group(*sums), others(*rows)) == []

def test_row_threads_numbered_first():
  """If rows are numbered first, adjacent lanes belong to different sums."""
  rows, sums = UOp.range(4, 0, AxisType.LOCAL), UOp.range(8, 1, AxisType.GROUP_REDUCE)
  assert neighbours([sums], [rows]) == []

# *** sums

K = UOp.range(2, 20, AxisType.REDUCE)
CUDA = gpu_renderers.named("CUDA")
TEXTS = {bit: exchange.text(CUDA) for bit, exchange in EXCHANGES.items()}

def x(loops: list[UOp], dtype=dtypes.float, slot: int = 0) -> UOp:
  place, step = UOp.const(0), 1
  for r in loops: place, step = place + r * step, step * (int(r.vmax) + 1)
  return UOp.param(slot, dtype, (2048,)).index(place)

def kernel(loops: list[UOp], rows: list[UOp], op: Ops = Ops.ADD, dtype=dtypes.float) -> UOp:
  total = x([*loops, K, *rows], dtype).reduce(*loops, K, arg=op)
  out = UOp.param(9, dtype, (64,)).index(rows[0] if rows else UOp.const(0))
  return UOp.sink(out.store(total).end(*rows) if rows else out.store(total), arg=KernelInfo())

def bits(sink: UOp) -> list[int]:
  """The lane bits of the shuffles."""
  return [next(b for b, e in EXCHANGES.items() if named(u.arg) is e) for u in sink.toposort() if u.op is Ops.CUSTOM]

def test_two_threads_reduce_by_shuffle():
  """sum thread in 2, k: x --> s = sum k: x; s + exchange(s, 1)"""
  loops, rows = group(2), others(16)
  part = x([*loops, K, *rows]).reduce(K, arg=Ops.ADD)
  wanted = part.alu(Ops.ADD, UOp(Ops.CUSTOM, dtypes.float, (part,), TEXTS[1]))
  made = run(sink := kernel(loops, rows), CUDA)
  assert made.src[0].src[0].src[1] is wanted and same(sink, made)

@pytest.mark.parametrize("op", [Ops.ADD, Ops.MAX])
@pytest.mark.parametrize(("sums", "rows", "steps"), [((8,), (4,), 3), ((WARP,), (), 5), ((4, 8), (2,), 5)])
def test_rewrite_preserves_values(sums, rows, steps, op):
  made = run(sink := kernel(loops := group(*sums), others(*rows), op), CUDA)
  assert bits(made) == [1 << i for i in range(steps)][::-1] and same(sink, made)
  assert not any(r in u.src[1:] for u in made.toposort() if u.op is Ops.REDUCE for r in loops)

def test_warps_reduce_through_shared_memory():
  """sum lane in 32, warp in 4, k: x --> s = (sum k: x) exchanged; sum warp: s"""
  made = run(sink := kernel(loops := group(WARP, 4), []), CUDA)
  assert bits(made) == [16, 8, 4, 2, 1] and same(sink, made)
  assert [u.src[1:] for u in made.toposort() if u.op is Ops.REDUCE] == [(K,), (loops[1],)]

@pytest.mark.parametrize(("dtype", "exchanged"), [(dtypes.int, 3), (dtypes.uint32, 3), (dtypes.int64, 6)])
def test_integer_sums(dtype, exchanged):
  """Registers have 32 bits, so a 64-bit number takes two shuffles."""
  made = run(sink := kernel(group(8), others(4), dtype=dtype), CUDA)
  large = {0: np.arange(2048) * -(1 << 49) - 7 if exchanged == 6 else np.arange(2048), 9: np.zeros(64, int)}
  assert len(bits(made)) == exchanged and same(sink, made, arrays=large)

def test_shared_sum_is_shuffled_last():
  """(sum: x * row) * (sum: x) --> the second sum's shuffles come after all partial sums of the first"""
  (lane,), (row,) = group(8), others(4)
  norm = x([lane, K]).reduce(lane, K, arg=Ops.ADD)
  product = x([lane, K, row], slot=1).reduce(lane, K, arg=Ops.ADD)
  out = UOp.param(9, dtypes.float, (64,)).index(row)
  made = run(sink := UOp.sink(out.store(product * norm).end(row), arg=KernelInfo()), CUDA)
  waiting, = [u for u in made.toposort() if u.op is Ops.CUSTOM and len(u.src) > 1]
  assert waiting.src == (x([lane, K]).reduce(K, arg=Ops.ADD), x([lane, K, row], slot=1).reduce(K, arg=Ops.ADD))
  assert same(sink, made)

@pytest.mark.parametrize("sink", [
  kernel(group(12), others(8)), kernel(group(8), others(3)),                     # no power of two; no full warp
  kernel(group(8), others(4), dtype=dtypes.half), kernel(group(8), others(4), Ops.MUL)])
def test_other_reductions_unchanged(sink): assert run(sink, CUDA) is sink

def test_not_applied_on_opencl(): assert run(sink := kernel(group(8), others(4)), gpu_renderers.named("OpenCL")) is sink
