"""A recurrent layer's state in captured steps: turns, replays, prompts, and memory that nobody cleared."""
import numpy as np
import pytest
from tinygrad import Tensor, UOp, dtypes, function
from tinygrad_llm.device.buffers import empty, fill, host_view
from tinygrad_llm.device.captured import captured
from tinygrad_llm.nn.cache.place import Piece, Place, Rows
from tinygrad_llm.nn.cache.state import PROMPT, State, after

WIDTH, SLOTS = 48, 4

class Layer:
  """s = s / 2 + x, and the last x, of each row; the output is x + s, where s is the state before."""
  def __init__(self):
    self.state = State([(WIDTH,), (2, WIDTH)])
    self.pool = self.state.make_pool(SLOTS)
    for x in (x for held in (*self.pool.turns, self.pool.prompt) for x in held):
      fill(x, lambda memory: memory.fill(np.nan))

  @function(precompile=True, allow_implicit=True)
  def __call__(self, x: Tensor, place: Place, turn: int) -> Tensor:
    s, last = self.state.read(turn, place)
    stores = self.state.write(turn, [s / 2 + x, last[:, 1:].cat(x.unsqueeze(1), dim=1)], place)
    return after(x, stores) + s


def steps(rows: int = 1):
  """Two layers, and their captured steps of so many rows for turns 0 and 1, and of a prompt."""
  layers, end = [Layer(), Layer()], UOp.variable("end", 1, 100)
  positions, table = (empty(shape, dtypes.int32) for shape in ((rows,), (rows, 2)))
  def run(turn: int, positions: Tensor, table: Tensor, x: Tensor, start: UOp, end: UOp) -> Tensor:
    place = Piece(start, table, (start,), end) if turn == PROMPT else Rows(positions, table, (), end)
    for layer in layers: x = layer(x, place, turn)
    return x.contiguous()
  made = [captured(run, turn, positions, table) for turn in (0, 1, PROMPT)]
  def feed(x: np.ndarray, at: list[int] | int, turn: int | None = None) -> np.ndarray:
    """x: (rows, WIDTH), at these positions. The turn is the first position's, by default."""
    at = np.broadcast_to(at, rows)
    fill(positions, lambda memory: np.copyto(memory, at))
    bound = UOp.variable("start", 0, 99).bind(int(at[0])), end.bind(int(at.max()) + 1)
    return made[at[0] % 2 if turn is None else turn](Tensor(x).contiguous().realize(), *bound).numpy()
  return layers, feed

class Reference:
  def __init__(self): self.s, self.last = np.zeros((2, 1, WIDTH)), np.zeros((2, 2, WIDTH))
  def feed(self, x):
    for i in range(2):
      x, self.s[i], self.last[i] = x + self.s[i], self.s[i] / 2 + x, np.concatenate((self.last[i, 1:], x))
    return x

def tokens(n): return np.random.default_rng(n).standard_normal((n, 1, WIDTH)).astype(np.float32)

@pytest.mark.parametrize("prompt", [False, True])
def test_steps_in_order(prompt):
  layers, feed = steps()
  for _ in range(2):  # a second text begins anew
    wanted = Reference()
    for position, x in enumerate(tokens(5)):
      np.testing.assert_allclose(feed(x, position, PROMPT if prompt else None), wanted.feed(x), atol=1e-5)
    for i, layer in enumerate(layers):
      held = layer.pool.prompt if prompt else layer.pool.turns[1]  # of 5 tokens
      np.testing.assert_allclose(host_view(held[0])[:1], wanted.s[i:i + 1, 0], atol=1e-5)
      np.testing.assert_allclose(host_view(held[1])[:1], wanted.last[i:i + 1], atol=1e-5)

def test_rows_have_states_of_their_own():
  """Rows at unequal positions, of which some begin later; slots of no row stay as they are."""
  layers, feed = steps(3)
  wanted, rng = [Reference() for _ in range(3)], np.random.default_rng(7)
  begins = rng.permutation([0, 2, 5])
  for at in range(9):
    x = rng.standard_normal((3, WIDTH)).astype(np.float32)
    for row in np.flatnonzero(begins == at): wanted[row] = Reference()
    y = feed(x, [int(max(0, at - begin)) for begin in begins], at % 2)
    for row, of in enumerate(wanted):
      if at >= begins[row]: np.testing.assert_allclose(y[row:row + 1], of.feed(x[row:row + 1]), atol=1e-5)
  for layer in layers:
    for x in (x for held in layer.pool.turns for x in held): assert np.isnan(host_view(x)[3:]).all()

def test_a_step_may_run_twice_and_once_too_often():
  _, feed = steps()
  wanted = Reference()
  for position, x in enumerate(tokens(6)):
    feed(-x, position)  # a token that is not taken in the end
    y = wanted.feed(x)
    for _ in range(2): np.testing.assert_allclose(feed(x, position), y, atol=1e-5)

def test_its_bytes():
  assert State([(4, 8), (3,)]).make_pool(2).nbytes == (2 * 2 + 1) * (32 + 3) * 4  # two turns, and a prompt's
