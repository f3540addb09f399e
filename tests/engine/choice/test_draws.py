"""engine/choice/draws.py: a position has one random number, whoever asks for it, and however often."""
import random

from tinygrad_llm.engine.choice.draws import Draws
from tinygrad_llm.engine.sampling import Sampler


def test_numbers_in_order():
  sampler = Sampler(seed=3)
  draws, first = Draws(Sampler(seed=3)), 17
  assert [draws.random32(first + i) for i in range(600)] == [sampler.random32() for _ in range(600)]

def test_dropped_positions_get_their_number_again():
  """Launches that go up to two positions back, and choices of the host in between."""
  for seed in range(30):
    rng, wanted = random.Random(seed), Sampler(seed=seed)
    draws, at, numbers = Draws(sampler := Sampler(seed=seed)), 5, dict[int, float]()
    for _ in range(100):
      if at not in numbers: numbers[at] = wanted.random()
      if rng.random() < 0.3:  # the host's choice
        found = draws.known(at)
        assert (sampler.random() if found is None else found) == numbers[at]
        at += 1
        continue
      assert draws.random32(at) == int(numbers[at] * 2**32) and draws.known(at) == numbers[at]
      at += 1
      if rng.random() < 0.2:
        back = rng.randint(1, 2)
        if all(draws.known(at - i) is not None for i in range(1, back + 1)): at -= back
