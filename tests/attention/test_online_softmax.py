"""attention/online_softmax: scores, softmax and weighted sum of a part in one kernel; graphs evaluated by numpy."""
import math

import numpy as np
import pytest
from tests.support.interpret import results
from tests.support.scheduling import renderer
from tests.support.softmax import COLUMNS, DEPTH, HEADS, QUERIES, WIDTH, numbers, part
from tinygrad.dtype import AddrSpace
from tinygrad.uop.ops import AxisType, KernelInfo, Ops, UOp
from tinygrad_llm.patches.attention import decode_cpu, online_softmax
from tinygrad_llm.patches.attention.flash_decoding import PART
from tinygrad_llm.patches.attention.part import Part
from tinygrad_llm.patches.cache import serialize
from tinygrad_llm.patches.ir.actions import ScheduleOps, action
from tinygrad_llm.patches.search.candidates import Candidates
from tinygrad_llm.patches.search.tuner import kernel_of

CPU, CUDA = renderer("CPU"), renderer("CUDA")

def stored(sink: UOp) -> np.ndarray:
  """o, m and l of each part, without the columns that only align the rows."""
  return results(sink, numbers(sink, 5))[-1].reshape(-1, COLUMNS)[:, :WIDTH + 2]

def scheduled(sink: UOp, ren, *opts) -> UOp | None: return online_softmax.schedule(Part.of(sink), ren, opts)

def test_output_layout_of_a_part():
  """out[h, g, column]: sums of exp2(slope * (score - top)) * values, then top, then the sum of exp2."""
  found = Part.of(part(40))
  assert (found.width, found.depth, found.positions, found.slope) == (WIDTH, DEPTH, 40, 0.5)
  assert [math.prod(int(r.vmax) + 1 for r in of) for of in (found.heads, found.group)] == [HEADS, QUERIES]
  assert found.tokens is None

@pytest.mark.parametrize("n", [1, 5, PART, 100])
def test_gpu_stages(on_a_gpu, n):
  """m[p], l[p], o[p] --> partial products; scores and maxima; exponentials; partial sums: four stages of one block"""
  made = scheduled(sink := part(n), CUDA)
  assert np.allclose(stored(sink), stored(made))
  kinds = [r.arg[-1] for r in made.toposort() if r.op is Ops.RANGE]
  assert kinds.count(AxisType.LOCAL) == 1 and AxisType.GLOBAL in kinds
  assert len({u for u in made.toposort() if u.op is Ops.BUFFER and u.addrspace is AddrSpace.LOCAL}) == 5
  exponentials = [u for u in made.toposort() if u.op is Ops.EXP2]
  assert len(exponentials) == 1  # shared by all columns

@pytest.mark.parametrize("opts", [
  (action(ScheduleOps.THREADS, 64),),
  (action(ScheduleOps.THREADS, 64), action(ScheduleOps.LANES, 1)), (action(ScheduleOps.QUERIES, 1),)])
def test_gpu_block_sizes(on_a_gpu, opts):
  made = scheduled(sink := part(70), CUDA, *opts)
  assert np.allclose(stored(sink), stored(made)) and made is not scheduled(sink, CUDA)

@pytest.mark.parametrize("n", [2, 17, PART])
def test_cpu_running_maximum(n):
  """m, l, o --> s = q @ k of a block; M = max(m, max s); l = l * exp(m - M) + sum exp(s - M); o likewise; m = M"""
  made = scheduled(sink := part(n), CPU)
  assert np.allclose(stored(sink), stored(made))
  assert len([u for u in made.toposort() if u.op is Ops.SHL]) == 2  # exp2 for the rescaled sums, and for the block

@pytest.mark.parametrize("n", [PART + 1, 200])
def test_cpu_position_blocks(n):
  """The running maximum covers all blocks before."""
  kernel = Candidates(serialize.dump([kernel_of(part(n), "CPU", {}).ast]), "CPU", {}, 1 << 20)
  kernel.add(None, kernel.compile(None))
  assert kernel.programs[None].src[0].arg.name.startswith("attention_") and kernel.check(None, 1) < 1

@pytest.mark.parametrize("opts", [(action(ScheduleOps.QUERIES, 1),), (action(ScheduleOps.VECTORS, 1),)])
def test_cpu_tile_sizes(opts):
  made = scheduled(sink := part(40), CPU, *opts)
  assert np.allclose(stored(sink), stored(made)) and made is not scheduled(sink, CPU)

def test_fully_masked_part(on_a_gpu):
  """A part whose positions are all masked has sums of 0."""
  made = scheduled(sink := part(100, hidden=70), CUDA)
  found = stored(made)
  assert np.allclose(stored(sink), found) and np.isfinite(found).all() and (found[0, :WIDTH] == 0).all()

@pytest.mark.parametrize(("ren", "opt"), [
  (CPU, action(ScheduleOps.POSITIONS, 24)), (CPU, action(ScheduleOps.QUERIES, 0)),
  (CUDA, action(ScheduleOps.LANES, 0)), (CUDA, action(ScheduleOps.THREADS, 1))])
def test_rejects_invalid_opts(ren, opt): assert scheduled(part(40), ren, opt) is None

def test_queries_not_divisible_by_threads(monkeypatch):
  """Three threads take four queries in two turns. Surplus threads repeat the last query and do not read beyond it."""
  monkeypatch.setattr(decode_cpu, "most_threads", lambda ren: 3)
  monkeypatch.setattr(decode_cpu, "_tiles", lambda *_: 1)
  made = scheduled(sink := part(40), CPU)
  assert {int(u.vmax) for u in made.toposort() if u.op is Ops.RANGE and u.arg[-1] is AxisType.THREAD} == {2}
  assert np.allclose(stored(sink), stored(made))  # numpy raises for an index beyond an array

def test_single_position_has_no_schedule():
  """Without a loop over positions there is no schedule."""
  assert scheduled(part(1), CPU) is None

def test_only_part_kernels_get_the_schedule(monkeypatch):
  """A part's kernel is lowered with this schedule and no other; all other kernels are lowered as usual."""
  asked = []
  def lowered(ast: UOp, ren, optimize: bool = True) -> UOp:
    asked.append(optimize)
    return ast.replace(tag=("none", 1, 2))
  monkeypatch.setattr(online_softmax, "_full_rewrite_to_sink", lowered, raising=False)
  made = online_softmax.full_rewrite_to_sink(part(40), CPU)
  assert asked == [False] and made.tag == ("online_softmax", 1, 2) and made.arg.name.startswith("attention_")
  other = UOp.sink(arg=KernelInfo())
  assert online_softmax.full_rewrite_to_sink(other, CPU).tag == ("none", 1, 2)
  assert online_softmax.full_rewrite_to_sink(part(40), CPU, False).src == part(40).src and asked == [False, True, False]
