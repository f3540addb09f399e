"""The search space of schedules: known schedules, steps that reach them, and numerics."""
import functools
import random
import re
from unittest import mock

from tests.support import attention
from tests.support import child
from tests.gpu import gpu_matmuls
from tests.gpu import gpu_numbers
from tests.gpu import gpu_renderers
from tests.gpu import gpu_schedules
import numpy as np
import pytest
from tests.support.attention import Case, Problem
from tests.support.extended import extended, sample
from tests.gpu.gpu_peers import PEERS
from tests.tools.kernel_cases import has_cuda_wheels
from tests.support.search_kernel import computed
from tinygrad import Device, Tensor, Variable, dtypes
from tinygrad.codegen.opt import Opt, OptOps
from tinygrad.codegen import to_program
from tinygrad.helpers import getenv
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import UOp
from tinygrad_llm.device import metal
from tinygrad_llm.patches.attention import flash_decoding
from tinygrad_llm.patches.attention.part import Part
from tinygrad_llm.patches.ir.actions import ScheduleOps
from tinygrad_llm.patches.ir.products import find_sum
from tinygrad_llm.patches.schedule.gemv_gpu import MV_NAMES, Tile, on_gpu
from tinygrad_llm.patches.search import space
from tinygrad_llm.patches.search.known_schedules import ATTENTION, MATMULS, TILES, known, known_attention
from tinygrad_llm.patches.search.space import AMOUNTS, Attention, Loops, Opts, Step, with_opts

# (type, rows, n), or Experts: odd numbers of superblocks and blocks, rows that are no power of two, few columns
PRODUCTS = (("Q4_K", 64, 2048), ("Q4_K", 2048, 512), ("Q6_K", 36, 768), ("Q8_0", 42, 576), ("MXFP4", 40, 576),
            ("F16", 36, 576), ("Q4_K", 2, 48, 768, 5, 2), ("MXFP4", 1, 40, 768, 6, 4))
KINDS = [" ".join(map(str, case)) for case in PRODUCTS]
LANGUAGES = ("CUDA", "Metal", "OpenCL")
cuda = pytest.mark.skipif(not has_cuda_wheels(), reason="NVIDIA makes no NVRTC wheel for this machine")

def last(y: Tensor) -> UOp: return y.linear_with_vars()[0].src[-1].src[0]

def product(name: str, *sizes: int) -> tuple[Tensor, np.ndarray]:
  """A lazy matvec, or a token's experts, with weights repacked for GPUs, and the expected value."""
  return (gpu_numbers.matvec if len(sizes) == 2 else gpu_numbers.moe)(name, *sizes)

@functools.cache
def kernel(case: tuple) -> UOp: return last(product(*case)[0])

def loops(ast: UOp, ren: Renderer) -> Loops: return Loops(space.before_opts(ast, ren), ren)

@functools.cache
def states(case: tuple, language: str = "CUDA") -> dict[str, Opts]:
  return known(loops(kernel(case), gpu_renderers.RENDERERS[language]).start())

# *** other projects' schedules
LEFT_OUT = {  # schedules that the sizes do not allow
  "Q4_K 64 2048": set(), "MXFP4 1 40 768 6 4": set(),
  # 24 threads have a row; 4 does not divide the remaining 9 or 18 rows
  "F16 36 576": {"llama.cpp Metal, 4 simdgroups", "MLX Metal qmv_fast", "64 threads, 4 rows", "128 threads, 2 rows"},
  # 576 weights are 36 threads with 16 each, at most 12 of them in a warp
  "Q8_0 42 576": {"llama.cpp CUDA", "llama.cpp CUDA, small K", "MLX CUDA qmv", "llama.cpp Metal, 16 lanes",
                  "MLX Metal qmv_fast", *(f"{n} threads, 4 rows" for n in (64, 128, 256)), "256 threads, 2 rows"},
  "Q4_K 2048 512": {"llama.cpp CUDA"}}  # 512 weights are 32 threads

@pytest.mark.parametrize("case", PRODUCTS, ids=KINDS)
def test_known_schedules_are_found(case):
  """All known schedules that the sizes allow are found, for every GPU."""
  found = states(case)
  assert len(found) >= len(TILES) // 2
  if (left_out := LEFT_OUT.get(" ".join(map(str, case)))) is not None: assert TILES.keys() - found.keys() == left_out
  if case[0] == "F16": assert states(case, "Metal") == states(case, "OpenCL") == found

@pytest.mark.parametrize("case", PRODUCTS, ids=KINDS)
def test_known_schedules_are_reached(case):
  """Each known schedule is reached from the start by actions that each state on the way offers."""
  k = loops(kernel(case), gpu_renderers.RENDERERS["CUDA"])
  for name, opts in states(case).items():
    steps, at = k.steps(opts), k.start()
    for step in steps:
      assert step in list(k.actions(at)), (name, step)
      at.apply_opt(k.placed(at, step))
    assert k.opts(steps) is not None, name

def test_known_schedules_match_peers():
  """Each schedule of gpu_peers.py, whose opts are hand-written, equals a known schedule by name."""
  names = {"llama.cpp CUDA Q4_K": "llama.cpp CUDA", "llama.cpp CUDA Q4_K, small": "llama.cpp CUDA, small K",
           "llama.cpp CUDA Q6_K": "llama.cpp CUDA, 8 weights", "MLX CUDA qmv": "MLX CUDA qmv",
           "llama.cpp Metal Q4_K": "llama.cpp Metal, 8 lanes", "llama.cpp Metal Q6_K": "llama.cpp Metal, 16 lanes",
           "llama.cpp Metal Q8_0": "llama.cpp Metal, 4 simdgroups", "llama.cpp Metal Q4_0": "MLX Metal qmv_fast",
           "MLX Metal qmv_fast": "MLX Metal qmv_fast"}
  assert names.keys() == PEERS.keys()
  for peer, (kind, written) in PEERS.items():
    case = (kind, 64, 2048)
    k = loops(kernel(case), gpu_renderers.RENDERERS["CUDA"])
    assert set(k.steps(Opt(OptOps[op], *at) for op, *at in written)) == set(k.steps(states(case)[names[peer]])), peer

@functools.cache
def spread() -> list[tuple[int, str]]:
  """(case, name) with each name once, in a small case that has it; mostly F16, which takes a third of the time."""
  found: list[tuple[int, str]] = []
  for name in TILES:
    having = {i: 1 if case[0] == "F16" else 3 for i, case in enumerate(PRODUCTS)
              if case[1] < 2048 and name in states(case)}
    found.append((min(having, key=lambda i: [x for x, _ in found].count(i) * having[i]), name))
  return found

@extended
def test_known_schedules_are_rendered():
  """Known schedules render to valid Metal; other languages are compiled and run below, where possible."""
  assert {PRODUCTS[i][0] for i, _ in spread()} == {"Q4_K", "Q6_K", "Q8_0", "MXFP4", "F16"}
  runs = {"CUDA": has_cuda_wheels(), "OpenCL": gpu_numbers.opencl() is not None}
  for i, name in spread():
    ast = with_opts(kernel(PRODUCTS[i]), states(PRODUCTS[i])[name])
    assert metal.errors(gpu_renderers.render(ast, "Metal")) == "", (KINDS[i], name)
    for language in ("CUDA", "OpenCL"): assert runs[language] or gpu_renderers.render(ast, language)

@extended
@cuda
def test_known_schedules_compile_without_spills():
  """Known schedules compile without spills."""
  assert child.call(stacks, spread()).value == dict.fromkeys(TILES, 0)

def stacks(names: list[tuple[int, str]]) -> dict[str, int | None]:
  """{name: stack bytes for CUDA}."""
  from tinygrad_llm.device.cuda import resources
  from tinygrad_llm.device.device import open_target
  asts = {name: with_opts(kernel(PRODUCTS[i]), states(PRODUCTS[i])[name]) for i, name in names}
  sources = {name: gpu_renderers.render(ast, "CUDA") for name, ast in asts.items()}
  open_target("CUDA:sm_90")
  return {name: resources(Device.default.renderer.compiler.compile(source))[1] for name, source in sources.items()}

@pytest.fixture(scope="module")
def opencl() -> dict[str, str]:
  if (env := gpu_numbers.opencl()) is None: pytest.skip("no OpenCL runtime with halves is here")
  return env

def test_known_schedules_results(opencl):
  """Known schedules executed, against float64."""
  found = zip(spread(), child.call(errors, spread(), **opencl).value)
  assert {(KINDS[i], name): error for (i, name), error in found if not error < gpu_numbers.MOST} == {}

def errors(names: list[tuple[int, str]]) -> list[float]:
  """Largest errors of schedules on the default device, as fractions of the results' root mean square."""
  made = {i: (y.linear_with_vars(), wanted) for i in {i for i, _ in names} for y, wanted in [product(*PRODUCTS[i])]}
  return [gpu_numbers._error(computed(*linear, linear[0].src[-1].src[0], states(PRODUCTS[i])[name])[0], wanted)
          for i, name in names for linear, wanted in [made[i]]]

def test_no_known_schedules_for_other_kernels():
  """No schedules are known for kernels that are no products, on a CPU, or with symbolic loops; no error either."""
  products = {"product", "product of halves"}
  cpu, gpu = Device["CPU"].renderer, gpu_renderers.RENDERERS["CUDA"]
  for name, ast in others():
    assert known(loops(ast, cpu).start()) == known_attention(ast, gpu) == {}
    assert (known(loops(ast, gpu).start()) == {}) == (name not in products), name

@pytest.mark.parametrize("language", LANGUAGES)
def test_gemm_blocks_of_other_projects(language):
  """Other projects' GEMM blocks are known and reached from the start; many of their neighbours are legal."""
  ast = last(gpu_matmuls.product(gpu_matmuls.Case("Q4_K", 200, 512, 1024, 256))[0])
  k = loops(ast, gpu_renderers.RENDERERS[language])
  found = known(k.start())
  assert found.keys() >= {name for name in MATMULS if language == "CUDA" or "CUTLASS" not in name}
  legal = set[tuple[int, ...]]()
  for steps in [*k.neighbours(()), *k.neighbours(k.steps(found["llama.cpp Metal kernel_mul_mm"]))]:
    if len(steps) != 1 or steps[0].op is not ScheduleOps.BLOCK or (opts := k.opts(steps)) is None: continue
    assert k.steps(opts) == steps and isinstance(steps[0].amount, tuple)
    legal.add(steps[0].amount)
  assert len(legal) >= 6 and (32, 64, 64, 16, 32) in legal and (32, 128, 32, 16, 64) in legal

def test_tile_overrides_heuristic(monkeypatch):
  """A Tile's numbers override both the heuristic's and the environment's; on a large GPU the heuristic adds threads."""
  k = loops(kernel(PRODUCTS[0]), gpu_renderers.RENDERERS["CUDA"]).start()
  before, tile = [on_gpu(k, find_sum(k), tile).applied_opts for tile in (None, Tile(32, 4))]
  assert before == tile[:-1]  # one row a thread, not four
  for name, value in zip(MV_NAMES, ("8", "1", "2")): monkeypatch.setenv(name, value)
  getenv.cache_clear()
  try: assert on_gpu(k, find_sum(k), Tile(32, 4)).applied_opts == tile != on_gpu(k, find_sum(k)).applied_opts
  finally:
    monkeypatch.undo()
    getenv.cache_clear()

# *** the space: random walks

START = Variable("start", 1, 4096)

def others() -> list[tuple[str, UOp]]:
  half = [Tensor.empty(*shape, dtype=dtypes.half) for shape in ((12, 64), (64, 48))]
  return [("norm", last(Tensor.empty(3, 576).square().mean(-1).rsqrt())),
          ("elementwise", last(Tensor.empty(6, 96) * Tensor.empty(96) + 1)),
          ("product of halves", last(half[0] @ half[1])),
          ("loop of no constant length", last(Tensor.empty(4096, 8)[:START.bind(77)].sum(0))),
          ("product", last((Tensor.empty(30, 90) * Tensor.empty(90)).sum(-1)))]

@pytest.mark.parametrize("device", sample(["CPU", "CUDA", "Metal"], ["CPU", "CUDA"]))
def test_random_walks(device):
  """
  Random walks of up to 5 actions: steps and opts are inverses, and neighbours are legal or None.

  Nothing raises except an illegal schedule's own error.
  """
  rng, ren, legal = random.Random(device), {**gpu_renderers.RENDERERS, "CPU": Device["CPU"].renderer}[device], 0
  on_cpu = [(name, last(gpu_schedules.product(name, rows, n)[0])) for name, rows, n in PRODUCTS[2:5]]
  packed = on_cpu if device == "CPU" else [(str(PRODUCTS[i]), kernel(PRODUCTS[i])) for i in (0, 3, 6)]
  for name, ast in [*others(), *packed]:
    k, steps = loops(ast, ren), ()
    for _ in range(5):
      offered = list(k.actions(k.replay(steps)))
      drawn = [(*steps, step) for step in rng.sample(offered, min(6, len(offered)))]
      if (longer := next((found for found in drawn if k.opts(found) is not None), None)) is None: break
      steps = longer
      assert k.steps(k.opts(steps)) == steps, (name, steps)
    near = list(k.neighbours(steps))
    for found in rng.sample(near, min(20, len(near))):
      if (opts := k.opts(found)) is None: continue
      assert k.opts(k.steps(opts)) == opts, (name, found)
      legal += 1
  assert legal > 50

def test_swap_of_used_up_loop():
  """Swapping a loop that is used up gives no schedule, and no error."""
  k = loops(others()[1][1], gpu_renderers.RENDERERS["CUDA"])
  a, b = [r.arg[:-1] for r in k.start().rngs]
  swap, used = Step(OptOps.SWAP, a, b), [Step(OptOps.LOCAL, loop, k.sizes[loop]) for loop in (a, b)]
  assert k.opts([swap]) is not None and [k.opts([step, swap]) for step in used] == [None, None]

# *** actions that tinygrad does not have

def test_actions_cite_their_source():
  for op in ScheduleOps: assert re.search(r"^[a-z].*\(\w+/.*llama\.cpp", op.value), op

GROUPED = Case(1, 8, 32, 100, 8192)  # 8 queries share a KV cache larger than the CPU's caches

def part(linear: UOp) -> UOp: return next(call.src[0] for call in linear.src if Part.of(call.src[0]) is not None)

def attention_errors(case: dict, listed: list[list[list]]) -> list[tuple[float, str]|None]:
  """(error, source) of an attention with each schedule of (action, amount)s, on the default device."""
  (linear, variables), found = Problem(Case(**case)).tensor().linear_with_vars(), list[tuple[float, str]|None]()
  k = Attention(ast := part(linear), Device[Device.DEFAULT].renderer)
  for steps in listed:
    opts = k.opts(Step(ScheduleOps[name], None, n) for name, n in steps)
    if opts is None: found.append(None)
    else:
      values, program = computed(linear, variables, ast, opts)
      found.append((attention.error(values, Case(**case)), program.src[2].arg))
  return found

@pytest.mark.parametrize(("name", "amounts"), sample(
  [("POSITIONS", (16, 32)), ("QUERIES", (1, 2)), ("VECTORS", (4, 16)), ("PREFETCH", (0, 1024))], [("QUERIES", (1, 2))]))
def test_attention_actions_on_cpu(name, amounts):
  """Each amount of each action gives another kernel with right numbers."""
  found = child.call(attention_errors, GROUPED.__dict__, [[[name, n]] for n in amounts]).value
  assert [(n, row and row[0]) for n, row in zip(amounts, found) if row is None or not row[0] < 1e-5] == []
  assert set(amounts) <= set(AMOUNTS[ScheduleOps[name]]) and len({source for _, source in found}) == len(amounts)

def test_attention_on_opencl(opencl):
  """Blocks with few threads take fewer queries at a time: 32 threads with 16 queries gave infinity."""
  few = [[[op.name, n] for op, n in sets.items()] for sets in ATTENTION.values()]
  many = [["THREADS", 32], ["QUERIES", 32]]
  found = child.call(attention_errors, Case(1, 16, 64, 100).__dict__, [many, *few], **opencl).value
  assert [row and row[0] for row in found if row is None or not row[0] < 1e-5] == []
  assert len({row[1] for row in found}) == len(found)

def test_known_attention_schedules():
  """Known attention schedules are reached by neighbour steps and rendered in each language. Few threads are refused."""
  with mock.patch.multiple(flash_decoding, has_vectors=lambda ren: False, fits=lambda *_: True):
    ast = part(Problem(Case(1, 16, 64, 100)).tensor().linear_with_vars()[0])
  for language in LANGUAGES:
    ren = gpu_renderers.RENDERERS[language]
    found, k, sources = known_attention(ast, ren), Attention(ast, ren), set()
    assert found.keys() == ATTENTION.keys()
    for opts in found.values():
      at: tuple[Step, ...] = ()
      for step in k.steps(opts):
        if step.amount == k.defaults[step.op]: continue
        assert (*at, step) in list(k.neighbours(at))
        at = (*at, step)
      assert k.opts(at) is not None
      sources.add(gpu_renderers.render(with_opts(ast, opts), language))
    assert len(sources) == len(found)
    assert [k.opts([Step(ScheduleOps.THREADS, None, n)]) for n in (1, 2, 4)] == [None] * 3  # for 64 positions

def prefetched(amounts: list[int]) -> list[tuple[float, str]]:
  """(error, source) of a matvec with 1 MB of weights, with the heuristic's opts and each prefetch distance."""
  rng = np.random.default_rng(4)
  w, x = rng.standard_normal((256, 2048)).astype(np.float16), rng.standard_normal(2048).astype(np.float32)
  wanted, y = w.astype(np.float64) @ x.astype(np.float64), (Tensor(w).realize().float() * Tensor(x).realize()).sum(-1)
  linear, variables = y.linear_with_vars()
  chosen = to_program(ast := linear.src[-1].src[0], Device[Device.DEFAULT].renderer).src[0].arg.applied_opts
  made = [computed(linear, variables, ast, (*chosen, Opt(ScheduleOps.PREFETCH, None, n))) for n in amounts]
  return [(gpu_numbers._error(values, wanted), program.src[2].arg) for values, program in made]

def test_prefetch_distance():
  """The software prefetch distance is the schedule's; 0 means no prefetch."""
  amounts = AMOUNTS[ScheduleOps.PREFETCH]
  for n, (error, source) in zip(amounts, child.call(prefetched, amounts).value):
    assert error < 1e-5
    assert set(re.findall(r"__builtin_prefetch\(.*?\+(\d+),0,\d\),", source)) == ({str(n)} if n else set())
