"""Passes of patches/loops: a kernel's graph after each computes what it did before, in fewer steps; by numpy."""
import functools
import operator
import random

import numpy as np
import pytest
from tests.support.interpret import Interpreter, arrays_for, steps
from tests.support.random_sums import LOOPS, OUT, OUTPUTS, drawn, kernel, load
from tinygrad import Device
from tinygrad.uop.ops import AxisType, Ops, UOp, graph_rewrite
from tinygrad_llm.patches.ir.builder import is_lanes
from tinygrad_llm.patches.ir.loop_ends import split_loops
from tinygrad_llm.patches.loops import factor_sums, hoist_factors, hoist_sums
from tinygrad_llm.patches.vector import lanes

A, B, C = LOOPS
ROW, COLUMN = OUTPUTS

def results(sink: UOp, arrays: dict[int, np.ndarray]) -> np.ndarray:
  arrays = {slot: array.copy() for slot, array in arrays.items()}
  Interpreter(arrays, sink).value(sink)
  return arrays[OUT]

def same(before: UOp, after: UOp) -> bool:
  arrays = arrays_for(before)
  return np.array_equal(results(before, arrays), results(after, arrays))

def nested(sink: UOp) -> UOp: return split_loops(graph_rewrite(sink, factor_sums.pm_nest))
def shared_sums(sink: UOp) -> UOp: return hoist_sums.share(sink, Device["CPU"].renderer)
def shared_factors(sink: UOp) -> UOp: return hoist_factors.share(sink, Device["CPU"].renderer)
def all_of_them(sink: UOp) -> UOp: return nested(shared_factors(shared_sums(sink)))

def product(rng: random.Random, loops: tuple[UOp, ...]) -> UOp:
  """A factor of each row, and two that rows share, at one place or at several."""
  own, shared, other = (rng.sample(loops, rng.randint(1, len(loops))) for _ in range(3))
  return load(0, *own, *OUTPUTS) * (load(1, *shared) * load(2, *rng.choice((shared, other))))

@pytest.mark.parametrize("run", [nested, shared_sums, shared_factors, all_of_them])
def test_values(run):
  """Of sums of products that are drawn; some change."""
  changed = 0
  for seed in range(200):
    rng = random.Random(seed)
    loops = tuple(rng.sample(LOOPS, rng.randint(1, 3)))
    value = functools.reduce(operator.add, [product(rng, loops) for _ in range(rng.randint(1, 3))])
    sink = kernel((value if seed % 4 else drawn(rng, (*OUTPUTS, *loops), ())).reduce(*loops, arg=Ops.ADD))
    made = run(sink)
    assert same(sink, made), seed
    changed += made is not sink
  assert changed > 10

def test_a_factor_goes_out_of_a_sum():
  """sum a b: x[a] * y[a b] --> sum a: x[a] * (sum b: y[a b])"""
  sink = kernel((load(0, A, ROW) * load(1, A, B, COLUMN)).reduce(A, B, arg=Ops.ADD))
  wanted = (load(0, A, ROW) * load(1, A, B, COLUMN).reduce(B, arg=Ops.ADD)).reduce(A, arg=Ops.ADD)
  assert nested(sink) is kernel(wanted)

def test_a_term_without_a_loop_is_multiplied():
  """sum a b: x[a] + y[a b] --> sum a: x[a] * 4 + (sum b: y[a b])"""
  sink = kernel((load(0, A, ROW) + load(1, A, B, COLUMN)).reduce(A, B, arg=Ops.ADD))
  assert same(sink, made := nested(sink)) and made is not sink
  assert any(u.op is Ops.CONST and u.val == 4 for u in made.toposort())

def test_a_sum_that_rows_share_is_an_array():
  """sum a b: w[row a] * x[a b] for each row --> s[a] = sum b: x[a b] once; sum a: w[row a] * s[a]"""
  of = (load(0, ROW, COLUMN, A) * load(1, A, B)).reduce(A, B, arg=Ops.ADD)
  made = shared_sums(sink := kernel(of))
  assert same(sink, made) and made is not sink
  array, = {u for u in made.toposort() if u.op is Ops.BUFFER}
  assert array.shape == (int(A.vmax) + 1,)
  assert steps(nested(made)) < steps(sink) / 2

def test_factors_that_rows_share_are_an_array():
  """sum a b: w[row a b] * (x[a b] * y[a b]) --> p[a b] = x[a b] * y[a b] once; sum a b: w[row a b] * p[a b]"""
  of = (load(0, ROW, COLUMN, A, B) * (load(1, A, B) * load(2, A, B))).reduce(A, B, arg=Ops.ADD)
  made = shared_factors(sink := kernel(of))
  assert same(sink, made) and made is not sink
  array, = {u for u in made.toposort() if u.op is Ops.BUFFER}
  assert array.shape == ((int(A.vmax) + 1) * (int(B.vmax) + 1),)
  assert shared_factors(kernel((load(0, ROW, COLUMN, A) * load(1, A, B)).reduce(A, B, arg=Ops.ADD))) is not made

def test_factors_at_other_places_stay():
  """sum a b: w[row a b] * (x[a b] * y[b a]): one array has no place for both"""
  sink = kernel((load(0, ROW, COLUMN, A, B) * (load(1, A, B) * load(2, B, A))).reduce(A, B, arg=Ops.ADD))
  assert shared_factors(sink) is sink

@pytest.mark.parametrize("sizes", [(16,), (4, 4), (32,), (2, 8, 2), (2, 16), (64,)])
def test_elements_of_a_sum_become_lanes(sizes):
  """sum k: w[k] * x[k], unrolled --> sum lane of 16: (sum k / 16: ..)"""
  unrolled = [UOp.range(n, 10 + i, AxisType.UNROLL) for i, n in enumerate(sizes)]
  value = (load(0, *unrolled, A) * load(1, *unrolled, ROW) + load(2, A)).reduce(A, *unrolled, arg=Ops.ADD)
  sink = kernel(value)
  made = graph_rewrite(sink, lanes.pm_pull_lanes)
  assert same(sink, made)
  lane, = [r for r in made.toposort() if r.op is Ops.RANGE and is_lanes(r)]
  assert int(lane.vmax) + 1 == 16

def test_a_loop_has_one_end():
  """(sum a b: x) + (sum a: y) --> the second sum has an a of its own"""
  sink = kernel(load(0, A, B, ROW).reduce(A, B, arg=Ops.ADD) + load(1, A, COLUMN).reduce(A, arg=Ops.ADD))
  made = split_loops(sink)
  ends = [u.src[1:] for u in made.toposort() if u.op is Ops.REDUCE]
  assert same(sink, made) and len(ends) == 2 and not set(ends[0]) & set(ends[1])
  assert split_loops(made) is made

def test_a_wrong_rewrite_is_seen():
  """The arrays tell sums apart that differ in one loop, sign or factor."""
  good = kernel((load(0, A, ROW) * load(1, A, B, COLUMN)).reduce(A, B, arg=Ops.ADD))
  for bad in ((load(0, A, ROW) * load(1, A, B, COLUMN)).reduce(A, arg=Ops.ADD).reduce(C, B, arg=Ops.ADD),
              (load(0, A, ROW) * load(1, A, B, COLUMN) * -1).reduce(A, B, arg=Ops.ADD),
              (load(0, ROW, A) * load(1, A, B, COLUMN)).reduce(A, B, arg=Ops.ADD)):
    assert not same(good, kernel(bad))
