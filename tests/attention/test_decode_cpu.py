"""attention/decode_cpu.py: its inner loops in C, its exponentials, and shares of positions for several threads."""
import math
import re

import numpy as np
import pytest
from tests.attention.test_attention_rows import ERROR, FORMS, errors, random_rows, schedule
from tests.support import child
from tests.support.extended import extended, some
from tests.support.rows import Case, Problem
from tinygrad import Tensor
from tinygrad.engine.realize import compile_linear, run_linear
from tinygrad.uop.ops import Ops
from tinygrad_llm.device.device import open_target
from tinygrad_llm.patches.attention.exponentials import exp2

# *** inner loops

LANES, REGISTERS = 16, {"CPU:x86-64-v3": 8, "CPU:x86-64-v4": 32, "CPU:arm64": 8}  # of 16 floats

def sources(target: str, cases: list[dict]) -> list[str]:
  """The C code of the kernel that reads the pool, for each case."""
  open_target(target)
  found = []
  for case in cases:
    linear = compile_linear(schedule(Problem(Case(**case)))[0])
    texts = [u.arg for call in linear.src for u in call.src[0].src if u.op is Ops.SOURCE]
    found.append(next(text for text in texts if "__fp16*" in text))
  return found

def innermost(source: str) -> list[str]:
  """The bodies of loops without loops in them, which read halves."""
  loops = re.findall(r"\n( *)for \(([^\n]*)\{\n(.*?)\n\1\}", source, re.DOTALL)
  bodies = [body for _, _, body in loops]
  while any("for (" in body for body in bodies):
    bodies = [b for body in bodies for b in ([body] if "for (" not in body else
              [x[2] for x in re.findall(r"(?:^|\n)( *)for \(([^\n]*)\{\n(.*?)\n\1\}", body, re.DOTALL)])]
  return [body for body in bodies if "__fp16" in body]

DEPTH = 640  # positions: the pool is larger than a cache, as ordered_loads.py wants it

@pytest.mark.parametrize("target", some(list(REGISTERS), 0))
def test_inner_loops(target: str):
  """
  A key and a value are converted once for all queries that share them. Sums of values stay in registers.

  The loop over values has no way out: with a break in it, clang kept its sums on the stack, and AVX-512 took 1.2 times
  as long. So it did with more sums than half of the registers hold, on AVX2.
  """
  rng = np.random.default_rng()
  shapes = [(KVH, G, D) for KVH, G, D in ((3, 3, 64), (4, 4, 64), (2, 8, 128), (2, 1, 96), (1, 4, 256))]
  shapes = [shapes[rng.integers(len(shapes))]]
  cases = [Case(KVH, G, D, (DEPTH,) * -(-8 // KVH), most=DEPTH // 64) for KVH, G, D in shapes]
  for (_, G, D), source in zip(shapes, child.call(sources, target, [case.__dict__ for case in cases]).value):
    keys, values = innermost(source)
    assert "break" not in values, values
    sums = set(re.findall(r"\*\(\(float16\*\)\(\((buf\d+\+\w+)\)\)\) = ", values))
    queries = min(G, REGISTERS[target] // 2)
    assert len(sums) % queries == 0 and len(sums) <= REGISTERS[target] // 2, (G, D, sums)
    assert values.count("__fp1616 ") == len(sums) // queries == values.count("__builtin_convertvector"), values
    positions = max(n for n in (1, 2, 4, 8, 16) if n <= LANES // G)  # that share vectors of sums
    unrolled = min(64, D & -D)
    assert keys.count("__fp1616 ") == positions * unrolled // LANES == keys.count("__builtin_convertvector"), keys

# *** exponentials

def test_exp2():
  """2^x to 2e-7 of it, for numbers up to 0; below -126 it is 0."""
  rng = np.random.default_rng()
  x = np.concatenate([-rng.random(500) * 126, -rng.random(500), -np.arange(127.0), [-0.0]]).astype(np.float32)
  x = np.concatenate([x, np.array([-127, -1e4, -3.4e38, -math.inf, math.nan], np.float32)])
  found, wanted = Tensor(exp2(Tensor(x).realize().uop)).numpy().astype(np.float64), np.exp2(x.astype(np.float64))
  assert (found[-5:-1] == 0).all() and np.isnan(found[-1])
  assert (np.abs(found[:-5] / wanted[:-5] - 1) < 2e-7).all()

# *** shares of a row's positions

def alone_and_in_company(cases: list[dict]) -> list[bool]:
  """Whether each row of each case has the same bits alone."""
  found = []
  for problem in [Problem(Case(**case)) for case in cases]:
    together = computed(problem)
    for row, length in enumerate(problem.case.lengths):
      alone = Problem(Case(**(problem.case.__dict__ | {"lengths": (length,)})))
      alone.pool, alone.table, alone.q = problem.pool, problem.table[row:row + 1], problem.q[row:row + 1]
      alone.sinks = problem.sinks
      found.append(bool((computed(alone)[0] == together[row]).all()))
  return found

def computed(problem: Problem) -> np.ndarray:
  """float32 (B, heads * width)."""
  linear, variables = schedule(problem)
  run_linear(compile_linear(linear), variables)
  c = problem.case
  rows, width = len(c.lengths), c.KVH * c.G * c.width
  return np.frombuffer(linear.src[-1].src[1].buffer.as_memoryview(), np.float32)[:rows * width].reshape(rows, -1).copy()

@pytest.mark.parametrize("threads", some(["2", "3", "16"], 1))
def test_company(threads: str):
  """A row's bits depend on no other row, however its positions are shared."""
  seed = int(np.random.default_rng().integers(1 << 30))
  cases = [random_rows(seed, 3, KVH=3, **FORMS[seed % 2])]
  same = child.call(alone_and_in_company, [case.__dict__ for case in cases], NUM_CPU_THREADS=threads).value
  assert all(same), (cases, same)

@pytest.mark.parametrize("threads", ["3", pytest.param("16", marks=extended), pytest.param("1", marks=extended)])
def test_shares(threads: str):
  """Heads that are no multiple of the threads, and lengths with fewer blocks than shares: memory beyond is NaN."""
  seed = int(np.random.default_rng().integers(1 << 30))
  cases = [random_rows(seed, 8, **{"KVH": 1} | FORMS[seed % len(FORMS)])]
  for case, error in zip(cases, child.call(errors, [case.__dict__ for case in cases], NUM_CPU_THREADS=threads).value):
    assert error < ERROR + case.softcap * 2**-22, (case, error)

def shares(cases: list[dict]) -> list[int]:
  """The parts of a row's positions of each case."""
  found = []
  for case in cases:
    linear, _ = schedule(problem := Problem(Case(**case)))
    held = linear.src[0].src[1].buffer.size // (len(problem.case.lengths) * problem.case.KVH * problem.case.G)
    found.append(held // (problem.case.width + 4))
  return found

def test_threads_have_equal_work():
  """The fewest parts that give all threads as much work: two of three heads' positions, one of eight heads'."""
  cases = [Case(3, 3, 64, (200,)), Case(3, 3, 64, (200, 70)), Case(8, 2, 64, (200,)), Case(1, 4, 64, (200,))]
  assert child.call(shares, [case.__dict__ for case in cases], NUM_CPU_THREADS="2").value == [2, 2, 1, 2]
