"""device/captured.py: a Replay gives what its TinyJit gives, and does its work only once."""
import random

import numpy as np
import pytest
from tinygrad import Tensor, UOp, dtypes
from tinygrad.helpers import Context
from tinygrad_llm.device.buffers import Readings, empty, fill, host_view, writer
from tinygrad_llm.device.captured import Replay, captured
from tinygrad_llm.patches.runtime.timed_replay import timed_replays

N = 24
at, scale = UOp.variable("at", 0, N - 1), UOp.variable("scale", 1, 9)

def _step(held: Tensor, given: Tensor, at: UOp, scale: UOp) -> tuple[Tensor, Tensor]:
  return (held[at:at+1] * scale + given).contiguous(), given.sum().contiguous()

@pytest.fixture
def made():
  held, given = (empty((n,), dtypes.int32) for n in (N, 3))
  fill(held, lambda memory: np.copyto(memory, range(N)))
  fill(given, lambda memory: memory.fill(0))
  return Replay(captured(_step, held), (given,), (at, scale)), writer(given), Readings()

def check(made, rng: random.Random) -> None:
  """One call with random numbers."""
  replay, write, reading = made
  i, by, numbers = rng.randrange(N), rng.randint(1, 9), [rng.randrange(1000) for _ in range(3)]
  write(lambda memory: np.copyto(memory, numbers))
  row, total = replay(i, by)
  assert reading(row, 3).tolist() == [i * by + n for n in numbers]
  assert int(reading(total)) == sum(numbers)

def test_random_calls(made):
  rng = random.Random(3)
  for _ in range(20): check(made, rng)
  with Context(DEBUG=2): check(made, rng)
  with Context(JIT=0): check(made, rng)
  check(made, rng)

def test_timed_replays_see_all_calls(made):
  rng = random.Random(4)
  for _ in range(3): check(made, rng)
  with timed_replays() as replays:
    for _ in range(2): check(made, rng)
  assert len(replays) == 2 and all(r.launches for r in replays)
  check(made, rng)

@pytest.mark.parametrize("values", [(N, 1), (-1, 1), (0, 0), (0, 10)])
def test_values_out_of_range(made, values):
  for _ in range(2): check(made, random.Random(5))
  with pytest.raises(AssertionError, match="is not from"): made[0](*values)
  with pytest.raises(ValueError, match="zip"): made[0](1)

def test_readings_keep_few_results():
  reading = Readings(most=4)
  for i in range(20):
    fill(tensor := empty((2,), dtypes.int32), lambda memory, i=i: memory.fill(i))
    for _ in range(2): assert reading(tensor, 2).tolist() == [i, i]
    assert len(reading._made) <= 4
  view = host_view(tensor)
  if view is None: return
  view[:] = 7
  assert reading(tensor, 2).tolist() == [7, 7]

def test_readings_of_padded_results():
  """A buffer may have more elements than its tensor, as for a vocabulary that is no multiple of 16."""
  given, reading = empty((N,), dtypes.int32), Readings()
  fill(given, lambda memory: np.copyto(memory, range(N)))
  result = (given.reshape(1, N) + 1).contiguous()[:, :N - 3].realize()
  assert result.uop.base.buffer.size == N
  for _ in range(2): assert reading(result).tolist() == [[*range(1, N - 2)]]
