"""compile_time/normal_form: equivalent kernels become the same graph; before and after."""
import random

import numpy as np
from tinygrad import dtypes
from tinygrad.dtype import AddrSpace, Invalid
from tinygrad.uop.ops import AxisType, KernelInfo, Ops, UOp
from tinygrad_llm.patches.compile_time.normal_form import normal

def buffer(size: int, slot: int = 1) -> UOp: return UOp.param(slot, dtypes.float, (size,), "CPU")
OUT = UOp.param(0, dtypes.float, (64,), "CPU")

def kernel(value: UOp, loop: UOp, out: UOp = OUT, at: UOp | None = None) -> UOp:
  return UOp.sink(out.index(loop if at is None else at).store(value).end(loop), arg=KernelInfo())

def params(ast: UOp) -> dict[int, int]:
  return {u.arg.slot: u.max_numel() for u in ast.toposort() if u.op is Ops.PARAM and u.addrspace is AddrSpace.GLOBAL}

def test_view_becomes_index():
  """The first 64 of 4 rows of 96: by a reshape and a shrink, or by an index into a buffer that has 500."""
  i, row = UOp.range(64, 0), 3
  viewed = buffer(384).reshape((4, 96)).shrink(((0, 4), (0, 64))).index(UOp.const(row), i)
  flat = buffer(500).index(i + row * 96)
  assert kernel(viewed, i) is not kernel(flat, i)
  assert normal(kernel(viewed, i)) is normal(kernel(flat, i))
  assert params(normal(kernel(flat, i))) == {0: 64, 1: row * 96 + 64}

def test_stores_count_for_parameter_size():
  """Stores count for a parameter's size, as loads do."""
  i = UOp.range(8, 0)
  made = normal(kernel(OUT.index(i), i, at=i + 24))
  assert params(made) == {0: 32}

def test_buffer_without_flat_index_keeps_its_size():
  """A buffer keeps its size if it is used other than by INDEX, or if its index may be negative."""
  i = UOp.range(8, 0)
  assert params(normal(kernel(buffer(99).index(i - 4), i)))[1] == 99
  one = buffer(99)
  after = one.after(OUT.index(UOp.const(0)).store(UOp.const(0.0, dtypes.float)))
  assert params(normal(kernel(one.index(i) + after.index(i + 1), i)))[1] == 99

def test_gates_are_ignored_for_size():
  """x[i] gated by i < 5, for i < 8, needs eight elements: gates are ignored, but the buffer's size is the limit."""
  i = UOp.range(8, 0)
  gated = (i < 5).where(i, UOp.const(Invalid, i.dtype))
  assert params(normal(kernel(buffer(99).index(gated), i)))[1] == 8
  assert params(normal(kernel(buffer(5).index(gated), i)))[1] == 5

def test_two_stages_share_a_parameter():
  """Stages that read different parts of one buffer keep one parameter."""
  i, j = UOp.range(8, 0), UOp.range(4, 0)
  made = normal(UOp.sink(kernel(buffer(99).index(i), i), kernel(buffer(99).index(j), j), arg=KernelInfo()))
  assert params(made)[1] == 8 and len({u for u in made.toposort() if u.op is Ops.PARAM and u.arg.slot == 1}) == 1

def test_loop_stays_one_node():
  """Folding a view rebuilds start + length; the ended loop and the index's loop stay the same node."""
  b, a = (UOp.variable(name, 1, 8) for name in "ba")
  for n in (b + a, a + b):
    loop = UOp.range(n, 3, AxisType.REDUCE)
    rows = buffer(320).reshape((20, 16)).shrink(((0, n), (0, 16))).reshape((n * 16,))
    made = normal(kernel(rows.index(loop * 16).reduce(loop, arg=(Ops.ADD, 0)), UOp.range(4, 0)))
    assert len([u for u in made.toposort() if u.op is Ops.RANGE and u.arg[0] == 3]) == 1

def test_idempotent():
  i = UOp.range(64, 0)
  made = normal(kernel(buffer(384).reshape((4, 96)).shrink(((1, 2), (0, 64))).index(UOp.const(0), i), i))
  assert normal(made) is made

def value(u: UOp, known: dict[UOp, UOp]) -> int: return int(u.substitute(known, walk=True).simplify().vmax)

def test_random_views():
  """The flat index addresses the view's elements, and the shrunk parameter holds them all."""
  rng = random.Random(7)
  for _ in range(60):
    shape = tuple(rng.randint(1, 6) for _ in range(rng.randint(1, 3)))
    data = np.arange(np.prod(shape) + rng.randint(0, 5), dtype=np.float32)
    kept = data[:np.prod(shape)].reshape(shape)
    view = buffer(len(data)).shrink(((0, kept.size),)).reshape(shape)
    for _ in range(rng.randint(0, 3)):
      if rng.random() < 0.5:
        axes = tuple(rng.sample(range(kept.ndim), kept.ndim))
        view, kept = view.permute(axes), kept.transpose(axes)
      else:
        cut = tuple((first := rng.randrange(n), rng.randint(first + 1, n)) for n in kept.shape)
        view, kept = view.shrink(cut), kept[tuple(slice(*c) for c in cut)]
    loops = [UOp.range(n, i) if n > 1 else UOp.const(0) for i, n in enumerate(kept.shape)]
    stored = UOp.param(0, dtypes.float, kept.shape, "CPU").index(*loops).store(view.index(*loops))
    made = normal(UOp.sink(stored.end(*(r for r in loops if r.op is Ops.RANGE)), arg=KernelInfo()))
    index = next(u for u in made.toposort() if u.op is Ops.INDEX and u.src[0].arg.slot == 1)
    assert index.src[1].vmax < params(made)[1] <= len(data)
    for at in np.ndindex(kept.shape):
      assert data[value(index.src[1], {r: UOp.const(i) for r, i in zip(loops, at) if r.op is Ops.RANGE})] == kept[at]
