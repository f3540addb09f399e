"""tiles/mma_tiles: thread blocks multiply tiles in shared memory; graphs before and after, evaluated by numpy."""
import pytest
from tests.gpu import gpu_renderers
from tests.support.interpret import same
from tests.support.random_sums import OUT
from tinygrad import dtypes
from tinygrad.codegen.opt import KernelOptError
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.dtype import AddrSpace
from tinygrad.uop.ops import AxisType, KernelInfo, Ops, UOp
from tinygrad_llm.patches.ir.actions import ScheduleOps, action
from tinygrad_llm.patches.ir.matmuls import find
from tinygrad_llm.patches.tiles import fragments
from tinygrad_llm.patches.tiles.mma_tiles import Block, apply, fits, run, wait

OPENCL, CUDA = gpu_renderers.named("OpenCL"), gpu_renderers.named("CUDA")
WORDS = 8
A, C = UOp.range(WORDS, 8, AxisType.REDUCE), UOp.range(4, 9, AxisType.REDUCE)
BLOCK = Block(16, 8, 16, 16, 8)

def load(slot: int, place: UOp, dtype=dtypes.float) -> UOp:
  """A load from an array that ends at the largest index."""
  return UOp.param(slot, dtype, (int(place.vmax) + 1,)).index(place)

def kernel(tokens: int = 16, rows: int = 8, block: Block | None = BLOCK, products: int = 1, op: Ops = Ops.ADD) -> UOp:
  """For tokens and rows: store f(sum a c: float((w[row a] >> 8 * c) & 255) * x[token a c]), for several w."""
  token, row = (UOp.range(n, i, AxisType.GLOBAL) for i, n in enumerate((tokens, rows)))
  value = UOp.const(1.0, dtypes.float)
  for slot in range(1, 1 + products):
    byte = (load(slot, row * WORDS + A, dtypes.uint32) >> (C * 8).cast(dtypes.uint32)) & 255
    x = load(0, token * (4 * WORDS) + A * 4 + C)
    value = value + (byte.cast(dtypes.float) * x).reduce(A, C, arg=op) * float(slot)
  store = UOp.param(OUT, dtypes.float, (2048,)).index(token * rows + row).store(value + load(4, row))
  opts = () if block is None else (action(ScheduleOps.BLOCK, block.arg),)
  return UOp.sink(store.end(token, row), arg=KernelInfo(applied_opts=opts))

def arrays(sink: UOp) -> list[tuple[int, ...]]:
  return sorted(u.shape for u in sink.toposort() if u.op is Ops.BUFFER and u.addrspace is AddrSpace.LOCAL)

def test_tiles_are_staged_in_shared_memory():
  """
  for token, row: sum k: float(q(w[row k])) * x[token k]
  --> shared = a tile of float(q(w)), of x; barrier; each thread: sum k in 16: shared * shared
  """
  made = run(sink := kernel(), OPENCL)
  assert arrays(made) == [(8 * 16,), (16 * 16,)] and same(sink, made)
  thread, = [u for u in made.toposort() if u.op is Ops.RANGE and u.arg[-1] is AxisType.LOCAL]
  assert int(thread.vmax) + 1 == BLOCK.threads == 32
  red, = [u for u in made.toposort() if u.op is Ops.REDUCE]
  inside = red.src[0].toposort(lambda u: u.op is not Ops.AFTER)
  assert not any(u.op is Ops.PARAM for u in inside)  # all factors are in shared memory
  shifts = [u for u in made.toposort() if u.op is Ops.SHR]
  assert shifts and all(thread in u.ranges and not set(u.ranges) & set(red.src[2:]) for u in shifts)

@pytest.mark.parametrize(("tokens", "rows", "block"), [
  (20, 12, BLOCK), (20, 8, BLOCK),        # the last tokens and rows do not fill a block
  (32, 8, Block(32, 8, 8, 16, 8)),        # two warps of tokens, and four steps
  (8, 24, Block(8, 16, 32, 8, 8)), (5, 3, BLOCK)])
def test_rewrite_preserves_values(tokens, rows, block):
  made = run(sink := kernel(tokens, rows, block), OPENCL)
  assert made is not sink and same(sink, made)
  store = made.src[0].src[0]
  whole = tokens % block.tokens == rows % block.rows == 0
  assert (store.src[0].src[1].get_valid().op is Ops.CONST) == whole  # padding is not stored

def test_two_matrices():
  """Tiles of both matrices, and one of x."""
  made = run(sink := kernel(products=2), OPENCL)
  assert len(arrays(made)) == 3 and same(sink, made)

def test_tensor_cores():
  """With tensor cores, tiles are halves and a warp multiplies them."""
  made = run(sink := kernel(16, 16, Block(16, 16, 32, 16, 16)), CUDA)
  for weights, do in ((32, True), (8, False)):  # an instruction takes 16
    assert fits(find(sink), Block(16, 16, weights, 16, 16), fragments.core(CUDA), CUDA) is do
  halves = [u for u in made.toposort() if u.op is Ops.BUFFER and u.addrspace is AddrSpace.LOCAL]
  assert {u.dtype for u in halves} == {dtypes.half} and any(u.op is Ops.WMMA for u in made.toposort())

@pytest.mark.parametrize("block", [
  Block(16, 8, 16, 12, 8), Block(24, 8, 16, 16, 8), Block(16, 6, 16, 16, 6), Block(16, 8, 64, 16, 8),
  Block(16, 8, 12, 16, 8), Block(8, 4, 16, 8, 4), Block(256, 32, 4, 8, 8), Block(16, 8, 0, 16, 8)])
def test_rejects_invalid_blocks(block):
  """Refused: partial warps or instructions; more weights than there are; partial words; one sum; too many threads."""
  core = fragments.core(OPENCL)
  assert fits(m := find(kernel(block=None)), BLOCK, core, OPENCL) and not fits(m, block, core, OPENCL)
  k = Scheduler(kernel(block=None), OPENCL)
  assert apply(k, action(ScheduleOps.BLOCK, BLOCK.arg))
  with pytest.raises(KernelOptError, match="no block of that size"): apply(k, action(ScheduleOps.BLOCK, block.arg))

def test_other_kernels_unchanged():
  """No change: a kernel without the action; a kernel without a sum of products."""
  for sink in (kernel(block=None), kernel(op=Ops.MAX)): assert run(sink, OPENCL) is sink

def test_epilogue_loads_come_after_the_sum():
  """load bias; end of the sum's loop --> end of the sum's loop; load bias"""
  step = UOp.range(4, 7, AxisType.REDUCE)
  total = UOp.placeholder((1,), dtypes.float, 3, AddrSpace.REG)
  end = total.index(UOp.const(0)).store(load(0, step).load()).end(step)
  bias, read = load(4, UOp.const(2)), total.after(end).index(UOp.const(0)).load()
  sink = UOp.sink(load(OUT, UOp.const(0)).store(read + bias.load()), arg=kernel().arg)
  made = wait(sink, OPENCL)
  assert made is sink.substitute({bias: bias.replace(src=(bias.src[0].after(end), bias.src[1]))}, walk=True) is not sink
  other = sink.replace(arg=KernelInfo())
  assert wait(other, OPENCL) is other
