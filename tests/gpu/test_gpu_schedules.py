"""Quantised matvecs for GPUs: compiled code and numerics, without a GPU."""
import dataclasses
import functools
import os
import re
from unittest import mock

from tests.support import child
from tests.gpu import gpu_numbers
from tests.gpu import gpu_prompts
from tests.gpu import gpu_renderers
from tests.gpu import gpu_schedules
import pytest
from tests.support.extended import extended, sample, some
from tests.gpu.gpu_checks import useful
from tests.gpu.gpu_peers import N, PEERS, ROWS, THREADS
from tests.gpu.gpu_schedules import Figures
from tests.tools.kernel_cases import has_cuda_wheels
from tinygrad_llm.device import metal
from tinygrad_llm.patches.isa import launch_bounds
from tinygrad_llm.patches.search.cost.memory_access import Access
from tinygrad_llm.weights import numerics

cuda = pytest.mark.skipif(not has_cuda_wheels(), reason="NVIDIA makes no NVRTC wheel for this machine")

# *** limits on each kernel's figures. All types, shapes and architectures: make gpu-schedules

SCHEDULES = [
  ("CUDA:sm_87", "1b.out", "Q4_K"), ("CUDA:sm_80", "1b.qkv", "Q5_K"), ("CUDA:sm_90", "8b.down", "Q6_K"),
  ("CUDA:sm_90", "1b.head", "F16"), ("CUDA:sm_90", "qwen3moe.gate_up", "Q4_K"), ("CUDA:sm_80", "qwen3moe.down", "Q4_K"),
  ("CUDA:sm_87", "gpt-oss.down", "MXFP4"), ("CUDA:sm_90", "olmoe.down", "Q6_K")]

@cuda
@pytest.mark.parametrize(("target", "role", "name"), sample(SCHEDULES, SCHEDULES[:1]))
def test_schedule_figures_within_limits(target, role, name):
  found, = gpu_schedules.measure(target, (role,), (name,))
  assert (found.wrong(), found.forbidden) == ([], []), gpu_schedules.table([found])

OF_TOKENS = [("CUDA:sm_90", "1b.down", "Q6_K", 4), ("CUDA:sm_90", "1b.gate_up", "Q4_K", 8),
             ("CUDA:sm_80", "8b.out", "Q8_0", 2), ("CUDA:sm_87", "1b.head", "MXFP4", 4),
             ("CUDA:sm_80", "1b.qkv", "F16", 8)]

@cuda
@pytest.mark.parametrize(("target", "role", "name", "tokens"), sample(OF_TOKENS, OF_TOKENS[:2]))
def test_schedules_of_several_rows_of_x_within_limits(target, role, name, tokens):
  found, = gpu_schedules.measure(target, (role,), (name,), tokens=tokens)
  assert (found.wrong(), found.forbidden) == ([], []), gpu_schedules.table([found])
  assert "GROUP" in found.opts  # tinygrad's own has no threads that share a row

@extended
@cuda
def test_int8_schedule_figures_within_limits():
  """With int8 activations the loads stay good. tinygrad counts a dot of four bytes as one operation: 3/4 are gone."""
  found = gpu_schedules.measure("CUDA:sm_90", ("1b.gate_up",), ("Q4_K", "Q8_0"), True)
  assert [row.wrong() for row in found] == [[], []], gpu_schedules.table(found)
  assert [row.ops < most for row, most in zip(found, (1.75, 1))] == [True, True]

@extended
@cuda
def test_stock_schedule_misses_limits():
  """tinygrad's own schedule misses the limits: its loads are not coalesced."""
  found = child.call(stock, NO_GEMV="1").value
  assert {"useful", "width", "threads"} <= set(found)

def stock() -> list[str]:
  from tinygrad_llm.device.device import open_target
  open_target("CUDA:sm_90")
  row = gpu_schedules.figures("CUDA:sm_90", "1b.out", "Q4_K")
  return row.wrong()

def test_figures_outside_limits_are_named():
  right = Figures("CUDA:sm_90", "1b.out", "Q4_K", 1, "", "", 1 << 14, 16, 1.0, 0.5, 1.0, 1.0, 100, 0, 4.5, 6.0, [])
  assert right.wrong() == []
  for change in ({"kernels": 2}, {"width": 8}, {"useful": 0.84}, {"threads": 2047}, {"stack": 8}, {"registers": 129},
                 {"ops": 4.9}, {"held": 1.06}, {"read": 1.06}, {"forbidden": ["I2F"]}):
    assert dataclasses.replace(right, **change).wrong() == list(change)

def test_useful_fraction_counts_bytes():
  """A narrow load that uses whole sectors, and a wide one that uses half of each."""
  narrow, wide = Access(1, False, 4, 1, 0, 1.0, 4.0, 128.0), Access(1, False, 16, 1, 0, 8.0, 32.0, 512.0)
  assert useful([narrow, wide]) == pytest.approx(640 / (128 + 1024))

# *** numbers

# kernels for CUDA, with warp shuffles, run by numpy
SHAPES = {"Q4_0": (24, 576), "Q8_0": (7, 416), "Q4_K": (12, 768), "Q5_K": (16, 2048),
          "Q6_K": (16, 2048), "NVFP4": (16, 2048), "F16": (20, 96)}

@functools.cache
def run() -> dict[str, tuple[float, str, int, int, str]]:
  cases = [["CUDA", name, *shape, None] for name, shape in SHAPES.items()]
  return dict(zip(SHAPES, child.call(gpu_numbers.lockstep, cases).value))

def wrong(found: dict[str, tuple]) -> dict[str, float]:
  return {name: row[0] for name, row in found.items() if not row[0] < gpu_numbers.MOST}

def test_results_on_cuda(): assert wrong(run()) == {}

OFF = [("merge_fields", "Q5_K"), ("int_to_float", "NVFP4"), ("shuffle_reduce", "Q6_K"), ("half8_loads", "F16"),
       ("shared_operands", "Q6_K")]

@pytest.mark.parametrize(("off", "name"), sample(OFF, OFF[2:3]))
def test_results_without_one_patch(off, name):
  """Without one patch the numbers stay right, and the kernel differs."""
  case = ["CUDA", name, *SHAPES[name], None]
  found, = child.call(gpu_numbers.lockstep, [case], **{f"NO_{off.upper()}": "1"}).value
  assert found[0] < gpu_numbers.MOST
  assert found[4] != run()[name][4]

def test_warp_reduce():
  """A warp reduces its rows in 5 shuffles. Where fewer threads share a row, they reduce through shared memory."""
  assert (run()["Q6_K"][3], run()["Q6_K"][4].count("__shared__")) == (5, 1)  # the array is x's
  assert (run()["F16"][3], run()["F16"][4].count("__shared__")) == (0, 1)  # 96 columns: 12 threads a row

@functools.cache
def experts(name: str) -> list[tuple[float, str, int, int, str]]:
  cases = [["CUDA", name, *role] for role in gpu_numbers.MOE]
  return child.call(gpu_numbers.lockstep_of_experts, cases, NO_Q8_ACTIVATIONS="1").value

@pytest.mark.parametrize("name", some(["Q4_K", "Q8_0"], 0))
def test_expert_results_on_cuda(name):
  """Gate, up and activation are one kernel; down and the sum over experts are another."""
  assert [row[0] for row in experts(name) if not row[0] < gpu_numbers.MOST] == []

def test_fused_gate_and_up_use_shuffles():
  """Gate's and up's sums are reduced by warp shuffles in 5 steps each."""
  _, opts, threads, exchanges, source = experts("Q4_K")[2]
  assert (threads, exchanges, source.count("__shared__")) == (128, 10, 1), opts  # the array is x's

def activation() -> str:
  """CUDA C of an experts' kernel with one division a result."""
  return gpu_numbers.lockstep_of_experts([["CUDA", "Q8_0", 2, 8, 256, 2, 1]])[0][4]

@pytest.mark.parametrize("off", some(["", "1"], 0))
def test_reciprocal(off):
  source = child.call(activation, NO_RECIPROCAL=off, NO_Q8_ACTIVATIONS="1").value
  assert ("__fdividef(1.0f," in source, "(1/" in source) == (not off, bool(off))

@pytest.mark.parametrize("off", some(["", "1"], 0))
def test_launch_bounds(off):
  """At 128 registers a thread, 65,536 registers hold 16 one-warp blocks; very large blocks still get a count of 1."""
  source = child.call(activation, NO_LAUNCH_BOUNDS=off, NO_Q8_ACTIVATIONS="1").value
  (threads, blocks), = re.findall(r"__launch_bounds__\((\d+)(?:, (\d+))?\)", source)
  assert (blocks == "") if off else int(blocks) == 65536 // (128 * -(-int(threads) // 32) * 32)
  assert [launch_bounds.blocks(n) for n in (1, 32, 33, 88, 256, 512, 1024)] == [16, 16, 8, 5, 2, 1, 1]

# subtracted constants, separate high bits, signed bytes, minima, two fields a weight, a lookup table
BYTES = {"Q4_0": (8, 288), "Q5_0": (4, 128), "Q8_0": (7, 416), "Q4_K": (4, 512), "Q6_K": (8, 512), "MXFP4": (4, 256)}

@pytest.mark.parametrize("names", some([["Q4_K", "MXFP4"], [n for n in BYTES if n not in ("Q4_K", "MXFP4")]], 0),
                         ids=" ".join)
def test_int8_results_use_dp4a_only(names):
  """Activations of two bytes use only __dp4a. The expected values are computed from the same rounded activations."""
  cases = [["CUDA", name, *BYTES[name], None, True] for name in names]
  found = dict(zip(names, child.call(gpu_numbers.lockstep, cases).value))
  assert {name: row[0] for name, row in found.items() if not row[0] < 1e-5} == {}
  assert [name for name, row in found.items() if "__dp4a(" not in row[4] or "signed char" in row[4]] == []

@extended
def test_int8_results_without_dp4a():
  """Without dot_int8_gpu, integer sums as floats are right, too: a minimum multiplies the activation sum."""
  found, = child.call(gpu_numbers.lockstep, [["CUDA", "Q4_1", 4, 256, None, True]], NO_DOT_INT8_GPU="1").value
  assert found[0] < 1e-5 and "__dp4a(" not in found[4]

def test_targets_with_int8_products():
  asked = {"Q8_ACTIVATIONS": "1"}
  envs = [{}, asked, asked | {"NO_DOT_INT8_GPU": "1"}, asked | {"NO_Q8_ACTIVATIONS": "1"}]
  assert child.call(multiply_bytes, envs, ["sm_60", "sm_90"]).value == [[False] * 4, [False, True, False, False]]

def multiply_bytes(envs: list[dict[str, str]], archs: list[str]) -> list[list[bool]]:
  from tinygrad import Device
  from tinygrad.helpers import Target
  found = []
  for arch in archs:
    ren = gpu_renderers.CUDA(Target("CUDA", arch=arch))
    with mock.patch.object(type(Device[Device.DEFAULT]), "renderer", ren):
      for env in envs:
        with mock.patch.dict(os.environ, env): found.append(numerics.multiplies_bytes())
  return [found[i:i + len(envs)] for i in range(0, len(found), len(envs))]

@cuda
def test_compile_workers_make_the_same_kernel():
  here, worker = child.call(by_worker, PARALLEL="1", Q8_ACTIVATIONS="1", CACHELEVEL="0").value
  assert here == worker and "__shfl_xor_sync" in here and "__dp4a(" in here

def by_worker() -> list[str]:
  """The source of a product, generated in this process and in a compile worker."""
  from tinygrad.codegen import to_program
  from tinygrad.engine import realize, worker
  from tinygrad_llm.device.device import open_target
  open_target("CUDA:sm_90")
  task = realize._get_call_to_compile(gpu_schedules.product("Q8_0", 16, 2048)[0].linear_with_vars()[0].src[-1])
  context = {v.key: v.value for v in realize.to_program_context}
  (_, made), = worker.get_worker_pool().map(realize._compile_kernel, [(0, task, context)])
  return [to_program(*task).src[2].arg, made.src[2].arg]

@extended
def test_several_rows_per_thread():
  found, = child.call(gpu_numbers.lockstep, [["CUDA", "Q4_1", 32, 2048, None]], MV_ROWS_PER_THREAD="8").value
  assert found[0] < gpu_numbers.MOST and found[1].endswith("UPCAST:0:8")

@pytest.fixture(scope="module")
def opencl() -> dict[str, str]:
  if (env := gpu_numbers.opencl()) is None: pytest.skip("no OpenCL runtime with halves is here")
  return env

def test_results_on_opencl(opencl):
  """The same schedules compiled and run by a real OpenCL runtime. All types: make gpu-numbers"""
  found = child.call(gpu_numbers.errors, [[name, 64, 2048, None] for name in ("Q4_K", "Q6_K", "Q8_0")], **opencl)
  assert max(found.value) < gpu_numbers.MOST
  found = child.call(gpu_numbers.errors, [[name, 64, 1024, None, True] for name in ("Q4_K", "IQ4_NL")], **opencl)
  assert max(found.value) < 1e-5

def test_expert_results_on_opencl(opencl):
  cases = [[name, *role] for name in ("Q4_K", "MXFP4") for role in gpu_numbers.MOE]
  assert max(child.call(gpu_numbers.errors_of_experts, cases, **opencl).value) < gpu_numbers.MOST

# *** other projects' schedules

@functools.cache
def peers() -> dict[str, tuple[float, str, int, int, str]]:
  cases = [["CUDA", name, ROWS, N, opts] for name, opts in PEERS.values()]
  return dict(zip(PEERS, child.call(gpu_numbers.lockstep, cases).value))

@extended
def test_peer_schedules_are_expressible():
  assert wrong(peers()) == {}
  assert {name: row[2] for name, row in peers().items()} == THREADS
  for (name, row), (_, opts) in zip(peers().items(), PEERS.values()):
    assert row[1] == " ".join(f"{op}:{axis}:{arg}" for op, axis, arg in opts), name

@extended
def test_peer_schedules_on_opencl(opencl):
  found = child.call(gpu_numbers.errors, [[name, ROWS, N, opts] for name, opts in PEERS.values()], **opencl).value
  assert max(found) < gpu_numbers.MOST

@cuda
@extended
def test_peer_schedules_compile_without_stack():
  assert set(child.call(stacks, [row[4] for row in peers().values()]).value) == {0}

def stacks(sources: list[str]) -> list[int | None]:
  """Stack bytes of CUDA kernels."""
  from tinygrad import Device
  from tinygrad_llm.device.cuda import resources
  from tinygrad_llm.device.device import open_target
  open_target("CUDA:sm_90")
  return [resources(Device.default.renderer.compiler.compile(source))[1] for source in sources]

# *** languages

def sources(names: list[str]) -> dict[str, dict[str, str]]:
  """{type: {renderer: source}}, and "opts" of each."""
  found = {}
  for name in names:
    call = gpu_numbers.matvec(name, 64, 2048)[0].linear_with_vars()[0].src[-1]
    lowered = {target: gpu_renderers.lowered(call.src[0], target) for target in gpu_renderers.RENDERERS}
    found[name] = {t: gpu_renderers.RENDERERS[t].render(uops) for t, uops in lowered.items()}
    found[name] |= {f"opts {t}": str(gpu_renderers.opts(uops)) for t, uops in lowered.items()}
  return found

@functools.cache
def rendered() -> dict[str, dict[str, str]]: return child.call(sources, ["Q4_K", "F16"]).value

NVIDIA = {"CUDA", "PTX"}

def test_all_targets_have_the_same_schedule():
  """NVIDIA's targets have one schedule, all others another: a large GPU has more threads for few rows."""
  for row in rendered().values():
    for targets in (NVIDIA, gpu_renderers.RENDERERS.keys() - NVIDIA):
      assert len({row[f"opts {target}"] for target in targets}) == 1

def test_metal_source_is_valid():
  for name, row in rendered().items():
    assert metal.errors(row["Metal"]) == "", name
    assert "simd_shuffle_xor(" in row["Metal"]

@pytest.mark.parametrize(("right", "planted"), [
  (r"device uint4\*", "threadgroup uint4*"), (r"as_type<float>\(\(uint\)", "as_type<float>((ushort)"),
  (r"float4 val", "floot4 val"),
  (r"threadgroup_barrier\(mem_flags::mem_threadgroup\)|simd_shuffle_xor\(", "simd_shuffle_other("), (r"\};?\s*$", "")])
def test_metal_checker_finds_errors(right, planted):
  source = rendered()["Q4_K"]["Metal"]
  broken = re.sub(right, planted, source, count=1)
  assert broken != source
  assert "error" in metal.errors(broken)

def test_ptx_instructions():
  """PTX has 16-byte loads, no division, and reductions by shuffles."""
  source = rendered()["Q4_K"]["PTX"]
  assert source.count("ld.global.v4.u32") >= 3 and not re.search(r"\b(div|rem)\.", source)
  assert source.count("shfl.sync.bfly.b32") == 5
  assert source.count(".align 16 .b8 ") == 1       # x's array

@cuda
@pytest.mark.parametrize("off", some(["", "1"], 0))
def test_ptx_compiles(off):
  """PTX compiles without a stack, with int8 activations, and with the patch's instructions or without them."""
  found = child.call(assembled, Q8_ACTIVATIONS="1", NO_PTX=off).value
  for source, stack in found:
    assert stack == 0
    assert ("shfl.sync" in source, "{d}" in source) == (not off, False)
  assert any("dp4a.s32.s32" in source for source, _ in found) == (not off)

def assembled() -> list[tuple[str, int | None]]:
  """Sources and stack bytes of products, for NV's PTX renderer."""
  from tinygrad_llm.analysis.programs import capture
  from tinygrad_llm.device.cuda import resources
  from tinygrad_llm.device.device import open_target
  open_target("NV:PTX:sm_90")
  programs = [capture(functools.partial(lambda y: y, gpu_schedules.product(name, 64, 2048)[0]))[0].src[-1].src[0]
              for name in ("Q4_K", "MXFP4", "F16")]
  return [(p.src[2].arg, resources(p.src[3].arg)[1]) for p in programs]

def test_half8_loads():
  """Eight halves are one load where the language has a vector of them."""
  wide = {target: "half8" in rendered()["F16"][target] for target in ("CUDA", "OpenCL", "Metal")}
  assert wide == {"CUDA": True, "OpenCL": True, "Metal": False}

# *** elementwise kernels of a prompt

@pytest.mark.parametrize("target", sample(["CUDA", "Metal", "OpenCL"], ["CUDA"]))
def test_elementwise_with_symbolic_tokens(target):
  """A single range gets threads and vectors as far as its known factor divides."""
  rows = child.call(gpu_prompts.all_elements, target, [256, 24, 6, 7]).value
  assert [(opts, threads) for _, opts, threads in rows] == [
    (["UPCAST", "LOCAL"], 64), (["UPCAST", "LOCAL"], 2), (["UPCAST"], 1), ([], 1)]
  assert max(error for error, *_ in rows) < 1e-6
