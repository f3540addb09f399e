"""engine/batch/engine.py: steps of an unchanged company look nothing up, and give the same answers."""
import random
from collections.abc import Iterator

import pytest
from tests.support.history_engine import Drawn, Greedy, HistoryEngine, Likeliest, answer

class Counted(HistoryEngine):
  """It counts steps, and how many of them were repeated ones."""
  def __init__(self) -> None:
    super().__init__()
    self.decodes = self.repeated = 0
    decode, repeat = self.steps.decode, self.steps.repeat
    def decoded(*args):
      self.decodes += 1
      return decode(*args)
    def repeats(rows):
      again = repeat(rows)
      def counted(*args):
        self.repeated += 1
        return again(*args)
      return counted
    self.steps.decode, self.steps.repeat = decoded, repeats

@pytest.fixture
def engine() -> Iterator[Counted]:
  made = Counted()
  yield made
  made.close()

@pytest.mark.parametrize("count", [1, 3, 8])
def test_an_unchanged_company_repeats_its_steps(engine, count):
  prompts = [[1, 2, 3, i] for i in range(count)]
  with engine.lock: streams = [engine.stream(ids, 200, sampler=Likeliest) for ids in prompts]
  assert [[*s] for s in streams] == [answer(ids, 200, 0, Likeliest) for ids in prompts]
  assert engine.repeated > 50  # all but those while they join, and those at the ends of blocks

@pytest.mark.parametrize("other", [Greedy, Drawn])
def test_a_company_with_another_sampler_does_not(engine, other):
  with engine.lock: streams = [engine.stream([5, i], 60, sampler=s) for i, s in enumerate((Likeliest, other))]
  assert [[*s] for s in streams] == [answer([5, 0], 60, 0, Likeliest), answer([5, 1], 60, 0, other)]
  assert engine.repeated <= 2  # the first one's, before the other joins

def test_companies_that_change(engine):
  """Answers join, end by a token or their length, and are cancelled, also at the ends of blocks."""
  rng, streams = random.Random(5), []
  for _ in range(60):
    ids, length = rng.choices(range(97), k=rng.choice([3, 60, 63, 64, 65])), rng.choice([1, 30, 64, 90])
    whole = answer(ids, length, 0, Likeliest)
    ends = [whole[rng.randrange(length)]] if rng.random() < 0.3 else []
    if ends: whole = whole[:whole.index(ends[0])]
    stream = engine.stream(ids, length, sampler=Likeliest, ends=ends)
    first = [next(stream)] if whole and rng.random() < 0.5 else []
    if rng.random() < 0.2: stream.cancel()
    else: streams.append((stream, first, whole))
    if rng.random() < 0.3:
      for stream, first, whole in streams: assert first + [*stream] == whole
      streams.clear()
  assert engine.repeated
