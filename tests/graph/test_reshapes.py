"""graph/reshapes: indices are not divided by a symbolic length; indices before and after, evaluated by numpy."""
import math
import random

import pytest
from tinygrad import dtypes
from tinygrad.schedule import rangeify
from tinygrad.schedule.indexing import BufferizeOpts
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.graph.reshapes import apply_reshape, pairs, stock
from tinygrad_llm.patches.ir.indices import evaluate

N = UOp.variable("n", 1, 64, param=True)
DIVISIONS = {Ops.FLOORDIV, Ops.FLOORMOD}

def loops(shape: tuple) -> UOp: return UOp.sink(*[UOp.range(n, i) if n is N or n > 1 else UOp.const(0)
                                                  for i, n in enumerate(shape)])

def test_reshape_with_axis_of_size_one():
  """flat // n // D, flat // n % D .. of (H, n, D) -> (H, 1, n, D) --> h, n, d"""
  before, after = (3, N, 8), (3, 1, N, 8)
  h, _, n, d = (of := loops(after)).src
  assert apply_reshape(before, after, of).src == (h, n, d)

def test_split_axes():
  """(H, n, 4, 8) -> (H, n, 32) --> h, n, d // 8, d % 8"""
  h, n, d = (of := loops((3, N, 32))).src
  assert apply_reshape((3, N, 4, 8), (3, N, 32), of).src == (h, n, (d // 8).simplify(), (d % 8).simplify())

@pytest.mark.parametrize(("a", "b", "found"), [
  ((3, N, 8), (3, 1, N, 8), [((0,), (0,)), ((1,), (2,)), ((2,), (3,))]),
  ((2, 3, N), (6, N), [((0, 1), (0,)), ((2,), (1,))]),
  ((N, 4, 6), (N, 8, 3), [((0,), (0,)), ((1, 2), (1, 2))]),
  ((1, N), (N, 1, 1), [((1,), (0,))]),
  ((4, N, 6), (2, N, 2, 2, 3), [((0, 1), (0, 1, 2)), ((2,), (3, 4))]),  # from both ends
  ((2, 3, 4, N), (6, 2, N, 2), [((0, 1), (0,)), ((2, 3), (1, 2, 3))]),
  ((4, N), (2, N, 2), [((0, 1), (0, 1, 2))])])  # 4 is not 2: all axes are one pair
def test_matching_axis_groups(a, b, found): assert sorted(pairs(a, b)) == found

def random_shapes(rng: random.Random) -> tuple[tuple, tuple]:
  """Two random shapes with equal element counts, the symbolic n in both, and some axes of length 1."""
  made: list[list] = [[], []]
  for _ in range(rng.randint(1, 3)):
    small = [rng.choice((1, 2, 3, 4)) for _ in range(rng.randint(1, 3))]
    for shape in made:
      at = rng.randint(0, len(small))
      shape += [n for n in (math.prod(small[:at]), math.prod(small[at:])) if n > 1 or rng.random() < 0.5]
    if N not in made[0] and rng.random() < 0.7:
      for shape in made: shape.append(N)
  return tuple(made[0]) or (1,), tuple(made[1]) or (1,)

def test_random_reshapes_preserve_values():
  """Random reshapes keep the flat index for n = 5; few still divide by n."""
  rng, divided = random.Random(2), 0
  for _ in range(120):
    a, b = random_shapes(rng)
    made = apply_reshape(a, b, of := loops(b)).src
    steps = {r: rng.randrange(5 if b[i] is N else b[i]) for i, r in enumerate(of.src) if r.op is Ops.RANGE} | {N: 5}
    def flat(shape: tuple, at: tuple[UOp, ...], steps: dict = steps) -> int:
      place = 0
      for n, i in zip(shape, at): place = place * (5 if n is N else n) + int(evaluate(i, dict(steps)))
      return place
    assert flat(a, made) == flat(b, of.src), (a, b)
    divided += any(u.op in DIVISIONS and N in u.src[1].toposort() for i in made for u in i.toposort())
  assert divided < 10

def test_constant_shapes_fall_back_to_tinygrad():
  for a, b in (((4, 6), (8, 3)), ((2, 3), (6,)), ((24,), (2, 1, 12))):
    assert apply_reshape(a, b, of := loops(b)) is stock(a, b, of)

def test_stored_results_that_choose_places_stay_as_they_are():
  """An index that is read from a stored result is simplified around that number: no other version of it arises."""
  r, i = UOp.range(4, 0), UOp.range(8, 1)
  x = UOp.param(0, dtypes.int, (8,)).index(i)
  stored = UOp(Ops.STAGE, src=(x * 2 * 3 + 0, i), arg=BufferizeOpts("CPU", removable=False))
  number = stored.index(r)
  assert stored.simplify() is not stored
  made = rangeify.apply_movement_op(Ops.RESHAPE, (4, 8), (32,), ((number + 1) * 2 - number,))
  assert {u for at in made for u in at.toposort() if u.op is Ops.STAGE} == {stored}
  for n in range(0, 24, 6):  # as the loaded number would be
    at = [int(evaluate(u.substitute({number: UOp.const(n)}, walk=True), {})) for u in made]
    assert at[0] * 8 + at[1] == n + 2
