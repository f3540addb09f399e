"""compile_time/merge_loops: merges loops as tinygrad does, without trying pairs that cannot merge."""
import random

import pytest
from tinygrad import dtypes
from tinygrad.codegen import simplify
from tinygrad.uop.ops import AxisType, Ops, UOp
from tinygrad_llm.patches.compile_time import merge_loops
from tinygrad_llm.patches.compile_time.merge_loops import is_hopeless, merge_adjacent

def buffer(slot: int) -> UOp: return UOp.param(slot, dtypes.float, (1 << 20,), "CPU")
A, B = UOp.range(6, 0), UOp.range(4, 1)

def stored(index: UOp, *loops: UOp) -> UOp: return buffer(0).index(index).store(buffer(1).index(index)).end(*loops)

def test_adjacent_loops_are_merged():
  """for a in 6, b in 4: y[4a + b] = x[4a + b] --> for n in 24: y[n] = x[n]"""
  made = merge_adjacent(stored(A * 4 + B, A, B))
  assert [r.src[0].val for r in made.ended_ranges] == [24]
  assert made.src[0].src[0].src[1] is made.ended_ranges[0]

@pytest.mark.parametrize(("index", "hopeless"), [
  (A * 4 + B, False), (A * 4 + B + 7, False), (A * 8 + B * 2, False), (A * 8 + B, True), (A + B * 6, True),
  (A, True), (B * 3, True), (UOp.const(3), False), (A * B, False), ((A * 4 + B) % 5, False),
  ((A < 3).where(A * 8 + B, 0), False)])
def test_pairs_ruled_out_by_strides(index, hopeless):
  """A pair is hopeless only if strides prove it: the outer stride is not the inner one times the inner length."""
  assert is_hopeless(A, B, [index], []) == hopeless
  assert not is_hopeless(A, B, [index], [A // 2]) and is_hopeless(A, B, [index], [UOp.range(9, 5) // 2]) == hopeless

def random_kernel(rng: random.Random) -> UOp:
  """A random reduction or store of loads with affine indices, with some divisions and conditions."""
  loops = [UOp.range(rng.choice((2, 3, 4, 6)), i, rng.choice((AxisType.REDUCE, AxisType.REDUCE, AxisType.UNROLL)))
           for i in range(rng.randint(2, 4))]
  def index() -> UOp:
    at, stride = UOp.const(rng.randint(0, 3)), rng.choice((1, 2))
    for r in rng.sample(loops, rng.randint(1, len(loops))) if rng.random() < 0.5 else reversed(loops):
      at, stride = at + r * stride, stride * (r.src[0].val if rng.random() < 0.85 else 5)
    if rng.random() < 0.2: at = at // rng.choice((2, 4))
    return (loops[0] < 1).where(at, at + 1) if rng.random() < 0.15 else at
  value = buffer(1).index(index()) * buffer(2).index(index())
  if rng.random() < 0.5:
    loops = [r.replace(arg=(r.arg[0], AxisType.REDUCE)) for r in loops]
    return value.substitute({r.replace(arg=(r.arg[0], AxisType.UNROLL)): r for r in loops}).simplify().reduce(
      *loops, arg=Ops.ADD)
  return buffer(0).index(index()).store(value).end(*loops)

def test_random_kernels(monkeypatch):
  """Random kernels are merged as by tinygrad, in fewer attempts."""
  rng, tried, theirs = random.Random(11), 0, 0
  rewrite = merge_loops.graph_rewrite
  def counted(*args, **kwargs):
    nonlocal tried
    tried += 1
    return rewrite(*args, **kwargs)
  def counted_theirs(*args, **kwargs):
    nonlocal theirs
    theirs += 1
    return rewrite(*args, **kwargs)
  monkeypatch.setattr(merge_loops, "graph_rewrite", counted)
  monkeypatch.setattr(simplify, "graph_rewrite", counted_theirs)
  merged = 0
  for _ in range(150):
    kernel = random_kernel(rng)
    made = merge_adjacent(kernel)
    assert (kernel if made is None else made) is simplify.simplify_merge_adjacent(kernel)
    merged += made is not None and len(made.ended_ranges) < len(kernel.ended_ranges)
  assert merged > 15 and tried < theirs * 0.6
