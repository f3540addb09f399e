"""The cost model: figures that it reads from kernels, and its ranking compared with hardware and a simulator."""
import dataclasses
import itertools
import json
import math
import pathlib
import statistics

from tests.support import child
from tests.gpu import gpu_renderers
from tests.gpu import gpu_schedules
import pytest
from tests.support.extended import extended, sample
from bench import schedules
from tests.tools.kernel_cases import has_cuda_wheels, write
from tests.support.synthetic import SHAPES, write_model
from tinygrad import Device, Tensor, UOp, Variable, codegen, dtypes
from tinygrad.codegen.opt import Opt, OptOps
from tinygrad.helpers import Target
from tinygrad.uop.ops import Ops, sym_infer
from tinygrad_llm.analysis import tuning
from tinygrad_llm.analysis.programs import compiled, from_scratch, programs
from tinygrad_llm.device import cuda
from tinygrad_llm.device.device import open_target
from tinygrad_llm.kernels import decode_programs, decode_step
from tinygrad_llm.patches.search.cost import cost_model, hardware
from tinygrad_llm.patches.search.cost.dependency_chain import chain
from tinygrad_llm.patches.search.cost.instructions import instructions, serial_steps
from tinygrad_llm.patches.search.cost.memory_access import accesses
from tinygrad_llm.patches.search.cost.sass import executed
from tinygrad_llm.patches.search.space import with_opts

CARD = hardware.named("A100")[0]

def kernel(y: Tensor, *opts: Opt) -> list:
  """The linear program of a tensor's last kernel for CUDA."""
  linear, _ = y.linear_with_vars()
  ast = linear.src[-1].src[0]
  return gpu_renderers.lowered(ast.replace(arg=dataclasses.replace(ast.arg, opts_to_apply=opts)), "CUDA")

def estimate(uops: list, nbytes: int, card=CARD, **variables: int) -> cost_model.Estimate:
  return cost_model.estimate(cost_model.work(uops, nbytes, variables), card)

# *** figures of a kernel ***

LOCAL = Opt(OptOps.LOCAL, 0, 32)

@pytest.mark.parametrize(("step", "lines", "sectors"), [(1, 1, 4), (2, 2, 8), (8, 8, 32), (32, 32, 32), (1024, 32, 32)])
def test_cache_lines_of_strided_warp(step, lines, sectors):
  """Lines and sectors of a warp's loads of floats with a stride of `step`."""
  load, = [a for a in accesses(kernel(Tensor.empty(64, step)[:, 0] + 1, LOCAL)) if not a.store]
  assert (load.width, load.lines, load.sectors, load.wanted) == (4, lines, sectors, 128)
  assert load.useful == 128 / (sectors * 32)

def test_cache_lines_of_wide_loads():
  """A 16-byte load of adjacent floats a thread, and one of the same floats for all threads."""
  uops = kernel(Tensor.empty(64, 4) + Tensor.empty(4), Opt(OptOps.UPCAST, 1, 4), LOCAL)
  found = sorted((a.width, a.lines, a.wanted) for a in accesses(uops) if not a.store)
  assert found == [(16, 1, 16), (16, 4, 512)]

def test_serial_steps_of_loops():
  start = Variable("start", 1, 4096)
  uops = kernel(Tensor.empty(4096, 8)[:start.bind(77)].sum(0), Opt(OptOps.LOCAL, 0, 8))
  assert serial_steps(uops, {"start": 1000}) == 1000
  assert serial_steps(uops, {"start": 7}) == 7
  assert {a.trips for a in accesses(uops, {"start": 1000}) if not a.store} == {1000}
  assert serial_steps(kernel(Tensor.empty(64) + 1, LOCAL)) == 1

def test_instructions_by_pipe():
  def counted(y: Tensor, *opts: Opt) -> dict[str, int]:
    found: dict[str, int] = {}
    for i in instructions(kernel(y, *opts)):
      if not i.address: found[i.pipe] = found.get(i.pipe, 0) + i.trips * i.lanes
    return found
  a, b = Tensor.empty(64), Tensor.empty(64)
  assert counted(a * b + 1, LOCAL) == {"load": 2, "float": 1, "store": 1}  # one instruction: a fused multiply-add
  assert counted(a.exp2(), LOCAL) == {"load": 1, "sfu": 1, "store": 1}
  assert counted(a.maximum(b), LOCAL) == {"load": 2, "float": 2, "store": 1}  # a comparison and a select
  assert counted(a.cast("half"), LOCAL) == {"load": 1, "half": 1, "store": 1}
  assert counted(a.cast("int"), LOCAL) == {"load": 1, "convert": 1, "store": 1}
  summed = counted(Tensor.empty(32, 1000).sum(1), LOCAL)
  assert (summed["load"], summed["float"]) == (1000, 1000)

def test_tensor_cores():
  """A tensor-core matmul counts as 16 x 64 x 64 scalar products."""
  a, b = Tensor.empty(16, 64, dtype="half"), Tensor.empty(64, 64, dtype="half")
  uops = kernel(a.matmul(b, dtype="float"), Opt(OptOps.TC, 0, (-1, 0, 1)))
  found = [i for i in instructions(uops) if i.pipe == "tensor"]
  blocks = cost_model.work(uops, 0).blocks * math.ceil(cost_model.work(uops, 0).threads / 32)
  assert sum(i.lanes * i.trips for i in found) * blocks == 16 * 64 * 64

def test_accumulation_chain_latency():
  """An accumulation waits for the one before it; eight loads are in flight at once."""
  latency = {"float": 4.0, "load": 100.0}
  found = [chain(kernel(Tensor.empty(32, n).sum(1), LOCAL), latency) for n in (4096, 8192)]
  assert found[1].sums == 2 * found[0].sums == 4 * 8192
  assert found[1].in_order == pytest.approx(2 * found[0].in_order, rel=0.01)
  assert found[0].in_order == pytest.approx(4096 / 8 * (100 + 4 + 7 * 4), rel=0.02)
  assert chain(kernel(Tensor.empty(64) + 1, LOCAL), latency).sums == 0

# *** estimates ***

def test_more_work_takes_longer():
  read = kernel(Tensor.empty(1 << 22) + 1, Opt(OptOps.UPCAST, 0, 4), Opt(OptOps.LOCAL, 0, 256))
  assert estimate(read, 1 << 25).bound == "memory"
  times = [estimate(read, nbytes).us for nbytes in (1 << 25, 1 << 26, 1 << 28)]
  assert times == sorted(times)
  strided = kernel(Tensor.empty(1 << 17, 32)[:, 0] + 1, LOCAL)
  assert estimate(strided, 1 << 20).us > estimate(kernel(Tensor.empty(1 << 17) + 1, LOCAL), 1 << 20).us
  start = Variable("start", 1, 65536)
  few = kernel(Tensor.empty(65536, 8)[:start.bind(5)].max(0), Opt(OptOps.LOCAL, 0, 8))
  assert estimate(few, 0, start=60000).bound == "latency"
  assert estimate(few, 0, start=60000).us > 10 * estimate(few, 0, start=1000).us

def test_plain_read_reaches_bandwidth():
  read = kernel(Tensor.empty(1 << 26) + 1, Opt(OptOps.UPCAST, 0, 4), Opt(OptOps.LOCAL, 0, 256))
  for card in hardware.GPUS:
    nbytes = 1 << 29
    assert 0.7 <= nbytes / card.dram * 1e-3 / estimate(read, nbytes, card).us <= 1, card.name

def test_card_names():
  assert hardware.named("rtx4090") == hardware.named("RTX 4090") != []
  assert [card.name for card in hardware.named("m1max")] == ["M1 Max"]
  assert hardware.named("nothing") == []
  assert hardware.cards(Target("NULL", "CUDA", "sm_86"))[0].name == "RTX 3090"
  assert hardware.cards(Target("CPU", "CLANG", "x86_64,x86-64-v3"))[0].arch == "x86-64-v3"
  assert hardware.cards(Target("NULL", "CUDA", "sm_75")) == []
  names = [card.name for card in (*hardware.GPUS, *hardware.CPUS)]
  assert len(set(names)) == len(names)

# *** against machine code ***

def counted(path: str) -> list[tuple[str, float, float]]:
  """(name, instructions by the list of UOps, instructions by the machine code) of a step's kernels; runs in a child."""
  open_target("CUDA:sm_80")
  found = []
  for p in decode_programs(path, depth=1023):
    w = cost_model.work(p.linear.src, p.nbytes, p.variables, code=cuda.sass(p.program.src[-1].arg))
    assert w.issued is not None, p.name
    guess = cost_model.by_pipe(w.instructions)
    found.append((p.name, *(sum(c.get(pipe, 0) for pipe in ("int", "float", "half", "sfu")) + 20 * c.get("divide", 0)
                            for c in (guess, w.issued))))
  return found

@extended
def test_instruction_counts_match_machine_code(step):
  """Counted arithmetic is within 40% of the machine code's; loops of the code are recognised, unrolled or not."""
  for name, guess, real in child.call(counted, step).value:
    if real > 500: assert real / 1.4 <= guess <= 1.4 * real, (name, guess, real)

@pytest.mark.parametrize(("code", "loads", "found"), [
  ("/*0000*/ LDG.E R1, [R2.64] ;\n/*0010*/ FADD R1, R1, 1 ;\n/*0020*/ STG.E [R2.64], R1 ;\n/*0030*/ EXIT ;", 1,
   {"load": 1, "float": 1, "store": 1, "branch": 1}),
  # an unrolled loop and a remainder loop: all iterations are counted in the unrolled one
  ("/*0000*/ MOV R1, RZ ;\n/*0010*/ LDG.E R3, [R2.64] ;\n/*0020*/ LDG.E R4, [R2.64] ;\n/*0030*/ FADD R1, R1, R3 ;\n"
   "/*0040*/ FADD R1, R1, R4 ;\n/*0050*/ @P1 BRA 0x10 ;\n/*0060*/ LDG.E R3, [R2.64] ;\n/*0070*/ @!P0 BRA 0x60 ;\n"
   "/*0080*/ EXIT ;\n/*0090*/ BRA 0x90 ;\n/*00a0*/ NOP ;", 1000,
   {"load": 1000, "float": 1000, "branch": 501, "int": 1}),
  ("/*0000*/ FADD R1, R1, R3 ;\n/*0010*/ @P1 BRA 0x0 ;", 5, None)])  # a loop without a load to count its iterations by
def test_machine_code_loops(code, loads, found):
  assert executed(code, loads) == found

# *** against a simulator ***

# 80 multiprocessors; matrices of 512 rows and more on a quarter of them. Microseconds at 1.132 GHz
SIMULATED = {"Q4_K": 10.81, "Q4_K, 4096 rows": 67.58, "Q4_K, 2 rows a thread": 13.9, "Q4_K, 1 row a thread": 19.29,
             "Q4_K, x side by side": 7.81, "Q4_K, 8-bit x": 6.64, "Q6_K": 12.39, "scores": 17.0, "maximum": 34.0,
             "exp": 2.0, "sum": 30.0, "values": 42.0, "norm": 5.0}
ROUNDED = {"exp": 0.5, "norm": 0.5}  # rounding of the simulated microseconds
NOISE = 1.3  # the simulator's noise, as a factor

def simulated_card(part: int = 1) -> hardware.GPU:
  """
  The simulated GPU, or a part of it. The simulator runs PTX, where an integer division is one instruction.
  """
  card = hardware.named("QV100")[0]
  return dataclasses.replace(card, rates=card.rates | {"divide": 0.5}, multiprocessors=card.multiprocessors // part,
                             dram=card.dram / part, l2=card.l2 / part)

def matvec(name: str, rows: int, side_by_side: bool = False) -> float:
  """Estimated microseconds of a matvec on a quarter of the GPU. It runs in a child, whose environment sets variants."""
  open_target("CUDA:sm_80")
  y, packed, _ = gpu_schedules.product(name, rows, 2048)
  linear, _ = y.linear_with_vars()
  call = [c for c in linear.src if any(u.nbytes() >= packed.nbytes() for u in c.src[1:])][-1]
  program = compiled(linear.replace(src=(call,))).src[0].src[0]
  w = cost_model.work(program.src[1].src, packed.nbytes(), {}, cuda.resources(program.src[3].arg)[0])
  if side_by_side:
    near = (dataclasses.replace(a, lines=a.wanted / 128) if a.lines == 32 else a for a in w.accesses)
    w = dataclasses.replace(w, accesses=tuple(near))
  return cost_model.estimate(w, simulated_card(4)).us

def of_attention() -> list[tuple[str, float]]:
  """
  Estimated microseconds of attention's kernels as they were simulated, and of a norm's sum, in tinygrad's schedules.

  The attention has 8 heads of 64 elements, each shared by 4 queries, after 1,023 positions.
  """
  open_target("CUDA:sm_80")
  n = UOp.variable("start", 0, 4095).bind(1023) + 1
  q, x = Tensor.empty(1, 1, 8, 4, 64), Tensor.empty(2048)
  cache = Tensor.empty(2, 1, 8, 4096, 64, dtype=dtypes.half)
  kv = cache[:, :, :, :n].float().transpose(2, 3)
  scores = ((q.unsqueeze(1) * kv[0].unsqueeze(2).unsqueeze(4)).sum(-1) * 0.125).contiguous()
  top = scores.max(1).contiguous()
  shares = (scores - top.unsqueeze(1)).exp().contiguous()
  total = shares.sum(1).contiguous()
  values = ((shares.unsqueeze(-1) * kv[1].unsqueeze(2).unsqueeze(4)).sum(1) / total.unsqueeze(-1)).contiguous()
  norm = (x * x).sum().contiguous()
  linear, variables = Tensor.linear_with_vars(values, norm)
  found = []
  for p in programs(compiled(linear), variables, {}, []):
    w = cost_model.work(p.linear.src, p.nbytes, p.variables, p.row()["registers"])
    found.append((p.name, cost_model.estimate(w, simulated_card()).us))
  return found

@pytest.fixture(scope="module")
def step(tmp_path_factory) -> str:
  """A model of one layer with the 1B shape's heads, for CUDA."""
  if not has_cuda_wheels(): pytest.skip("NVIDIA makes no NVRTC wheel for this machine")
  shape = SHAPES["llama-1b"] | {"layers": 1, "vocab": 320, "ffn": 256, "types": "Q8_0", "rope_freqs": False}
  return str(write_model(tmp_path_factory.mktemp("simulated") / "model.gguf", **shape, header=True))

@pytest.fixture(scope="module")
def guesses() -> dict[str, float]:
  if not has_cuda_wheels(): pytest.skip("NVIDIA makes no NVRTC wheel for this machine")
  off = ("FLASH_DECODING", "STORE_FACTORS", "BLOCK_REDUCTIONS", "REDUCTIONS", "NORM_FUSION", "SHARED_OPERANDS")
  as_simulated = {f"NO_{name}": "1" for name in off}
  kernels = child.call(of_attention, **as_simulated).value
  def of(start: str, n: int = 0) -> float: return [us for name, us in kernels if name.startswith(start)][n]
  def product(*case, **env: str) -> float:
    rows = {"Q4_K": "4", "Q6_K": "2"}[case[0]]
    return child.call(matvec, *case, **{"MV_ROWS_PER_THREAD": rows} | as_simulated | env).value
  return {
    "Q4_K": product("Q4_K", 512), "Q4_K, 4096 rows": product("Q4_K", 4096),
    "Q4_K, 2 rows a thread": product("Q4_K", 512, MV_ROWS_PER_THREAD="2"),
    "Q4_K, 1 row a thread": product("Q4_K", 512, MV_ROWS_PER_THREAD="1"),
    "Q4_K, x side by side": product("Q4_K", 512, True), "Q4_K, 8-bit x": product("Q4_K", 512, Q8_ACTIVATIONS="1"),
    "Q6_K": product("Q6_K", 512), "scores": of("r_(start+1)_"), "maximum": of("r_8_4_(start+1)"),
    "exp": of("E_(start+1)_"), "sum": of("r_8_4_(start+1)", -1), "values": of("r_4_2_4_16_4_(start+1)"),
    "norm": of("r_16_128")}

@extended
def test_ratios_match_simulated_kernels(guesses):
  """Ratios of any two kernels are within a factor of 1.5 of the simulator's, apart from its rounding."""
  wrong = []
  for a, b in itertools.combinations(SIMULATED, 2):
    ratio = guesses[a] / guesses[b]
    low, high = ((SIMULATED[a] + s * ROUNDED.get(a, 0)) / (SIMULATED[b] - s * ROUNDED.get(b, 0)) for s in (-1, 1))
    if not low / 1.5 <= ratio <= high * 1.5: wrong.append((a, b, ratio, low, high))
  assert not wrong

@extended
def test_staging_x_costs_little(guesses):
  """Staging x in shared memory costs little more than coalesced loads of x, as simulated."""
  fetched = child.call(matvec, "Q4_K", 512, MV_ROWS_PER_THREAD="4").value
  assert guesses["Q4_K, x side by side"] < fetched < 1.15 * guesses["Q4_K, x side by side"] < guesses["Q4_K"]

@extended
def test_ranks_match_simulated_kernels(guesses):
  """Kernels whose simulated times differ by more than the noise are ranked in that order."""
  for a, b in itertools.permutations(SIMULATED, 2):
    if SIMULATED[a] * NOISE < SIMULATED[b]: assert guesses[a] < guesses[b], (a, b)
  assert schedules.rank_correlation(*([x[name] for name in SIMULATED] for x in (SIMULATED, guesses))) >= 0.95

# *** against a CPU ***

RECORDED = max(pathlib.Path(schedules.ROOT / "bench" / "results").glob("schedules-*.json"))

@extended
@pytest.mark.parametrize("name", sample(schedules.KERNELS, ("Q4_K x",)))
def test_ranks_match_timed_schedules(name):
  rows = [row for row in json.loads(RECORDED.read_text())["schedules"] if row["kernel"] == name]
  assert len(rows) >= 30
  found = child.call(estimates_of, name, [row["opts"] for row in rows], NO_FLASH_DECODING="1").value  # as in bench/
  assert schedules.rank_correlation([row["us"] for row in rows], found) >= 0.8

def estimates_of(name: str, schedules_opts: list) -> list[float]:
  """Estimated microseconds of a kernel with each of these opts; runs in a child."""
  open_target("CPU:x86-64-v4")
  call, variables = schedules.call_of(schedules.KERNELS[name])
  card, = [card for card in hardware.CPUS if card.arch == "x86-64-v4"]
  return [schedules.estimate(schedules.lowered(call, tuple(Opt(OptOps[op], axis, arg) for op, axis, arg in opts)),
                             variables, card).us for opts in schedules_opts]

# *** against a GPU ***

MEASURED = max(pathlib.Path(schedules.ROOT / "bench" / "results").glob("gpu-schedules-*.json"))

def timed_kernels() -> list[tuple[str, str, str]]:
  rows = json.loads(MEASURED.read_text())["schedules"]
  return sorted({(row["case"], row["kernel"], row["types"]) for row in rows if row["kernel"] != "head"})

@extended
@pytest.mark.skipif(not has_cuda_wheels(), reason="NVIDIA makes no NVRTC wheel for this machine")
@pytest.mark.parametrize(("case", "name", "types"), timed_kernels())
def test_estimates_match_times_of_a_card(tmp_path, case, name, types):
  """Estimates of a kernel's schedules match measured times, rank them, and find a nearly best one."""
  rows = [row for row in json.loads(MEASURED.read_text())["schedules"]
          if (row["case"], row["kernel"], row["types"]) == (case, name, types)]
  path = str(write(case, tmp_path / "case.gguf"))
  found = child.call(estimates_on_card, path, name, types, [row["opts"] for row in rows]).value
  timed = [row["us"] for row in rows]
  assert 0.7 < statistics.median(a / b for a, b in zip(found, timed)) < 1.4
  assert min(zip(found, timed))[1] < 1.2 * min(timed)
  assert schedules.rank_correlation(timed, found) >= 0.6

def estimates_on_card(path: str, name: str, types: str, schedules_opts: list) -> list[float]:
  """Estimated microseconds on an H100 of a decode step's kernel with each of these opts; runs in a child."""
  open_target("CUDA:sm_90")
  card, ren = hardware.named("H100")[0], Device[Device.DEFAULT].renderer
  rows = tuning.rows_of(*decode_step(path, max_context=512, depth=128), Device.DEFAULT)
  kernel = next(row.kernel for row in rows if (row.kernel.name, row.types) == (name, types))
  found = []
  for opts in schedules_opts:
    chosen = tuple(Opt(OptOps[op], axis, arg) for op, axis, arg in opts)
    with from_scratch(): program = codegen.to_program(with_opts(kernel.ast, chosen), ren)
    moved = int(sym_infer(program.src[0].arg.estimates.mem, kernel.variables))
    binary = next(u.arg for u in program.src if u.op is Ops.BINARY)
    work = cost_model.work(program.src[1].src, moved, kernel.variables, cuda.resources(binary)[0], cuda.sass(binary))
    found.append(cost_model.estimate(work, card).us)
  return found
