"""graph/horizontal_fusion: products of one input become one launch; before and after, evaluated by numpy."""
import functools

import numpy as np
import pytest
from tests.support.calls import buffer, launched, linear, product
from tinygrad import Device, codegen, dtypes
from tinygrad.codegen.opt import Opt, OptOps
from tinygrad.dtype import AddrSpace
from tinygrad.uop.ops import KernelInfo, Ops, UOp
from tinygrad_llm.patches.graph import horizontal_fusion
from tinygrad_llm.patches.graph.horizontal_fusion import BESIDE, kernels_of
from tinygrad_llm.patches.ir.targets import most_threads
from tinygrad_llm.patches.schedule import cpu_threads

X, Y, Z, OTHER = buffer(512), buffer(256), buffer(128), buffer(512)
W, WZ = buffer(256 * 512), buffer(128 * 512)

@pytest.fixture
def fused(monkeypatch):
  monkeypatch.setattr(horizontal_fusion, "_create_schedule", linear, raising=False)
  return lambda *calls: horizontal_fusion.create_schedule(calls).src

FIRST, SECOND = product(256, 512, Y, X, W), product(128, 512, Z, X, WZ)

def test_products_of_one_input_are_fused(fused):
  """launch y = w @ x; launch z = wz @ x --> launch (y = w @ x; z = wz @ x)"""
  made, = after = fused(FIRST, SECOND)
  assert made.src[1:] == (Y, X, W, Z, WZ) and made.src[0].arg.name == BESIDE
  assert kernels_of(made.src[0]) == made.src[0].src and kernels_of(FIRST.src[0]) == (FIRST.src[0],)
  before, now = launched([FIRST, SECOND]), launched(after)
  assert all(np.array_equal(before[b], now[b]) for b in before)

@pytest.mark.parametrize("calls", [
  (FIRST, product(128, 512, Z, OTHER, WZ)),                 # another input
  (product(512, 256, X, Y, W), SECOND),                     # the second reads what the first stores
  (FIRST, product(256, 512, Y, X, W)),                      # both store the same
  (FIRST, product(8, 512, Z, X, WZ)),                       # a small one, which one thread computes
  (FIRST, SECOND.replace(src=(SECOND.src[0].rtag("x"), *SECOND.src[1:]))),
  # the kernel comes with its schedule
  (FIRST, SECOND.replace(src=(UOp.sink(*SECOND.src[0].src, arg=KernelInfo(opts_to_apply=())), *SECOND.src[1:])))])
def test_other_launches_unchanged(fused, calls): assert fused(*calls) == calls

def test_at_most_two_products_are_fused(fused):
  """A third product is a launch of its own."""
  assert [len(c.src[1:]) for c in fused(FIRST, SECOND, product(512, 512, OTHER, X, buffer(512 * 512)))] == [5, 3]

def lowered(rows: int, threads: int) -> UOp:
  """A lowered stage that `threads` threads share."""
  core = UOp.param(2, dtypes.int, (), vmin_vmax=(0, threads), name="core_id", addrspace=AddrSpace.ALU)
  y, x = (UOp.param(slot, dtypes.float, (rows,)) for slot in (0, 1))
  return UOp.sink(y.index(core).store(x.index(UOp.range(rows, 0))), arg=KernelInfo(f"r_{rows}", applied_opts=(
    Opt(OptOps.THREAD, 0, threads),))).replace(tag=("gemv_cpu", rows, 2 * rows))

def test_fused_stages_need_no_barrier(monkeypatch):
  """stages y, z --> one kernel whose threads do their share of both; the parameter core_id follows all buffers"""
  stages, alone, threads = {"y": lowered(256, 1), "z": lowered(128, 1)}, [], {"y": 2, "z": 2}
  def full_rewrite_to_sink(ast: UOp, *_) -> UOp: return alone.append(ast) or stages[ast.arg.name]
  monkeypatch.setattr(horizontal_fusion, "_full_rewrite_to_sink", full_rewrite_to_sink, raising=False)
  monkeypatch.setattr(horizontal_fusion, "_threads", lambda lower: threads[lower.args[0].arg.name])
  of = UOp.sink(*[UOp.sink(arg=KernelInfo(name)) for name in stages], arg=KernelInfo(BESIDE))
  made = horizontal_fusion.full_rewrite_to_sink(of, Device["CPU"].renderer)
  assert len(alone) == 2 and len(made.src) == 2 and made.arg.name == "p2_r_256" and made.tag == ("gemv_cpu", 384, 768)
  assert not any(u.op is Ops.BARRIER for u in made.toposort())
  assert {u.arg.slot for u in made.toposort() if u.op is Ops.PARAM and u.arg.name == "core_id"} == {2}
  assert len({u.arg[0] for u in made.toposort() if u.op is Ops.RANGE}) == 2
  asked = list[bool]()
  def told(ast: UOp, *_) -> UOp: return asked.append(cpu_threads._alone.get()) or stages[ast.arg.name]
  monkeypatch.setattr(horizontal_fusion, "_full_rewrite_to_sink", told)
  for threads["z"], single in (4, True), (1, False):  # stages with different thread counts run on one thread
    horizontal_fusion.full_rewrite_to_sink(of, Device["CPU"].renderer)
    assert asked == [single] * 2
    asked.clear()

@pytest.mark.parametrize("rows", [4096, 8])
def test_thread_count_is_known_before_expansion(rows, monkeypatch):
  """The thread count follows from the loops: lowering stops before expansion, and the next kernel is lowered fully."""
  ast, ren = product(rows, 512, buffer(rows), X, buffer(rows * 512)).src[0], Device["CPU"].renderer
  names, rewrite = list[str](), codegen.graph_rewrite
  def graph_rewrite(*args, name, **kwargs): return names.append(name) or rewrite(*args, name=name, **kwargs)
  monkeypatch.setattr(codegen, "graph_rewrite", graph_rewrite)
  lower = functools.partial(codegen.full_rewrite_to_sink, ast, ren)
  found = horizontal_fusion._threads(lower)
  assert "simplify ranges" in names and "expander" not in names
  whole = {int(u.vmax) + 1 for u in lower().toposort() if u.op is Ops.PARAM and u.arg.name == "core_id"}
  assert (whole or {1}) == {found} == {most_threads(ren) if rows > 8 else 1} and "expander" in names
