"""loops/implicit_barriers: CPU kernels skip the search for barriers; GPU kernels keep theirs; before and after."""
import pytest
from tests.support.calls import buffer, product
from tinygrad import codegen, dtypes
from tinygrad.device import Device
from tinygrad.dtype import AddrSpace
from tinygrad.uop.ops import KernelInfo, Ops, UOp, graph_rewrite
from tinygrad_llm.patches import hooks, is_on
from tinygrad_llm.patches.loops import implicit_barriers

pytestmark = pytest.mark.skipif(not is_on("implicit_barriers"), reason="it is off")

def loop_over_shared() -> UOp:
  """for i: shared[0] = in[i]; out[i] = shared[0]"""
  out, data = (UOp.param(i, dtypes.float, (64,), "CPU") for i in range(2))
  shared, i, zero = UOp.placeholder((1,), dtypes.float, 0, addrspace=AddrSpace.LOCAL), UOp.range(64, 0), UOp.const(0)
  filled = shared.after(shared.index(zero).store(data.index(i).load()))
  return out.index(i).store(filled.index(zero).load()).end(i).sink(arg=KernelInfo())

def barriers(u: UOp) -> int: return sum(x.op is Ops.BARRIER for x in u.toposort())

@pytest.mark.parametrize(("shares", "before_the_end"), [(True, 1), (False, 0), (None, 1)])
def test_barrier_at_loop_end(shares, before_the_end, monkeypatch):
  """END(store, i) --> END(BARRIER(store, load), i) if threads share memory, and outside of lowering."""
  kernel = None if shares is None else hooks._Kernel(None, shares)
  with hooks._set(hooks._kernel, kernel): made = graph_rewrite(loop_over_shared(), codegen.pm_implicit_barriers)
  end, = made.src
  assert (end.src[0].op is Ops.BARRIER) is bool(before_the_end)
  assert barriers(made) == before_the_end + 1  # between the store and the load, in any case

def test_tinygrad_rule_runs_on_gpus_only(monkeypatch):
  """tinygrad's rule runs for a GPU kernel, but not for a CPU kernel."""
  asked = list[UOp]()
  monkeypatch.setattr(implicit_barriers, "_add_war_barrier", lambda end: asked.append(end))
  ast = product(64, 512, buffer(64), buffer(512), buffer(64 * 512)).src[0]
  end = UOp.sink().end(UOp.range(4, 0))
  with hooks._set(hooks._kernel, hooks._Kernel(None, Device["CPU"].renderer.has_local)):
    assert implicit_barriers.add_war_barrier(end) is None and not asked
  codegen.full_rewrite_to_sink(ast, Device["CPU"].renderer)
  assert not asked
  with hooks._set(hooks._kernel, hooks._Kernel(None, True)): implicit_barriers.add_war_barrier(end)
  assert asked == [end]
