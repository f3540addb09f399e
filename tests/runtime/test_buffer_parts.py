"""runtime/buffer_parts.py: kernels that differ in the part of a buffer that they use are one, with right numbers."""
import random

import numpy as np
import pytest
from tinygrad import Tensor, TinyJit
from tinygrad.engine import realize
from tinygrad.uop.ops import Ops
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.runtime import buffer_parts

pytestmark = pytest.mark.skipif(not is_on("buffer_parts"), reason="it is off")

def kernels(linear) -> set:
  """The kernels that a schedule's calls are lowered from."""
  handed = []
  def keep(passed):
    handed.append(passed)
    return passed
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(buffer_parts, "_lower_and_compile", keep)
    realize.lower_and_compile(linear)
  return {call.src[0] for call in handed[0].src if call.src[0].op is Ops.SINK}

def scan(x: Tensor, S: Tensor) -> Tensor:
  """A state that parts of x, (heads, n, rows, columns), change one after the other."""
  for c in range(x.shape[1]): S = (S * 0.5 + x[:, c].sum(1) * S.sum(-1, keepdim=True)).contiguous()
  return S

def expected(x: np.ndarray, S: np.ndarray) -> np.ndarray:
  for c in range(x.shape[1]): S = S * 0.5 + x[:, c].sum(1) * S.sum(-1, keepdims=True)
  return S

def test_parts_of_one_buffer_are_one_kernel():
  x, S = Tensor.rand(64, 8, 16, 256).realize(), Tensor.rand(64, 256).realize()  # too large for a chain of kernels
  linear = scan(x, S).linear_with_vars()[0]
  before = {call.src[0] for call in linear.src if call.src[0].op is Ops.SINK}
  assert len(before) >= 8 and len(kernels(linear)) <= len(before) - 6

@pytest.mark.parametrize("seed", range(6))
def test_random_shapes_are_right_and_replayed(seed):
  """In a captured step, arguments are parts of an arena; widths that are no multiple of 64 bytes stay right, too."""
  rng = random.Random(seed)
  heads, n, rows = rng.randrange(1, 4), rng.randrange(2, 7), rng.randrange(1, 6)
  columns = rng.choice((3, 7, 16, 48, 64))
  values = np.random.default_rng(seed)
  step = TinyJit(lambda x, S: scan((x * 2).contiguous(), S).realize())
  for _ in range(4):
    x, S = values.random((heads, n, rows, columns), np.float32), values.random((heads, columns), np.float32)
    np.testing.assert_allclose(step(Tensor(x).realize(), Tensor(S).realize()).numpy(), expected(2 * x, S), rtol=1e-4)

def test_inputs_of_a_captured_step_are_not_moved():
  """A kernel may be called with a part of an input, which is another buffer at each call, and with one of a buffer."""
  shape, values = (4, 1 << 17), np.random.default_rng(1)
  held = values.random(shape, np.float32)
  y = Tensor(held).realize()
  def parts(x: Tensor) -> list[Tensor]:
    made = [(t[c] + 1).contiguous() for c in range(shape[0]) for t in (x, y)]
    Tensor.realize(*made)
    return made
  step = TinyJit(parts)
  for _ in range(4):
    given = values.random(shape, np.float32)
    for i, part in enumerate(step(Tensor(given).realize())):
      np.testing.assert_array_equal(part.numpy(), (given, held)[i % 2][i // 2] + 1)

def test_what_is_padded_is_right():
  """A condition of an index stays, and keeps what comes before the part's start out."""
  x = np.random.default_rng(1).random((6, 64), np.float32)
  t = Tensor(x).realize()
  parts = [(t[c].pad((1, 0))[:64] + t[c]).contiguous() for c in range(6)]
  Tensor.realize(*parts)
  for c, part in enumerate(parts): np.testing.assert_array_equal(part.numpy(), np.pad(x[c], (1, 0))[:64] + x[c])

def test_other_kernels_stay_as_they_are():
  x = Tensor.rand(64, 64).realize()
  linear = (x[3] + 1).contiguous().linear_with_vars()[0]
  assert kernels(linear) == {call.src[0] for call in linear.src}

def test_parts_begin_at_multiples_of_64_bytes():
  x = Tensor.rand(40, 3).realize()
  linear = Tensor.cat(*[(x[c] + 1).contiguous() for c in range(40)]).linear_with_vars()[0]
  for ast in {call.src[0] for call in linear.src if call.src[0].op is Ops.SINK}:
    assert all(start * 4 % buffer_parts.ALIGNED == 0 for start in buffer_parts.apart(ast)[1].values())
