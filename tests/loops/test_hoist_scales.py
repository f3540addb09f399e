"""loops/hoist_scales: a block's scales are unpacked as a vector; graphs before and after, evaluated by numpy."""
import pytest
from tests.gpu import gpu_renderers
from tests.support.interpret import arrays_for, same
from tests.support.random_sums import LOOPS, OUTPUTS, kernel, load
from tinygrad import Device, dtypes
from tinygrad.uop.ops import AxisType, Ops, UOp
from tinygrad_llm.patches.ir.builder import is_lanes
from tinygrad_llm.patches.loops.hoist_scales import run

A = LOOPS[0]
ROW, COLUMN = OUTPUTS

def unrolled(*sizes: int, kind: AxisType = AxisType.UNROLL) -> list[UOp]:
  return [UOp.range(n, 10 + i, kind) for i, n in enumerate(sizes)]

def scale(loops: list[UOp], *others: UOp) -> UOp:
  """A scale from bits of two words, in six integer operations."""
  place = sum((r * 8**i for i, r in enumerate((*loops, *others))), UOp.const(0))
  a, b = (UOp.param(slot, dtypes.uint32, (512,)).index(place) for slot in (4, 5))
  return (((a >> 3) & 15) | ((b & 3) << 4)).cast(dtypes.int).alu(Ops.ADD, UOp.const(-9, dtypes.int)).cast(dtypes.float)

def total(value: UOp, loops: list[UOp], op: Ops = Ops.ADD) -> UOp: return kernel(value.reduce(*loops, arg=op))
def hoisted(sink: UOp) -> UOp: return run(sink, Device["CPU"].renderer)

@pytest.mark.parametrize("sizes", [(8,), (16,), (2, 4), (4, 2, 2), (2, 2)])
def test_scales_are_unpacked_as_vector(sizes):
  """sum g: scale(bits, g) * s[g] --> t[g] = scale(bits, g), g a lane; sum g: t[g] * s[g]"""
  loops = unrolled(*sizes)
  s = load(1, *loops, A, ROW, COLUMN).reduce(A, arg=Ops.ADD)
  made = hoisted(sink := total(scale(loops) * s, loops))
  lane, = [r for r in made.toposort() if r.op is Ops.RANGE and is_lanes(r)]
  array, = [u for u in made.toposort() if u.op is Ops.BUFFER]
  steps, = array.shape
  assert steps == int(lane.vmax) + 1 and same(sink, made)
  store, = [u for u in made.toposort() if u.op is Ops.STORE and u.src[0].buf_uop is array]
  assert set(store.ranges) == {lane}
  red, = [u for u in made.toposort() if u.op is Ops.REDUCE and u is not s]
  assert s in red.src[0].src and not any(u.op is Ops.SHR for u in red.toposort(lambda u: u.op is not Ops.AFTER))

def test_array_is_refilled_per_row():
  """The array is filled again with each row's scales."""
  loops = unrolled(2, 4)
  made = hoisted(sink := total(scale(loops, COLUMN) * load(1, *loops, ROW), loops))
  assert made is not sink and same(sink, made)
  wrong = arrays_for(sink) | {4: arrays_for(sink)[4] + 8}
  assert same(sink, made, arrays=wrong)

def test_other_scales_unchanged():
  """No change: 3 iterations; few operations; another unrolled loop; a loop not unrolled; a maximum; a nested sum."""
  eight, six = unrolled(8), unrolled(3)
  column = UOp.range(4, 30, AxisType.UPCAST)
  cheap = (UOp.param(4, dtypes.uint32, (64,)).index(eight[0]) & 15).cast(dtypes.float)
  loop = unrolled(8, kind=AxisType.REDUCE)
  inner = UOp.range(2, 40, AxisType.REDUCE)
  summed = (scale(eight) * load(2, inner)).reduce(inner, arg=Ops.ADD)
  for value, loops, op in ((scale(six), six, Ops.ADD), (cheap, eight, Ops.ADD), (scale(loop), loop, Ops.ADD),
                           (scale(eight, column), eight, Ops.ADD), (scale(eight), eight, Ops.MAX),
                           (summed, eight, Ops.ADD)):
    sink = total(value * load(1, *loops, ROW), loops, op)
    assert hoisted(sink) is sink
  sink = total(scale(eight) * load(1, *eight, ROW), eight)
  assert run(sink, gpu_renderers.named("CUDA")) is sink  # which has no vectors
