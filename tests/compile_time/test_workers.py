"""compile_time/workers.py and runtime/estimates.py: kernels of any depth come back from compile workers."""
import pickle
from multiprocessing.reduction import ForkingPickler
import pytest
from tests.support.extended import extended
from tests.support import search_kernel
from tests.support.child import call, run
from tests.gpu.gpu_numbers import opencl
from tinygrad import Context, Device, Tensor, UOp, codegen, dtypes
from tinygrad.codegen import to_program
from tinygrad.engine import realize, worker
from tinygrad.uop.ops import Ops, sym_infer
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.cache import schedules, serialize
from tinygrad_llm.patches.runtime import estimates
from tinygrad_llm.patches.search import tuner
from tinygrad_llm.patches.search.cost import memory_access
from tinygrad_llm.patches.search.space import space

pytestmark = pytest.mark.skipif(not (is_on("workers") and is_on("estimates")), reason="they are off")

def chain(n: int) -> UOp:
  u = UOp.const(1, dtypes.int)
  for i in range(n): u = UOp(Ops.XOR, dtypes.int, (u, UOp.const(i, dtypes.int)))
  return u

def sent(x): return pickle.loads(bytes(ForkingPickler.dumps(x)))

def test_deep_graphs_are_pickled():
  deep = chain(5000)
  with pytest.raises(RecursionError): pickle.dumps(deep)
  assert sent((3, deep)) == (3, deep)
  assert sent(deep) is deep

def test_buffers_are_pickled_with_contents():
  x = (Tensor([1., 2., 3.]).realize() * 2).uop
  assert Tensor(sent(x)).tolist() == [2., 4., 6.]

def estimated() -> list:
  """A sum over 80 windows of n numbers of a buffer: nodes of its bytes' estimate, and estimates for n = 1, 3, 64."""
  n, x = UOp.variable("n", 1, 64).bind(3), Tensor.empty(512)
  total = sum([x[i:i + n] for i in range(2, 160, 2)], x[:n])
  ast, renderer = realize._get_call_to_compile(total.linear_with_vars()[0].src[-1])
  with Context(CCACHE=0): found = to_program(ast, renderer).src[0].arg.estimates
  return [len(found.mem.toposort()), [sym_infer(getattr(found, field), {"n": value}) for value in (1, 3, 64)
                                      for field in ("ops", "lds", "mem")]]

def test_estimates_are_simple():
  """Estimates equal tinygrad's, whose bytes are min(min(n + n, size) + n, size) + .., but have few nodes."""
  (nodes, numbers), (stock_nodes, stock) = estimated(), call(estimated, NO_ESTIMATES="1").value
  assert nodes < 20 < 200 < stock_nodes and numbers == stock

@extended
def test_estimates_of_loops():
  """Estimates of a GEMM with symbolic rows, of one core's share, and of a loaded index equal tinygrad's."""
  found = call(estimates_of_loops).value
  assert found == call(estimates_of_loops, NO_ESTIMATES="1").value and all(x > 0 for row in found for x in row)

def estimates_of_loops() -> list:
  n = UOp.variable("n", 1, 32).bind(7)
  w, x, rows = Tensor.empty(96, 64, dtype="half"), Tensor.empty(32, 64), Tensor.empty(5, dtype="int")
  found = []
  for lazy in (x[:n] @ w.T.float(), Tensor.empty(1 << 18) * 2, w[rows].float().max(-1), Tensor.empty(40, 40).softmax()):
    for step in lazy.linear_with_vars()[0].src:
      estimates = to_program(*realize._get_call_to_compile(step)).src[0].arg.estimates
      found.append([sym_infer(getattr(estimates, field), {"n": 7}) for field in ("ops", "lds", "mem")])
  return found

def test_estimates_of_variable_length_loops():
  """A loop whose length depends on the block's number counts its middle value; one with a loaded bound its maximum."""
  block, n = UOp.special(9, "gidx0"), UOp.variable("n", 1, 64).replace(op=Ops.PARAM)
  loaded = Tensor.empty(4, dtype="int").uop.base.index(UOp.const(0)).load()
  ended = (loaded < 3).where(UOp.const(8), UOp.const(0))
  for length, steps in ((block + 1, 5), (block * n + 1, 29), (ended, 8), (UOp.const(6), 6)):
    loop = UOp.range(length, 0)
    assert sym_infer(estimates._inner(3, loop), {"n": 7}) == 3 * steps, length
    assert memory_access.length(loop, {"n": 7}) == steps, length

def test_workers_and_estimates_switched_off():
  code = """
import pickle, tinygrad_llm
from multiprocessing.reduction import ForkingPickler
from tinygrad.renderer import Estimates
from tinygrad.uop.ops import UOp
print(UOp in ForkingPickler._extra_reducers, Estimates.from_uops.__module__)
"""
  on, off = (run(code, **env).stdout for env in ({}, {"NO_WORKERS": "1", "NO_ESTIMATES": "1"}))
  assert (on, off) == ("True tinygrad_llm.patches.runtime.estimates\n", "False tinygrad.renderer\n")

def with_a_schedule() -> list[bool]:
  """Whether a compile worker identifies the device as this process does, and uses the schedule found for it."""
  kernel = search_kernel.product()
  ren = Device[kernel.device].renderer
  found = space(kernel.ast, ren)
  near = (found.opts(steps) for steps in found.neighbours(found.steps(tuner.present(found))))
  other = next(opts for opts in near if opts is not None and opts != tuner.present(found))
  device = schedules.device_of(kernel.device, ren)
  schedules.put(schedules.Entry(kernel.key, "", [], "w x", device, {}, other, 0.9, 12.5, "2026-11-25"))
  (known, made), = worker.get_worker_pool().map(_in_worker, [(serialize.dump([kernel.ast]), kernel.device, ren)])
  return [device["model"] != "", known == device, made == [repr(opt) for opt in other]]

def _in_worker(task) -> tuple:
  data, device, ren = task
  sink = codegen.full_rewrite_to_sink(serialize.load(data)[0], ren)
  return schedules.device_of(device, ren), [repr(opt) for opt in sink.arg.applied_opts]

@pytest.mark.skipif(opencl() is None, reason="no OpenCL runtime")
def test_worker_uses_stored_gpu_schedule(tmp_path):
  """A worker uses the schedule stored under the GPU's name, although it must not open the device."""
  assert call(with_a_schedule, PARALLEL="1", CACHEDB=str(tmp_path / "cache.db"), **opencl()).value == [True] * 3
