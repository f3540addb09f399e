"""Steps of rows that are launched ahead: answers are those without, and blocks belong to one sequence at a time."""
import random
import time
from dataclasses import dataclass, field

import numpy as np
import pytest
from tests.support.extended import extended
from tests.support.history_engine import VOCAB, Drawn, Greedy, LaterEngine, Likeliest, answer, moved

from tinygrad_llm.engine.batch import health
from tinygrad_llm.engine.batch.request import Request
from tinygrad_llm.engine.batch.sequence import Sequence
from tinygrad_llm.engine.batch.stream import TokenStream
from tinygrad_llm.engine.choice.ending import Ending
from tinygrad_llm.errors import InputError

@pytest.fixture
def engine():
  made = LaterEngine()
  yield made
  run(made)
  done(made)

def run(engine: LaterEngine, most: int = 10**5) -> None:
  """Steps until there is nothing to do."""
  while engine.step():
    assert (most := most - 1)

def done(engine: LaterEngine) -> None:
  """Nobody holds a block, and what is kept is right."""
  assert not engine.pool.counts().referenced and not engine.is_busy() and not engine.steps.written
  engine.check_tree()

def prompt(length: int, seed: int = 0) -> list[int]: return random.Random(seed).choices(range(VOCAB), k=length)

def tokens(stream: TokenStream) -> list[int]: return stream.tokens[stream._request.sequence.prompt:]

@pytest.mark.parametrize("sampler", [Likeliest, Drawn])
def test_next_step_is_launched_before_a_read(engine, sampler):
  """A token is passed on as soon as it is read, beside a launched step; none follows the last that is asked for."""
  stream = engine.stream(prompt(10), 6, sampler=sampler)
  engine.step()  # the prompt, and the first token
  engine.steps.logits = None  # nobody reads them
  engine.step()
  assert engine.steps.events == ["launch"] and len(tokens(stream)) == 1
  for n in range(2, 6):
    engine.step()
    assert engine.steps.events == ["launch"] + ["launch", "read"] * (n - 1) and len(tokens(stream)) == n
    if n == 5: break
  engine.step()
  assert engine.steps.events[-2:] == ["read", "read"] and len(tokens(stream)) == 6
  run(engine)
  assert [*stream] == answer(prompt(10), 6, 0, sampler) and engine.steps.events.count("launch") == 5

@pytest.mark.parametrize("count", [2, 5, 8, 9, 19])
def test_rows_are_launched_ahead(engine, count):
  """Ends of rows wait for nobody: each read but the last few has a step launched behind it. More than 8 take turns."""
  samplers = [Drawn if i % 3 == 1 else Likeliest for i in range(count)]
  streams = [engine.stream(prompt(10, i), 30 + i, sampler=sampler) for i, sampler in enumerate(samplers)]
  while any(not tokens(stream) for stream in streams): engine.step()
  engine.steps.events.clear()
  run(engine)
  wanted = [answer(prompt(10, i), 30 + i, 0, sampler) for i, sampler in enumerate(samplers)]
  assert [[*stream] for stream in streams] == wanted
  events = engine.steps.events
  alone = sum(a == "read" for a, b in zip(events, events[1:]) if b == "read")
  assert alone <= 1 + (count > 8) * 8, events  # in turns of which one step ends at once, the next is not sure

@pytest.mark.parametrize("after", [1, 2, 3, 53, 54, 55, 56, 118])
def test_stop_and_cancel(engine, after):
  """
  A step too far is dropped, and its reader does not wait for it. Next turns begin with what was kept, around the end
  of a block, too.
  """
  whole = answer(prompt(10), 200)
  n = next(i for i in range(after, 200) if whole[i] not in whole[:i] or i == 199)
  stream = engine.stream(prompt(10), 300, sampler=Likeliest, ends=[whole[n]])
  other = engine.stream(prompt(10, 1), 150, sampler=Likeliest)
  while not stream.finish: engine.step()
  assert tokens(stream) == whole[:n] and stream.finish == "stop" and (engine.steps.written or after < 3)
  left = engine.stream(prompt(10), 300, sampler=Likeliest)
  while len(tokens(left)) < after: engine.step()
  left.cancel()
  run(engine)
  assert [*left] == whole[:after] and [*other] == answer(prompt(10, 1), 150)
  engine.check_tree()
  turn = [*prompt(10), *whole[:n], 3, 4]
  again = engine.stream(turn, 70, sampler=Likeliest)
  run(engine)
  assert [*again] == answer(turn, 70)

def test_choices_of_the_host_wait(engine, monkeypatch):
  """One row whose choice the host makes: each step is launched after the tokens before are known."""
  told = engine.scheduler.done  # by a slow machine's clock, the first answer may end before other prompts are read
  monkeypatch.setattr(engine.scheduler, "done", lambda action, _: told(action, 1e-3))
  samplers = [Greedy, Likeliest, Drawn]
  streams = [engine.stream(prompt(9, i), 20 - i, sampler=sampler) for i, sampler in enumerate(samplers)]
  run(engine)
  wanted = [answer(prompt(9, i), 20 - i, 0, sampler) for i, sampler in enumerate(samplers)]
  assert [[*stream] for stream in streams] == wanted
  assert engine.steps.events == ["launch", "read"] * (len(engine.steps.events) // 2)

def test_numbers_that_are_not_finite(engine):
  """A damaged step is an error of its rows alone; what they wrote is shared with nobody."""
  stream, other = (engine.stream(prompt(100, i), 200, sampler=Likeliest) for i in range(2))
  while len(tokens(stream)) < 40: engine.step()
  engine.steps.damage = 1
  run(engine)
  for found, i in ((stream, 0), (other, 1)):
    taken = []
    with pytest.raises(InputError, match="nan"): taken += iter(lambda s=found: next(s), None)
    assert tokens(found) == answer(prompt(100, i), len(tokens(found))) and 30 < len(tokens(found)) < 50
  engine.check_tree()
  again = engine.stream(prompt(100), 200, sampler=Likeliest)
  run(engine)
  assert [*again] == answer(prompt(100), 200)

@pytest.mark.parametrize("where", ["decode", "read"])
def test_errors_end_all(engine, where):
  """A launch, or a wait, that raises: every answer ends with the error, and the next ones are right."""
  streams = [engine.stream(prompt(60, i), 200, sampler=Likeliest) for i in range(3)]
  while any(len(tokens(stream)) < 20 for stream in streams): engine.step()
  def before(name: str) -> None:
    if name == where: raise RuntimeError("lost")
  engine.steps.before = before
  engine.step()
  engine.steps.before = lambda _: None
  assert [stream.finish for stream in streams] == ["error"] * 3 and not engine.is_busy()
  again = [engine.stream(prompt(60, i), 30, sampler=Likeliest) for i in range(3)]
  run(engine)
  assert [[*stream] for stream in again] == [answer(prompt(60, i), 30) for i in range(3)]

def test_health_of_steps_ahead(engine, monkeypatch):
  """A wait that never ends is "stuck", beside a launched step and without one; each step counts once."""
  stream, states = engine.stream(prompt(10), 30, sampler=Likeliest), []
  while len(tokens(stream)) < 20: engine.step()
  monkeypatch.setattr(health, "SHORT", 0.005)
  monkeypatch.setattr(health, "TIMES", 0)
  def before(name: str) -> None:
    states.append(engine.health().state)
    if name != "read": return
    time.sleep(0.01)
    states.append(engine.health().state)
  engine.steps.before = before
  run(engine)
  assert states == ["running", "running", "stuck"] * 9 + ["running", "stuck"]
  assert engine.health().state == "idle" and engine.health().counts["steps"] == 1 + 29

def test_damage_beyond_an_end(engine):
  """The step behind an answer's last token writes numbers that are not finite: nobody gets that position."""
  stream = engine.stream(prompt(10), 100, sampler=Likeliest)
  stream._request.sequence.max_tokens = None  # its length is known to the request alone
  while len(tokens(stream)) < 99: engine.step()
  engine.steps.damage = 1
  run(engine)
  engine.check_tree()
  turn = [*prompt(10), *stream, 4]
  again = engine.stream(turn, 30, sampler=Likeliest)
  run(engine)
  assert stream.finish == "length" and [*again] == answer(turn, 30)

def test_choice_that_was_dropped():
  """A position that is launched again, or whose choice the host makes then, gets the same random number."""
  request = Request(Sequence([5, 6, 7], 3), Drawn(4), Ending((), (), 0, 9), None)
  first, again = request.choice(2), request.choice(2)
  assert first == again is not None and request.choice(3).random != first.random
  logits = np.zeros(VOCAB, np.float32)
  request.chose(None, lambda: logits)
  assert request.sequence.tokens[3:] == [moved(0, 4, [5, 6, 7], first.random / 2**32)]
  for other in (Likeliest(), Greedy()): assert Request(Sequence([5], 1), other, request.ending, None).choice(0) is None

# *** random mixes

@dataclass
class Asked:
  """A stream, its whole answer, and after how many tokens its reader leaves."""
  stream: TokenStream
  whole: list[int]
  leaves: int | None
  found: list[int] = field(default_factory=list)

def check_mix(seed: int) -> None:
  """
  Joins, forks, cancels, stops, choices of the host and of the device, and small pools at random.

  All tokens are right or missing, and each is passed on in its step. Answers without a reason to end are whole. Nothing
  wrong is kept.
  """
  rng = random.Random(seed)
  engine = LaterEngine(rng.choice([4, 6, 12, 40]), context := rng.choice([130, 200, 1024]))
  most, asked = min((engine.steps.blocks - 1) * 64, context), list[Asked]()
  faults, samplers = rng.choice([0, 0, 0, 0.005]), rng.choices([Likeliest, Drawn, Greedy], [2, 2, 1], k=4)
  def ask() -> None:
    ids = (prompt(rng.choice([0, 64, 100]), rng.randrange(3)) + rng.choices(range(VOCAB), k=rng.choice(
      [1, 1, 2, 63, 64, 65, rng.randint(1, 120)])))[:most - 2]
    length, sampler = rng.choice([1, 2, 20, 70, 130]), rng.choice(samplers)
    ends, is_told = rng.sample(range(VOCAB), rng.choice([0, 0, 2])), rng.random() < 0.5
    for i, stream in enumerate(engine.streams(ids, length, rng.choice([1, 1, 1, 2, 5]), sampler=sampler, ends=ends)):
      if not is_told: stream._request.sequence.max_tokens = None  # its length is known to the request alone
      whole = answer(ids, length, i, sampler)
      cut = next((k for k, token in enumerate(whole) if token in ends), length)
      asked.append(Asked(stream, whole[:cut], rng.randint(0, length) if rng.random() < 0.3 else None))
  def before(name: str) -> None:  # another thread's cancel may come while the engine waits
    if name == "read" and asked and rng.random() < 0.01: leave(rng.choice(asked))
  def leave(a: Asked) -> None:
    a.leaves = 0
    a.stream.cancel()
  engine.steps.before = before
  left = rng.randint(3, 14)
  for _ in range(10**5):
    if not left and not engine.is_busy(): break
    if left and rng.random() < rng.choice([0.02, 0.5]): left, _ = left - 1, ask()
    if rng.random() < faults: engine.steps.damage = 1
    if not engine.step(): continue
    for a in asked:
      while (token := a.stream._take(0) if not a.stream.finish or a.found != tokens(a.stream) else None) is not None:
        a.found.append(token)
      assert a.found == tokens(a.stream)
      if a.leaves is not None and len(a.found) >= a.leaves: leave(a)
  for a in asked:
    finish, ids = a.stream.finish, a.stream._request.sequence.prompt
    assert a.found == a.whole[:len(a.found)], f"mix {seed}"
    assert finish in ("length", "stop", "cancelled", "context", "error") and (finish != "error" or faults)
    if finish in ("length", "stop"): assert a.found == a.whole
    if finish == "context": assert ids + len(a.found) >= most
    if finish == "cancelled": assert a.leaves is not None
  done(engine)

def test_random_mixes():
  for seed in range(40): check_mix(seed)

@extended
def test_many_random_mixes():
  for seed in range(40, 2000): check_mix(seed)
