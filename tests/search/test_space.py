"""The space of a kernel's schedules: what is in it, which steps lead there, and that numbers stay right."""
import functools
import random
import re
from unittest import mock

import attention
import child
import gpu_numbers
import gpu_renderers
import gpu_schedules
import numpy as np
import pytest
from attention import Case, Problem
from gpu_peers import PEERS
from kernel_cases import has_cuda_wheels
from tinygrad import Device, Tensor, Variable, dtypes
from tinygrad.codegen.opt import Opt, OptOps
from tinygrad.codegen import to_program
from tinygrad.engine.realize import compile_linear, run_linear
from tinygrad.helpers import getenv
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.attention import split_kv
from tinygrad_llm.patches.attention.part import Part
from tinygrad_llm.patches.opts import ScheduleOps
from tinygrad_llm.patches.schedule.dot_product import find_sum
from tinygrad_llm.patches.schedule.matvec_gpu import MV_NAMES, Tile, on_gpu
from tinygrad_llm.patches.search import space
from tinygrad_llm.patches.search.known_schedules import ATTENTION, TILES, known, known_attention
from tinygrad_llm.patches.search.space import AMOUNTS, Attention, Loops, Opts, Step, with_opts
from tinygrad_llm.target import metal

# rows x n, or Experts: odd numbers of superblocks and of blocks, rows no power of two, few columns
PRODUCTS = (("Q4_K", 64, 2048), ("Q4_K", 2048, 512), ("Q6_K", 36, 768), ("Q8_0", 42, 576), ("MXFP4", 40, 576),
            ("F16", 36, 576), ("Q4_K", 2, 48, 768, 5, 2), ("MXFP4", 1, 40, 768, 6, 4))
KINDS = [" ".join(map(str, case)) for case in PRODUCTS]
LANGUAGES = ("CUDA", "Metal", "OpenCL")
cuda = pytest.mark.skipif(not has_cuda_wheels(), reason="NVIDIA makes no NVRTC wheel for this machine")

def last(y: Tensor) -> UOp: return y.linear_with_vars()[0].src[-1].src[0]

def product(name: str, *sizes: int) -> tuple[Tensor, np.ndarray]:
  """A matrix by a vector, or what experts compute, in the layout for GPUs; and what it should be."""
  return (gpu_numbers.matvec if len(sizes) == 2 else gpu_numbers.moe)(name, *sizes)

@functools.cache
def kernel(case: tuple) -> UOp: return last(product(*case)[0])

def loops(ast: UOp, ren: Renderer) -> Loops: return Loops(space.before_opts(ast, ren), ren)

@functools.cache
def states(case: tuple, language: str = "CUDA") -> dict[str, Opts]:
  return known(loops(kernel(case), gpu_renderers.RENDERERS[language]).start())

# *** schedules of others

LEFT_OUT = {  # what the sizes do not allow
  "Q4_K 64 2048": set(), "MXFP4 1 40 768 6 4": set(),
  # 24 threads have a row; of 9 or 18 rows that are left none are 4
  "F16 36 576": {"llama.cpp Metal, 4 simdgroups", "MLX Metal qmv_fast", "64 threads, 4 rows", "128 threads, 2 rows"},
  # 576 weights are 36 threads with 16 each, of which no more than 12 are in a warp
  "Q8_0 42 576": {"llama.cpp CUDA", "llama.cpp CUDA, small K", "MLX CUDA qmv", "llama.cpp Metal, 16 lanes",
                  "MLX Metal qmv_fast", *(f"{n} threads, 4 rows" for n in (64, 128, 256)), "256 threads, 2 rows"},
  "Q4_K 2048 512": {"llama.cpp CUDA"}}  # 512 weights are 32 threads

@pytest.mark.parametrize("case", PRODUCTS, ids=KINDS)
def test_what_is_known(case):
  """All that the sizes allow, on every GPU; and no name is allowed nowhere."""
  found = states(case)
  assert len(found) >= len(TILES) // 2
  if (left_out := LEFT_OUT.get(" ".join(map(str, case)))) is not None: assert TILES.keys() - found.keys() == left_out
  assert states(case, "Metal") == states(case, "OpenCL") == found

@pytest.mark.parametrize("case", PRODUCTS, ids=KINDS)
def test_known_schedules_are_reached(case):
  """From the start state, by actions that are offered in each state on the way."""
  k = loops(kernel(case), gpu_renderers.RENDERERS["CUDA"])
  for name, opts in states(case).items():
    steps, at = k.steps(opts), k.start()
    for step in steps:
      assert step in list(k.actions(at)), (name, step)
      at.apply_opt(k.placed(at, step))
    assert k.opts(steps) is not None, name

def test_known_schedules_are_those_of_others():
  """Each of gpu_peers.py, whose opts were written by hand, has its name here; numbers of threads are exact."""
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

def spread(times: int) -> list[tuple[int, str, int]]:
  """(case, name, 0 .. times - 1): each name so often, as evenly as can be over the cases that have it."""
  found: list[tuple[int, str, int]] = []
  for name in TILES:
    for turn in range(times):
      having = [i for i, case in enumerate(PRODUCTS) if name in states(case)]
      found.append((min(having, key=lambda i: ((i, name) in [row[:2] for row in found], [x for x, *_ in found].count(i))),
                    name, turn))
  return found

def test_known_schedules_are_rendered():
  """Each in each language."""
  assert {i for i, *_ in spread(len(LANGUAGES))} == set(range(len(PRODUCTS)))
  for i, name, turn in spread(len(LANGUAGES)):
    language = LANGUAGES[turn]
    source = gpu_renderers.render(with_opts(kernel(PRODUCTS[i]), states(PRODUCTS[i])[name]), language)
    if language == "Metal": assert metal.errors(source) == "", (KINDS[i], name)
    else: assert ("__global__" if language == "CUDA" else "__kernel") in source

@cuda
def test_known_schedules_are_compiled():
  """No spilled registers."""
  assert set(child.call(stacks, 4).value.values()) == {0}

def stacks(i: int) -> dict[str, int | None]:
  """By name, bytes of stack for CUDA."""
  from tinygrad_llm.target.cuda import resources
  from tinygrad_llm.target.device import open_target
  sources = {name: gpu_renderers.render(with_opts(kernel(PRODUCTS[i]), opts), "CUDA")
             for name, opts in states(PRODUCTS[i]).items()}
  open_target("CUDA:sm_90")
  return {name: resources(Device.default.renderer.compiler.compile(source))[1] for name, source in sources.items()}

@pytest.fixture(scope="module")
def opencl() -> dict[str, str]:
  if (env := gpu_numbers.opencl()) is None: pytest.skip("no OpenCL runtime with halves is here")
  return env

def test_numbers_of_known_schedules(opencl):
  """Executed, against float64."""
  names = [(i, name) for i, name, _ in spread(2)]
  found = child.call(errors, names, **opencl).value
  assert {(KINDS[i], name): error for (i, name), error in zip(names, found) if not error < gpu_numbers.MOST} == {}

def errors(names: list[tuple[int, str]]) -> list[float]:
  """Of schedules run by the default device: the largest error, of the results' root mean square."""
  made = {i: (y.linear_with_vars(), wanted) for i in {i for i, _ in names} for y, wanted in [product(*PRODUCTS[i])]}
  return [gpu_numbers._error(computed(*linear, linear[0].src[-1].src[0], states(PRODUCTS[i])[name]), wanted)
          for i, name in names for linear, wanted in [made[i]]]

def computed(linear: UOp, variables: dict[str, int], ast: UOp, opts: Opts) -> np.ndarray:
  """What the last of some kernels computes, with the schedule of one of them given."""
  out = linear.src[-1].src[1].buffer.ensure_allocated()
  out.copyin(memoryview(bytearray(np.full(out.size, np.nan, np.float32))))
  given = [call.replace(src=(with_opts(ast, opts), *call.src[1:])) if call.src[0] is ast else call for call in linear.src]
  assert tuple(given) != linear.src
  run_linear(compile_linear(linear.replace(src=tuple(given))), variables)
  return np.frombuffer(out.as_memoryview(), np.float32)

def test_no_schedule_is_known_of_others():
  """Of kernels that are no product, on a CPU, and where loops have no constant length: nothing, and no error."""
  cpu, gpu = Device["CPU"].renderer, gpu_renderers.RENDERERS["CUDA"]
  asts = [ast for _, ast in others()]
  assert [known(loops(ast, gpu).start()) for ast in asts if isinstance(find_sum(loops(ast, gpu).start()), str)][0] == {}
  assert [known(loops(ast, cpu).start()) for ast in asts] == [{}] * len(asts)
  assert [known_attention(ast, gpu) for ast in asts] == [{}] * len(asts)

def test_tiles_are_exact(monkeypatch):
  """The environment overrides the heuristic's numbers, a tile has its own."""
  k = loops(kernel(PRODUCTS[0]), gpu_renderers.RENDERERS["CUDA"]).start()
  before, tile = [on_gpu(k, find_sum(k), tile).applied_opts for tile in (None, Tile(32, 4))]
  assert before == tile
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
          ("elementwise", last(Tensor.empty(6, 96) * Tensor.empty(96) + 1)), ("product of halves", last(half[0] @ half[1])),
          ("loop of no constant length", last(Tensor.empty(4096, 8)[:START.bind(77)].sum(0))),
          ("product", last((Tensor.empty(30, 90) * Tensor.empty(90)).sum(-1)))]

@pytest.mark.parametrize("device", ["CPU", "CUDA", "Metal"])
def test_random_walks(device):
  """
  Of up to 5 actions: steps and opts are each other's inverse; what is next to a schedule is legal or None. Nothing
  raises but what a schedule that is not legal does.
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

def test_a_loop_that_is_used_up():
  """Neither it nor a loop that it is exchanged for is an error."""
  k = loops(others()[1][1], gpu_renderers.RENDERERS["CUDA"])
  a, b = [r.arg[:-1] for r in k.start().rngs]
  swap, used = Step(OptOps.SWAP, a, b), [Step(OptOps.LOCAL, loop, k.sizes[loop]) for loop in (a, b)]
  assert k.opts([swap]) is not None and [k.opts([step, swap]) for step in used] == [None, None]

# *** actions that tinygrad has not

def test_actions_name_a_schedule():
  for op in ScheduleOps: assert re.search(r"^[a-z].*\(\w+/.*llama\.cpp", op.value), op

# queries of a group: 16, and no power of two; keys and values that no cache holds
GROUPED = (Case(1, 16, 64, 100, 4096), Case(2, 3, 128, 70, 2048, sink=True))

def part(linear: UOp) -> UOp: return next(call.src[0] for call in linear.src if Part.of(call.src[0]) is not None)

def attention_errors(listed: list[list[list]]) -> list[list[tuple[float, str]|None]]:
  """Of GROUPED with schedules, (action, amount) each, on the default device: the error, and the source."""
  ren, found = Device[Device.DEFAULT].renderer, []
  for case in GROUPED:
    linear, variables = Problem(case).tensor().linear_with_vars()
    ast = part(linear)
    made = [Attention(ast, ren).opts(Step(ScheduleOps[name], None, n) for name, n in steps) for steps in listed]
    found.append([None if opts is None else (
      attention.error(computed(linear, variables, ast, opts), case),
      to_program(with_opts(ast, opts), ren).src[2].arg) for opts in made])
  return found

@functools.cache
def on_cpu() -> dict[tuple[str, int], list]:
  listed = [(op.name, n) for op in (ScheduleOps.POSITIONS, ScheduleOps.QUERIES, ScheduleOps.VECTORS, ScheduleOps.PREFETCH)
            for n in (AMOUNTS[op] if op is not ScheduleOps.PREFETCH else AMOUNTS[op][:2])]
  found = child.call(attention_errors, [[list(step)] for step in listed]).value
  return {step: [case[i] for case in found] for i, step in enumerate(listed)}

def test_attention_on_a_cpu():
  """Every amount of every action is legal, its numbers are right, and most make another kernel."""
  wrong = {step: row for step, row in on_cpu().items() if not all(case is not None and case[0] < 1e-5 for case in row)}
  assert wrong == {}

@pytest.mark.parametrize(("op", "least"), [("POSITIONS", 5), ("QUERIES", 5), ("VECTORS", 3), ("PREFETCH", 2)])
def test_actions_of_attention_change_the_kernel(op, least):
  """least: different kernels of 16 queries; half of more queries than there are vectors is as many."""
  assert len({row[0][1] for (name, _), row in on_cpu().items() if name == op}) >= least

def test_attention_on_opencl(opencl):
  """Blocks of few threads take fewer queries: 32 threads and 16 queries at a time gave infinity."""
  listed = [[[op.name, n]] for op in (ScheduleOps.THREADS, ScheduleOps.LANES, ScheduleOps.QUERIES) for n in AMOUNTS[op]]
  listed += [[[op.name, n] for op, n in amounts.items()] for amounts in ATTENTION.values()]
  listed += [[["THREADS", 32], ["QUERIES", 32], ["LANES", lanes]] for lanes in (2, 16)]
  for case in child.call(attention_errors, listed, **opencl).value:
    assert [(steps, row[0]) for steps, row in zip(listed, case) if row is not None and not row[0] < 1e-5] == []
    assert sum(row is not None for row in case) > len(listed) * 0.8

def test_known_attention():
  """Each is reached by steps to a neighbour, and rendered in each language; 16 queries a block are not one."""
  with mock.patch.multiple(split_kv, has_vectors=lambda ren: False, fits=lambda *_: True):
    ast = part(Problem(GROUPED[0]).tensor().linear_with_vars()[0])
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

def prefetched(amounts: list[int]) -> list[tuple[float, str, int]]:
  """Of a product with a matrix of 1 MB: the error, the source, and opts beside the heuristic's, for each distance."""
  rng, found = np.random.default_rng(4), []
  w, x = rng.standard_normal((256, 2048)).astype(np.float16), rng.standard_normal(2048).astype(np.float32)
  y, ren = (Tensor(w).realize().float() * Tensor(x).realize()).sum(-1), Device[Device.DEFAULT].renderer
  linear, variables = y.linear_with_vars()
  ast = linear.src[-1].src[0]
  chosen = to_program(ast, ren).src[0].arg.applied_opts
  for n in amounts:
    opts = (*chosen, Opt(ScheduleOps.PREFETCH, None, n))
    program = to_program(with_opts(ast, opts), ren)
    error = gpu_numbers._error(computed(linear, variables, ast, opts), w.astype(np.float64) @ x.astype(np.float64))
    found.append((error, program.src[2].arg, len(program.src[0].arg.applied_opts) - len(chosen)))
  return found

def test_prefetch():
  """0 is none; any other distance is in the source."""
  amounts = AMOUNTS[ScheduleOps.PREFETCH]
  for n, (error, source, more) in zip(amounts, child.call(prefetched, amounts).value):
    assert error < 1e-5 and more == 1
    assert ("__builtin_prefetch" in source) == (n > 0) == (f"+{n})" in source), n
