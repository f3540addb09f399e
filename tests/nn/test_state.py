"""A recurrent layer's state in captured steps: turns, replays, prompts, and memory that nobody cleared."""
import numpy as np
import pytest
from tinygrad import Tensor, UOp, function
from tinygrad_llm.device.buffers import fill, host_view
from tinygrad_llm.device.captured import captured
from tinygrad_llm.nn.cache.place import Slot
from tinygrad_llm.nn.cache.state import PROMPT, State, after

WIDTH = 48

class Layer:
  """s = s / 2 + x, and the last x; the output is x + s, where s is the state before."""
  def __init__(self):
    self.state = State([(WIDTH,), (2, WIDTH)])
    for x in (x for held in (*self.state.turns, self.state.prompt) for x in held):
      fill(x, lambda memory: memory.fill(np.nan))

  @function(precompile=True, allow_implicit=True)
  def __call__(self, x: Tensor, start: UOp, turn: int) -> Tensor:
    s, last = self.state.read(turn, Slot(start))
    stores = self.state.write(turn, [s / 2 + x, last[:, 1:].cat(x.unsqueeze(1), dim=1)], Slot(start))
    return after(x, stores) + s


def steps():
  """Two layers, and their captured steps for turns 0, 1 and PROMPT."""
  layers = [Layer(), Layer()]
  def run(turn: int, x: Tensor, start: UOp) -> Tensor:
    for layer in layers: x = layer(x, start, turn)
    return x.contiguous()
  made = [captured(run, turn) for turn in (0, 1, PROMPT)]
  def feed(x: np.ndarray, position: int, prompt: bool = False) -> np.ndarray:
    start = UOp.variable("start", 0, 99).bind(position)
    return made[PROMPT if prompt else position % 2](Tensor(x).contiguous().realize(), start).numpy()
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
      np.testing.assert_allclose(feed(x, position, prompt), wanted.feed(x), atol=1e-5)
    for i, layer in enumerate(layers):
      held = layer.state.prompt if prompt else layer.state.turns[1]  # of 5 tokens
      np.testing.assert_allclose(host_view(held[0]), wanted.s[i], atol=1e-5)
      np.testing.assert_allclose(host_view(held[1]), wanted.last[i:i + 1], atol=1e-5)

def test_a_step_may_run_twice_and_once_too_often():
  _, feed = steps()
  wanted = Reference()
  for position, x in enumerate(tokens(6)):
    feed(-x, position)  # a token that is not taken in the end
    y = wanted.feed(x)
    for _ in range(2): np.testing.assert_allclose(feed(x, position), y, atol=1e-5)

def test_its_bytes():
  assert State([(4, 8), (3,)], slots=2).nbytes == 3 * 2 * (32 + 3) * 4
