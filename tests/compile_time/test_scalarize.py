"""compile_time/scalarize: splits vectors with known elements in one step; graphs before and after."""
import random

import numpy as np
from tests.support.interpret import Interpreter
from tinygrad import dtypes
from tinygrad.uop.ops import Ops, UOp, graph_rewrite
from tinygrad_llm.patches.compile_time import scalarize
from tinygrad_llm.patches.compile_time.scalarize import elements, pm_all, pm_elementwise

def test_elements():
  """The elements of a moved stack match numpy's; None if they are unknown."""
  rng = random.Random(0)
  for _ in range(200):
    sizes = [rng.choice((1, 2, 3)) for _ in range(rng.randint(1, 3))]
    places = np.arange(np.prod(sizes)).reshape(sizes)
    x = UOp.stack(*[UOp.variable(f"v{i}", 0, 9) for i in range(places.size)]).reshape(tuple(sizes))
    for _ in range(rng.randint(0, 4)):
      how = rng.choice(("permute", "expand", "reshape"))
      if how == "permute":
        axes = rng.sample(range(places.ndim), places.ndim)
        x, places = x.permute(tuple(axes)), places.transpose(axes)
      elif how == "expand": x, places = x.expand((2, *places.shape)), np.broadcast_to(places, (2, *places.shape))
      else: x, places = x.reshape((places.size,)), places.reshape(-1)
    found = elements(x)
    assert [u.expr for u in found] == [f"v{i}" for i in places.flatten()]
  assert elements(UOp.placeholder((4,), dtypes.float, 0)) is None

A, B, C, D = (UOp.param(0, dtypes.float, (4,)).index(UOp.const(i)) for i in range(4))

def test_add_of_two_vectors():
  """(a, b) + (c, d) --> (a + c, b + d)"""
  made = scalarize.scalarize(UOp(Ops.ADD, dtypes.float, (UOp.stack(A, B), UOp.stack(C, D))))
  assert made is UOp.stack(A.alu(Ops.ADD, C), B.alu(Ops.ADD, D)).reshape((2,))

def test_vector_store_is_split():
  """store (a, b) to (x[0], x[1]) --> store a to x[0]; store b to x[1]"""
  x = UOp.placeholder((4,), dtypes.float, 1)
  places = [x.index(UOp.const(i)) for i in range(2)]
  made = scalarize.scalarize(UOp(Ops.STORE, dtypes.void, (UOp.stack(*places), UOp.stack(A, B))))
  assert made is UOp.group(places[0].store(A), places[1].store(B))

def test_opaque_vector_is_indexed():
  """vector x + (a, b) --> (x[0] + a, x[1] + b)"""
  x = UOp(Ops.CONTIGUOUS, dtypes.float, (UOp.stack(C, D),))
  made = scalarize.scalarize(UOp(Ops.ADD, dtypes.float, (x, UOp.stack(A, B))))
  assert made is UOp.stack(*[x.index(UOp.const(i)).alu(Ops.ADD, y) for i, y in enumerate((A, B))])

def test_values():
  """Products of permuted and reshaped matrices have the right elements."""
  rng, arrays = random.Random(7), {0: np.array([1., 2., 4., 8.])}
  for _ in range(60):
    rows, columns = rng.choice(((2, 2), (1, 3), (3, 2)))
    both = []
    for _ in range(2):
      cells = [rng.choice((A, B, C, D)) for _ in range(rows * columns)]
      x = UOp.stack(*cells).reshape((columns, rows)).permute((1, 0)) if rng.random() < 0.5 else \
        UOp.stack(*cells).reshape((rows, columns))
      both.append((x, [cells[i % columns * rows + i // columns] for i in range(rows * columns)]
                   if x.op is Ops.PERMUTE else cells))
    (x, xs), (y, ys) = both
    made = graph_rewrite(UOp(Ops.MUL, dtypes.float, (x, y)), pm_elementwise)
    got = [float(Interpreter(arrays, u).value(u)) for u in elements(made)]
    assert got == [float(Interpreter(arrays, u * v).value(u * v)) for u, v in zip(xs, ys)]

def test_scalars_and_mismatched_shapes_unchanged():
  """Scalars and vectors of different shapes are not changed."""
  for u in (A + B, UOp(Ops.ADD, dtypes.float, (UOp.stack(A, B), C))): assert graph_rewrite(u, pm_all) is u
