"""Attention over a pool of blocks: rows of unequal lengths, pieces; all memory that is not a row's own is NaN."""
import math
import tempfile
from unittest import mock

import numpy as np
import pytest
from tests.gpu import gpu_lockstep
from tests.gpu import gpu_numbers
from tests.gpu import gpu_renderers
from tests.support import attention, child, rows
from tests.support.extended import extended, some
from tests.support.rows import Case, Problem
from tests.tools import kernel_cases
from tests.tools.kernel_golden import PROMPT_STACK_OF_PTX
from tinygrad import Variable, dtypes
from tinygrad.engine.realize import compile_linear, run_linear
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.device.device import open_target
from tinygrad_llm.kernels import decode_step, programs_of
from tinygrad_llm.patches.attention import flash_decoding
from tinygrad_llm.patches.attention.bounds import visible
from tinygrad_llm.patches.attention.part import Part

ERROR, HALVES = 1e-5, 6e-3  # as a fraction of the root mean square: floats, and tensor cores with halves
LENGTHS = (1, 63, 64, 65, 200)

def random_rows(seed: int, count: int, **form) -> Case:
  """LENGTHS and random ones, in any order. form: fields of Case."""
  rng = np.random.default_rng(seed)
  lengths = rng.permutation([*LENGTHS, *rng.integers(1, 300, 8).tolist()][:count])
  shape = {"KVH": int(rng.integers(1, 3)), "G": int(rng.integers(1, 5)), "D": int(rng.choice([32, 64, 80, 128]))}
  return Case(**(shape | form), lengths=tuple(map(int, lengths)), seed=seed)

# rows of full layers; a window, a softcap and sinks; a chunked window; latents
FORMS = [{}, {"window": 70, "softcap": 20, "sink": True}, {"window": 64, "chunked": True},
         {"KVH": 1, "G": 16, "D": 96, "W": 64}]
ROWS = [random_rows(2400 + i, 8, **form) for i, form in enumerate(FORMS)]
PIECES = [Case(2, 2, 64, (150,), T=20), Case(2, 3, 64, (64,), T=64, most=3), Case(1, 4, 128, (200,), T=9, window=50),
          Case(1, 16, 96, (130,), T=33, W=64)]
FEWER = [random_rows(2410 + count, count, **form) for count, form in ((1, FORMS[0]), (2, FORMS[1]), (4, FORMS[3]))]
SCATTERED = [random_rows(seed, 8, most=n) for seed, n in ((2420, 5), (2421, 9))]
STEPS = [(8, 0), (1, 512), (1, 0), (2, 0), (4, 0)]  # rows, tokens of a piece
OTHERS = [*FEWER, *SCATTERED, *ROWS[2:]]

def schedule(problem: Problem) -> tuple[UOp, dict[str, int]]: return problem.tensor().linear_with_vars()

def errors(cases: list[dict]) -> list[float]:
  """The errors on the default device."""
  found = []
  for problem in [Problem(Case(**case)) for case in cases]:
    linear, variables = schedule(problem)
    run_linear(compile_linear(linear), variables)
    stored = np.frombuffer(linear.src[-1].src[1].buffer.as_memoryview(), np.float32)
    found.append(rows.error(stored, problem))
  return found

@pytest.mark.parametrize("cases", some([[*ROWS[:2], PIECES[0]], OTHERS, PIECES[1:]], 0),
                         ids=["some", "others", "pieces"])
def test_on_cpu(cases: list[Case]):
  for case, error in zip(cases, child.call(errors, [case.__dict__ for case in cases]).value):
    assert error < ERROR + case.softcap * 2**-22, (case, error)

# *** GPUs

def for_gpu(problem: Problem, target: str) -> tuple[list[UOp], dict[str, int]]:
  """The kernels before a part's, the part's and what follows, as for a target; and the variables."""
  before = flash_decoding.fits
  def fits(ren: Renderer, *shape) -> bool: return before(gpu_renderers.named(target), *shape)
  with mock.patch.multiple(flash_decoding, has_vectors=lambda ren: False, fits=fits):
    linear, variables = schedule(problem)
  first = next(i for i, call in enumerate(linear.src) if Part.of(call.src[0]) is not None)
  if first: run_linear(compile_linear(linear.replace(src=linear.src[:first])), variables)
  return list(linear.src[first:]), variables

def in_lockstep(target: str, cases: list[dict]) -> list[tuple[float, int, int]]:
  """(error, blocks of threads of the part's kernel, loads of its table) of each case, run by numpy."""
  found = []
  for problem in [Problem(Case(**case)) for case in cases]:
    calls, variables = for_gpu(problem, target)
    held: dict[object, np.ndarray] = {}
    kernels = [gpu_renderers.lowered(call.src[0], target) for call in calls]
    for call, uops in zip(calls, kernels):
      gpu_lockstep.run(uops, gpu_numbers.arguments(uops, call, variables, held), variables)
    parts = math.prod(len(set(of)) for of in zip(*gpu_lockstep._groups(kernels[0], variables)))
    tables = {u for u in kernels[0] if u.op is Ops.PARAM and u.max_numel() == problem.table.size and u.addrspace}
    loads = sum(u.op is Ops.LOAD and u.src[0].src[0] in tables for u in kernels[0])
    found.append((rows.error(held[calls[-1].src[1].buffer], problem), parts, loads))
  return found

FEW = [random_rows(2430, 5), random_rows(2431, 4, window=70, sink=True)]

@pytest.mark.parametrize(("target", "cases"), some([
  ("CUDA", FEW), ("CUDA", ROWS), ("CUDA", OTHERS), ("OpenCL", [*ROWS[:2], FEWER[2]]), ("Metal", [ROWS[0], FEWER[1]])],
  0), ids=["some", "forms", "others", "opencl", "metal"])
def test_rows_on_gpu(target: str, cases: list[Case]):
  """A row reads up to its own end only, and a block reads the table once."""
  for case, (error, _, loads) in zip(cases, child.call(in_lockstep, target, [c.__dict__ for c in cases]).value):
    assert error < ERROR + case.softcap * 2**-22, (case, error)
    assert loads <= 2, (case, loads)  # a loop over the elements of keys, or none, loads it for keys and for values

@pytest.mark.parametrize(("target", "cases"), [("CUDA", PIECES[:1]), pytest.param("CUDA", PIECES[1:], marks=extended),
                                               pytest.param("Metal", PIECES, marks=extended)])
def test_pieces_on_gpu(target: str, cases: list[Case]):
  for case, (error, _, loads) in zip(cases, child.call(in_lockstep, target, [c.__dict__ for c in cases]).value):
    assert error < HALVES and loads <= 1, (case, error, loads)

def compiled(case: str, target: str, steps: list[tuple[int, int]]) -> list[list[dict]]:
  """The `kernels` command's rows for the attention of steps (rows, tokens of a piece) at depth 4,096."""
  open_target(target)
  with tempfile.TemporaryDirectory() as folder:
    path = kernel_cases.write(case, f"{folder}/{case}.gguf")
    found = [decode_step(str(path), kernel_cases.MAX_CONTEXT, kernel_cases.DEPTH, prompt, rows)
             for rows, prompt in steps]
  return [[p.row() for p in programs_of(step._replace(linear=attention.kernels(step.linear)))] for step in found]

# 135M and 1B shapes; a window and sinks; latents
@pytest.mark.parametrize(("case", "target", "steps"), some([
  ("smollm-135m-Q8_0", "CUDA:sm_90", STEPS[:1]), *[("llama-1b-Q4_K_M", target, STEPS) for target in (
    "CUDA:sm_80", "CUDA:sm_90", "CUDA:sm_100", "NV:sm_90", "NV:PTX:sm_90", "METAL:Apple7", "METAL:Apple9")],
  ("gpt-oss-20b-MXFP4_MOE", "CUDA:sm_90", STEPS), ("deepseek-v2-lite-Q4_K_M", "CUDA:sm_90", STEPS)], 0))
def test_compiles_for_gpus(case: str, target: str, steps: list[tuple[int, int]]):
  """Each layer has a kernel of parts, with short loops. Kernels of rows have no spills."""
  if target.startswith(("CUDA", "NV")) and not kernel_cases.has_cuda_wheels():
    pytest.skip("NVIDIA makes no wheels of its compilers for this machine")
  for step, found in zip(steps, child.call(compiled, case, target, steps).value):
    parts = [row for row in found if row["schedule"] == "online_softmax"]
    assert len(parts) == 2, (step, found)  # two layers
    for row in parts:
      assert (row["stack"] or 0) <= (PROMPT_STACK_OF_PTX["online_softmax"] if step[1] else 0), (step, row)
      assert step[1] or row["serial"] <= 64, (step, row)

def test_a_window_bounds_the_parts():
  """The grid of a layer with a window has the parts that hold it, however long the rows are."""
  long = [Case(1, 1, 32, (350, 3), **form) for form in ({}, {"window": 70}, {"window": 64, "chunked": True})]
  (_, whole, _), *windows = child.call(in_lockstep, "CUDA", [case.__dict__ for case in long]).value
  assert whole == 2 * 6 and [parts for _, parts, _ in windows] == [2 * 3, 2 * 2]
  assert all(error < ERROR for error, _, _ in windows)

def test_bounds_of_masks():
  """Bounds by a causal mask, by a window and by a chunk; without a mask there are none."""
  at, position = Variable("at", 0, 90), UOp.range(100, 0)
  score = UOp.param(0, dtypes.float, (100,)).index(position)
  low = score.const_like(-math.inf)
  first, last = visible((at < position).where(low, score), position)
  assert first is None and last is at
  first, last = visible(((at < position) | (at - 9 < position).ne(True)).where(low, score), position)
  assert last is at and first is not None and first.simplify() is (at - 8).simplify()
  first, last = visible((at < position + 3).where(low, score), position)
  assert first is None and last is not None and last.simplify() is (at - 3).simplify()
  first, last = visible((position < at // 8 * 8).where(low, score), position)
  assert last is None and first is not None and first.simplify() is (at // 8 * 8).simplify()
  assert visible(score, position) == (None, None) == visible((at < at - position).where(low, score), position)
