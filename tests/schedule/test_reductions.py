"""schedule/reductions: adjacent threads read adjacent elements; graphs before and after, evaluated by numpy."""
import numpy as np
import pytest
from tests.support.interpret import same
from tests.support.scheduling import kernel, opts, output, reduced, started
from tinygrad import Tensor, dtypes
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.schedule import reductions
from tinygrad_llm.patches.schedule.reductions import choose, in_blocks, split

ROW = output(3)

def total(n: int, op: Ops = Ops.ADD, stride: int = 1, rows: UOp = ROW) -> UOp:
  """A sum or maximum of n numbers for each row."""
  k = reduced(n)
  x = UOp.param(0, dtypes.float, (4096,)).index(k * stride + (rows * n * stride if stride == 1 else rows))
  return kernel(rows, x.reduce(k, arg=op), rows)

@pytest.mark.parametrize(("n", "target", "found"), [
  (512, "CUDA", [("GROUP", 32), ("GROUP", 8), ("UNROLL", 0)]),
  (1024, "CUDA", [("GROUP", 32), ("GROUP", 8), ("UNROLL", 0)]), (32, "CUDA", [("GROUP", 32)]),
  (1024, "OpenCL", [("GROUP", 32), ("GROUP", 2), ("UNROLL", 8)]),
  (35, "CUDA", [("GROUP", 7), ("UNROLL", 0)])])
def test_block_threads_reduce(n, target, found):
  """sum k in 1024: x[k] --> thread in 32, warp in 8, k in 4 UNROLL: x[..]"""
  made = in_blocks(k := started(sink := total(n, rows=output(1) if n > 600 else ROW), target))
  assert opts(made) == found and not k.applied_opts and same(sink, made.ast)

def test_adjacent_elements_are_threads():
  """The loop over adjacent elements is split, not another one."""
  far, near = reduced(64), reduced(64, 9)
  x = UOp.param(0, dtypes.float, (4096,)).index(far * 64 + near)
  made = in_blocks(started(sink := kernel(UOp.const(0), x.reduce(far, near, arg=Ops.MAX)), "CUDA"))
  assert opts(made)[0] == ("GROUP", 32) and same(sink, made.ast)
  first, = [r for r in made.rngs if r.arg[-1].name == "GROUP_REDUCE" and int(r.vmax) == 31]
  assert made.applied_opts[0].axis == 1 and first.arg[0] != far.arg[0]

@pytest.mark.parametrize("sink", [
  total(31), total(64, stride=3),                                             # short; not adjacent
  kernel(ROW, (UOp.param(0, dtypes.float, (4096,)).index(reduced(64)) * UOp.param(1, dtypes.float, (4096,)).index(
    ROW * 64 + reduced(64))).reduce(reduced(64), arg=Ops.ADD), ROW),          # a product with a matrix
  kernel(ROW, UOp.param(0, dtypes.float, (4096,)).index(ROW), ROW)])          # no sum
def test_other_kernels_unchanged(sink): assert in_blocks(started(sink, "CUDA")) is None

def test_cpu_vectors(): assert choose(started(total(512), "CPU")) is None

# *** several blocks

@pytest.fixture
def on_a_gpu(monkeypatch): monkeypatch.setattr(reductions, "_shares", lambda ren: True)

def halves(x: Tensor, op: str = "sum") -> UOp | None:
  """The rewritten reduction of the first axis; None if it stays one kernel."""
  u = getattr(x, op)(0).uop
  red = [v for v in u.toposort() if v.op is Ops.REDUCE][-1]
  return split(red, red.src[0])

@pytest.mark.parametrize(("n", "blocks", "each"), [(1 << 15, 32, 1024), ((1 << 14) + 32, 32, 768), (2001, 8, 256)])
@pytest.mark.parametrize("op", ["sum", "max"])
def test_long_reduction_is_split(on_a_gpu, n, blocks, each, op):
  """sum i: x[i] --> t[p] = sum i: x[p * each + i], padded; sum p: t[p]"""
  values = -1 - (np.arange(n) * 7 % 19).astype(np.float32)  # negative, so that padding is not the largest
  made = halves(Tensor(values), op)
  first, = [u for u in made.toposort() if u.op is Ops.REDUCE and u.src[0].shape[0] == each]
  assert first.shape == (blocks,) and any(u.op is Ops.CONTIGUOUS for u in made.toposort())
  assert Tensor(made).item() == getattr(values, op)()

def test_reductions_that_are_not_split(on_a_gpu, monkeypatch):
  """Not split: short reductions; many outputs; a product; a gather; reductions on a CPU."""
  long = Tensor.empty(1 << 15)
  assert halves(long) is not None
  gather = Tensor.arange(1 << 15).eq(Tensor.empty(1, dtype=dtypes.int)).where(long, 0)
  for x in (Tensor.empty(1 << 14), Tensor.empty(1023), Tensor.empty(1 << 15, 17), gather):
    assert halves(x) is None
  assert halves(long, "prod") is None
  monkeypatch.setattr(reductions, "_shares", lambda ren: ren.has_local and ren.has_shared)
  assert halves(long) is None
