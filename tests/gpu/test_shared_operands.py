"""Activations staged in shared memory: memory transactions, bank conflicts and numerics, without a GPU."""
import functools

from tests.support import child
from tests.gpu import gpu_numbers
from tests.gpu import gpu_renderers
from tests.gpu import gpu_schedules
import numpy as np
import pytest
from tests.support.extended import extended, sample, some
from tests.gpu.gpu_checks import useful
from tests.tools.kernel_cases import has_cuda_wheels
from tinygrad import Tensor, dtypes
from tinygrad.dtype import AddrSpace
from tinygrad.engine.realize import compile_linear, run_linear
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.ir.banks import wavefronts
from tinygrad_llm.patches.search.cost.memory_access import WARP, accesses, further_passes
from tinygrad_llm.quants.table import reference
from tinygrad_llm.weights.decode import dequantize

SECTORS = 1 / 1.25  # least used share of the sectors that a load of x touches
LINES = 4.5         # cache lines that it touches, at most
TYPES = ("Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q4_0", "IQ4_XS", "MXFP4", "NVFP4")
CASES = [*((name, 64, 2048) for name in TYPES), ("Q8_0", 64, 576), ("Q4_0", 36, 5120), ("Q4_K", 32, 14336),
         ("Q6_K", 16, 4096), ("MXFP4", 60, 2880), ("Q8_0", 48, 21 * 32)]

# *** banks

@pytest.mark.parametrize(("places", "width", "found"), [
  (range(0, 128, 4), 4, 1), (range(0, 512, 16), 16, 4), (range(0, 32 * 256, 256), 16, 32), ([0] * 32, 4, 1),
  (range(0, 32 * 272, 272), 16, 4), (range(0, 256, 8), 4, 2), (range(0, 64, 2), 2, 1), (range(0, 8192, 128), 4, 64)])
def test_wavefronts_of_access_patterns(places, width, found):
  """Wavefronts of adjacent, strided, padded, broadcast and paired accesses."""
  assert wavefronts(list(places), width) == found

# *** memory transactions of warps

def touched(cases: list[tuple], target: str, q8: bool = False) -> list[dict]:
  """
  Memory transactions of matvec kernels; it runs in a child process.

  `useful`, `lines`: used share of sectors, and cache lines a load, of everything but weights. `passes`, `least`:
  shared-memory passes beyond one a request, as they are and without bank conflicts. `arrays`: in shared memory.
  """
  found = []
  for name, rows, n in cases:
    call = gpu_numbers.matvec(name, rows, n, q8)[0].linear_with_vars()[0].src[-1]
    uops = gpu_renderers.lowered(call.src[0], target)
    slot = max(range(1, len(call.src)), key=lambda i: call.src[i].nbytes()) - 1
    x = [a for a in accesses(uops) if not a.store and a.slot != slot]
    found.append({"useful": useful(x), "lines": sum(a.lines * a.trips for a in x) / sum(a.trips for a in x),
                  "passes": further_passes(uops), "least": least_passes(uops),
                  "arrays": sum(u.op is Ops.BUFFER and u.addrspace is AddrSpace.LOCAL for u in uops),
                  "barriers": sum(u.op is Ops.BARRIER for u in uops)})
  return found

def least_passes(uops: list[UOp]) -> int:
  """further_passes without bank conflicts."""
  total, trips = 0, [1]
  for u in uops:
    if u.op is Ops.RANGE: trips.append(trips[-1] * (int(u.vmax) + 1))
    elif u.op is Ops.END: trips.pop()
    elif u.op in (Ops.LOAD, Ops.STORE) and u.src[0].addrspace is AddrSpace.LOCAL:
      total += trips[-1] * ((u if u.op is Ops.LOAD else u.src[1]).max_numel() * 4 * WARP // 128 - 1)
  return total

@functools.cache
def on(target: str) -> dict[tuple, dict]:
  """{case: its transactions}; all cases for CUDA, a third for other targets."""
  cases = CASES if target == "CUDA" else CASES[::3]
  return dict(zip(cases, child.call(touched, cases, target).value))

@extended
@pytest.mark.parametrize("target", ["CUDA", "Metal", "PTX", "OpenCL"])
def test_x_is_interleaved_in_shared_memory(target):
  wrong = {case: f for case, f in on(target).items() if f["useful"] < SECTORS or f["lines"] > LINES}
  assert wrong == {}

@extended
def test_no_bank_conflicts():
  """Kernels with only x in shared memory have no bank conflicts."""
  found = {case: (f["passes"], f["least"]) for case, f in on("CUDA").items() if f["arrays"] == 1}
  assert len(found) >= len(TYPES) and {case: f for case, f in found.items() if f[0] > f[1]} == {}

@extended
def test_number_of_barriers():
  """One barrier after the fetch; if each iteration fetches a tile, another before the next iteration."""
  assert {on("CUDA")[name, 64, 2048]["barriers"] for name in TYPES} == {1}
  assert (on("CUDA")["Q4_0", 36, 5120]["barriers"], on("CUDA")["Q4_K", 32, 14336]["barriers"]) == (2, 2)
  # 16 KB of x at once, and the partial sums of a row's two warps
  assert (on("CUDA")["Q6_K", 16, 4096]["barriers"], on("CUDA")["Q6_K", 16, 4096]["arrays"]) == (2, 2)

def test_disabled_by_switch():
  """Without the patch each thread touches its own cache line; halves do not need the patch."""
  found = child.call(touched, [("Q4_K", 64, 2048)], "CUDA", NO_SHARED_OPERANDS="1").value[0]
  assert (found["lines"], found["arrays"], found["barriers"]) == (32.0, 0, 0)
  assert child.call(touched, [("F16", 64, 2048)], "CUDA", MV_ROWS_PER_THREAD="4").value[0]["barriers"] == 0

def test_two_byte_activations():
  """Two-byte activations: words of high bytes, of low bytes, and scales are three arrays behind one barrier."""
  found = child.call(touched, [("Q4_K", 64, 2048), ("Q8_0", 64, 2048)], "CUDA", True).value
  assert [(f["arrays"], f["barriers"]) for f in found] == [(3, 1), (3, 1)] and max(f["lines"] for f in found) <= LINES

@pytest.mark.skipif(not has_cuda_wheels(), reason="NVIDIA makes no NVRTC wheel for this machine")
@pytest.mark.parametrize("role", sample(["1b.out", "8b.down", "qwen3moe.gate_up", "qwen3moe.down"], ["1b.out"]))
def test_registers_within_limits(role):
  """Registers and stack stay within limits, also with barriers in the loop."""
  found, = gpu_schedules.measure("CUDA:sm_90", (role,), ("Q4_K",))
  assert (found.registers <= 128, found.stack, found.useful_x >= SECTORS) == (True, 0, True), found

# *** numbers

@pytest.fixture(scope="module")
def opencl() -> dict[str, str]:
  if (env := gpu_numbers.opencl()) is None: pytest.skip("no OpenCL runtime with halves is here")
  return env

def test_results_match_reference(opencl):
  rng = np.random.default_rng(14)
  shapes = [(name, int(rng.integers(4, 70)), 256 * int(rng.integers(1, 24)), None) for name in TYPES]
  cases = [*((*case, None) for case in CASES[len(TYPES):]), *shapes]
  found = dict(zip(cases, child.call(gpu_numbers.errors, cases, **opencl).value))
  assert {case: error for case, error in found.items() if not error < 1e-5} == {}

def test_int8_results_match_reference(opencl):
  cases = [(name, rows, n, None, True) for name, rows, n in (("Q4_K", 36, 5120), ("Q6_K", 32, 8192), ("Q8_0", 64, 768))]
  assert max(child.call(gpu_numbers.errors, cases, **opencl).value) < 1e-5

def scaled(cases: list[tuple], squares: bool) -> list[tuple[float, int, int]]:
  """
  (error, shared-memory arrays, barriers) of (x * g) @ w, divided by the root mean square of x if `squares`.

  It runs in a child process; arrays and barriers are the CUDA kernel's.
  """
  found = []
  for name, rows, n in cases:
    qt, rng = gpu_numbers.quant_named(name), np.random.default_rng(3)
    packed, lay = gpu_numbers.held(qt, raw := gpu_numbers.file_rows(qt, rows, n), n)
    x, g = rng.standard_normal((2, n)).astype(np.float32)
    w = dequantize(qt, packed if lay is None else lay.rows(packed), n, lay)
    y = (Tensor(x).realize() * Tensor(g).realize()).reshape(1, 1, n) @ w.transpose(-1, -2)
    wanted = reference(qt, raw.reshape(-1), n).reshape(rows, n).astype(np.float64) @ (x.astype(np.float64) * g)
    linear, variables = y.linear_with_vars()
    call = linear.src[-1]
    if squares:
      ast = over_root(call.src[0], n)
      call, wanted = call.replace(src=(ast, *call.src[1:])), wanted / np.sqrt((x.astype(np.float64) ** 2).mean())
    run_linear(compile_linear(linear.replace(src=(*linear.src[:-1], call))), variables)
    got = np.frombuffer(y.uop.base.buffer.as_memoryview(), np.float32)
    uops = gpu_renderers.lowered(call.src[0], "CUDA")
    found.append((float(np.abs(got - wanted).max() / np.sqrt((wanted ** 2).mean())),
                  sum(u.op is Ops.BUFFER and u.addrspace is AddrSpace.LOCAL for u in uops),
                  sum(u.op is Ops.BARRIER for u in uops)))
  return found

def over_root(ast: UOp, n: int) -> UOp:
  """A product divided by its x's root mean square: a second reduction over the same ranges, of the first array of x."""
  red, = (u for u in ast.toposort() if u.op is Ops.REDUCE)
  x = min((u for u in red.src[0].toposort() if u.op is Ops.INDEX and u.dtype is dtypes.float
           and set(red.src[1:]).issuperset(u.ranges)), key=lambda u: u.src[0].arg.slot)
  squares = (x * x).reduce(*red.src[1:], arg=Ops.ADD)
  return ast.substitute({red: red * (squares * (1 / n)).sqrt().reciprocal()}, walk=True)

def test_scaled_x_is_computed_once(opencl):
  found = child.call(scaled, [("Q4_K", 64, 2048), ("Q8_0", 48, 5120), ("Q6_K", 36, 768)], False, **opencl).value
  assert max(error for error, *_ in found) < 1e-5
  assert [arrays for _, arrays, _ in found] == [1, 1, 1]

def test_two_sums_over_the_same_loops(opencl):
  found = child.call(scaled, [("Q4_K", 64, 2048), ("Q8_0", 48, 5120), ("MXFP4", 20, 576)], True, **opencl).value
  assert max(error for error, *_ in found) < 1e-5
  # x, the partial sums across warps, and parts of the sum where all of x is fetched before the loop
  assert [arrays for _, arrays, _ in found] == [2, 1, 3]

def ranked(target: str) -> tuple[float, bool]:
  """Ranks 64 numbers in each row, equal ones by position: the error, and whether threads share a reduction."""
  x = np.random.default_rng(1).integers(0, 40, (3, 64)).astype(np.float32)
  t, i = Tensor(x).realize(), Tensor.arange(64)
  one, other = t.unsqueeze(2), t.unsqueeze(1)
  y = ((other > one) | (other == one) & (i < i.unsqueeze(-1))).sum(-1, dtype=dtypes.int32)
  order = np.argsort(np.argsort(-x, kind="stable"), kind="stable")
  error, opts, *_ = gpu_numbers._lockstep(target, y, order.ravel().astype(np.float64))
  return error, "GROUP" in opts

@pytest.mark.parametrize("target", some(["CUDA", "Metal"], 0))
def test_index_dependent_values_keep_own_iterations(target):
  """Threads keep their own iterations if the value depends on the index, as a rank among equals does."""
  assert child.call(ranked, target).value == [0, True]
