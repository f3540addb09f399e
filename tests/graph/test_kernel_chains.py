"""graph/kernel_chains: chains successive small launches into one; before and after, evaluated by numpy."""
import numpy as np
import pytest
from tests.gpu import gpu_renderers
from tests.support.calls import buffer, launched, linear, mapped
from tinygrad import dtypes
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.uop.ops import AxisType, KernelInfo, Ops, UOp
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.graph import kernel_chains
from tinygrad_llm.patches.graph.kernel_chains import APART, SHARED, WORK, in_one_group

A, B, C, D = (buffer() for _ in range(4))
OTHER = buffer(device="CPU:1")
LARGE = 2 * WORK

@pytest.fixture
def chained(monkeypatch):
  monkeypatch.setattr(kernel_chains, "_create_schedule", linear, raising=False)
  return lambda *calls: kernel_chains.create_schedule(calls).src

def same(before: list[UOp], after: tuple[UOp, ...]) -> bool:
  a, b = launched(before), launched(after)
  return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)

def test_dependent_launches_are_chained(chained):
  """launch b = f(a); launch c = f(b); launch d = f(a, c) --> launch (b = f(a); c = f(b); d = f(a, c))"""
  made, = after = chained(*(calls := [mapped(64, B, A), mapped(8, C, B), mapped(16, D, A, C)]))
  assert made.src[1:] == (B, A, C, D) and same(calls, after)
  slots = [[u.arg.slot for u in stage.toposort() if u.op is Ops.PARAM] for stage in made.src[0].src]
  assert [sorted(found) for found in slots] == [[0, 1], [0, 2], [1, 2, 3]]

def test_chains_across_independent_launch(chained):
  """launch b = f(a); launch d = g(d), large; launch c = f(b) --> launch (b = f(a); c = f(b)); launch d = g(d)"""
  after = chained(*(calls := [mapped(8, B, A), mapped(LARGE, D), mapped(8, C, B)]))
  assert [len(c.src[1:]) for c in after] == [3, 1] and after[1] is calls[1]

@pytest.mark.parametrize(("between", "launches"), [
  (mapped(LARGE, B), 3), (mapped(LARGE, D, B), 2), (mapped(LARGE, C), 3), (mapped(LARGE, D, C), 3)])
def test_no_chain_across_conflicting_launch(chained, between, launches):
  """A launch does not move before one that it conflicts with (read after write, write after read or write)."""
  assert len(chained(mapped(8, A), between, mapped(8, C, B))) == launches

@pytest.mark.parametrize("second", [mapped(LARGE, C, B), mapped(8, OTHER, OTHER), mapped(8, C, B).replace(src=(
  mapped(8, C, B).src[0].replace(arg=KernelInfo(opts_to_apply=())), C, B))])
def test_kernels_that_are_not_chained(chained, second):
  """Not chained: too much work for one thread; another device; a kernel that comes with its schedule."""
  assert chained(*(calls := [mapped(8, B, A), second])) == tuple(calls)

# *** the threads of a stage

def scheduled(n: int, steps: int) -> tuple:
  i, k = UOp.range(n, 0, AxisType.WEAK), UOp.range(steps, 1, AxisType.REDUCE)
  y, x = (UOp.param(slot, dtypes.float, (1 << 16,)) for slot in (0, 1))
  value = x.index(i * steps + k).reduce(k, arg=Ops.ADD) if steps else x.index(i)
  k = Scheduler(UOp.sink(y.index(i).store(value).end(i), arg=KernelInfo()), gpu_renderers.named("CUDA"))
  k.convert_loop_to_global()
  made = in_one_group(k)
  assert not made.ranges_of(AxisType.GLOBAL) and not k.applied_opts
  return tuple((o.op.name, o.arg) for o in made.applied_opts)

def test_stages_use_one_thread_block():
  """Outputs, or one sum's iterations, are spread over at most 256 threads; warps reduce sums by shuffles."""
  assert scheduled(96, 0) == (("LOCAL", 32),) and scheduled(1024, 0) == (("LOCAL", 256),)
  assert scheduled(1, 512) == (("GROUP", 32), ("GROUP", 8)) and scheduled(1, 48) == (("GROUP", 16),)

def stage(name: str, *sizes: int) -> UOp:
  """A stage whose threads store their number in each dimension, with a loop and an array."""
  own = UOp.placeholder((4,), dtypes.int, 3)
  threads = [UOp(Ops.SPECIAL, dtypes.int, (UOp.const(n, dtypes.int),), f"lidx{i}") for i, n in enumerate(sizes)]
  return UOp.sink(*[own.index(UOp.range(4, 2)).store(t) for t in threads], arg=KernelInfo(name))

def test_barrier_between_stages(monkeypatch):
  """stages a (4 x 4 x 2 threads), b (16) --> 32 threads: a by t & 3, (t >> 2) & 3, t >> 4; barrier; b by t & 15"""
  monkeypatch.setattr(kernel_chains, "_full_rewrite_to_sink", lambda ast, *_: ast, raising=False)
  of = UOp.sink(stage("a", 4, 4, 2), stage("b", 16))
  made = kernel_chains.full_rewrite_to_sink(of, gpu_renderers.named("CUDA"))
  x, y, z, b = made.src
  row, = {u for u in made.toposort() if u.op is Ops.SPECIAL}
  assert row.src[0].vmax == 32 and row.arg == "lidx0" and made.arg.name == "s2_a"
  for thread in (0, 5, 13, 31):
    places = [u.src[1].substitute({row: UOp.const(thread, dtypes.int)}, walk=True) for u in made.src]
    assert [int(at.simplify().vmax) for at in places] == [thread % 4, thread // 4 % 4, thread // 16, thread % 16]
  barrier, = {u for u in made.toposort() if u.op is Ops.BARRIER}
  assert barrier.src == (x, y, z) and barrier.tag == SHARED and barrier in b.src[0].src[0].src
  first, second = sorted((u for u in made.toposort() if u.op is Ops.RANGE), key=lambda u: u.arg)
  assert (first.arg[0], second.arg[0]) == (2, 2 + APART) and barrier in second.src and barrier not in first.src

@pytest.mark.skipif(not is_on("kernel_chains"), reason="it is off")
@pytest.mark.parametrize(("name", "text"), [("Metal", "mem_flags::mem_device"), ("OpenCL", "CLK_GLOBAL_MEM_FENCE")])
def test_barrier_source_text(name, text):
  rules = gpu_renderers.named(name).string_rewrite
  assert text in rules.rewrite(UOp(Ops.BARRIER, tag=SHARED), ctx=None)
