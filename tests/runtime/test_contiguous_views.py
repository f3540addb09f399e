"""runtime/contiguous_views.py: finds the same contiguous views that tinygrad proves by algebra."""
import random

import pytest
from tinygrad import UOp, dtypes
from tinygrad.uop.ops import Ops
from tinygrad_llm.patches import is_on, load

views = load("contiguous_views")
TYPES = (dtypes.uint8, dtypes.half, dtypes.float32, dtypes.uint64)

def random_view(rng: random.Random) -> UOp:
  """A random chain of reshapes, shrinks and bitcasts of one buffer."""
  dtype = rng.choice(TYPES)
  size = 4 * rng.randrange(1, 40) * (1 if dtype.itemsize == 8 else 8)
  u = rng.choice((UOp.new_buffer("CPU", size, dtype), UOp.param(rng.randrange(3), dtype, (size,), "CPU")))
  for _ in range(rng.randrange(1, 6)):
    kind, n = rng.randrange(3), u.max_numel()
    if kind == 0: u = u.reshape((n // 2, 2) if n % 2 == 0 and rng.random() < 0.5 else (n,))
    elif len(u.shape) == 1 and kind == 1 and n > 8:
      first = 4 * rng.randrange(n // 8)
      u = u.shrink(((first, first + 4 * rng.randrange(1, (n - first) // 4 + 1)),))
    elif len(u.shape) == 1:
      wanted = rng.choice(TYPES)
      if n * u.element_size() % wanted.itemsize == 0: u = u.bitcast(wanted)
  return u

def test_random_views_match_tinygrad():
  rng, ops, read_off = random.Random(5), set(), 0
  for _ in range(400):
    u = random_view(rng)
    stock, found = views._stock(u), views.contiguous_view(u)
    assert found == stock, (stock, found, u)
    if found is not None:
      ops.add(u.op)
      read_off += views._read_off(u) is not None
  assert ops >= {Ops.BITCAST, Ops.SHRINK, Ops.RESHAPE} and read_off > 200

def test_other_views_fall_back_to_tinygrad():
  buffer, n = UOp.new_buffer("CPU", 64, dtypes.float32), UOp.variable("n", 1, 8)
  left = [buffer.reshape((8, 8)).shrink(((2, 4), (0, 8))), buffer.reshape((8, 8)).permute((1, 0)), buffer + 1,
          buffer.shrink(((n, n + 8),)), UOp.new_buffer("WEBGPU", 64, dtypes.float32).reshape((8, 8)),
          UOp.new_buffer("CL", 64, dtypes.float32).shrink(((0, 4),)),
          UOp.new_buffer(("CPU", "CPU:1"), 8, dtypes.half).reshape((2, 4))]
  assert [views._read_off(u) for u in left] == [None] * len(left)
  assert [views.contiguous_view(u) for u in left] == [views._stock(u) for u in left]

@pytest.mark.skipif(not is_on("contiguous_views"), reason="it is off")
def test_pass_is_installed(): assert UOp.contiguous_view is views.contiguous_view
