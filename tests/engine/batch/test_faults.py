"""Faults of the engine of streams: whatever dies or sticks, every reader gets an end, and the next answer is right."""
import asyncio
import gc
import random
import threading
import time
from collections.abc import Callable

import pytest
from tests.support.extended import some
from tests.support.history_engine import Greedy, HistoryEngine, Likeliest, answer
from tests.support.serving import BLOCK

from tinygrad_llm.engine.batch import health
from tinygrad_llm.engine.batch.engine import Engine
from tinygrad_llm.engine.batch.stream import AsyncStream
from tinygrad_llm.errors import InputError

PROMPT = [5, 17, 30, 44]
ERRORS = (RuntimeError("x"), MemoryError(), SystemExit(2), KeyboardInterrupt())
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

@pytest.fixture
def engine():
  """An engine that ends at the end of its test."""
  made = HistoryEngine()
  yield made
  made.steps.before = lambda _: None
  made.close()

class Gate:
  """Holds the steps of an engine, as a device that hangs does, from the first that `when` holds for until it opens."""
  def __init__(self, engine: HistoryEngine, when: Callable[[], bool] = lambda: True):
    self.reached, self._open, self._when = threading.Event(), threading.Event(), when
    engine.steps.before = self._wait

  def _wait(self, _: str) -> None:
    if not self.reached.is_set() and not self._when(): return
    self.reached.set()
    assert self._open.wait(20)

  def __enter__(self): return self
  def __exit__(self, *_): self._open.set()

def held(engine: HistoryEngine, tokens: int = 1) -> Gate:
  """A Gate before the step in which all answers have `tokens` tokens: none ends before its test has looked."""
  def when() -> bool: return all(r.timing.tokens >= tokens for r in [*engine._inbox.requests.values()])
  return Gate(engine, when)

def raising(error: BaseException):
  def before(_: str) -> None: raise error
  return before

def idle(engine: HistoryEngine, seconds: float = 2.0) -> None:
  """Waits until the engine has no requests; then it holds no blocks."""
  gc.collect()
  end = time.perf_counter() + seconds
  while engine.is_busy() and time.perf_counter() < end: time.sleep(0.001)
  assert not engine.is_busy() and not engine.pool.counts().referenced
  assert engine.health().state == "idle"

def in_thread(do) -> threading.Thread:
  thread = threading.Thread(target=do, daemon=True)
  thread.start()
  return thread

# *** an engine that dies

@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_failed_step_is_an_error_each_time(engine, error):
  """Each reader has an error of its own, as often as it asks; tokens that came before can be read."""
  with held(engine):
    streams = engine.streams(PROMPT, 500, 3)
    first = [next(stream) for stream in streams]
    engine.steps.before = raising(error)
  for i, (stream, token) in enumerate(zip(streams, first)):
    found = [token]
    with pytest.raises(InputError, match=type(error).__name__) as one: found += iter(lambda s=stream: next(s), None)
    with pytest.raises(InputError) as two: next(stream)
    assert one.value is not two.value and stream.finish == stream.timing.finish == "error"
    assert found == answer(PROMPT, len(found), i)
  engine.steps.before = lambda _: None
  assert [*engine.stream(PROMPT, 9)] == answer(PROMPT, 9) and engine.counters["errors"] == 3
  idle(engine)

def test_pool_that_cannot_be_made_again(engine, monkeypatch):
  """After a failed step there is no memory for a pool either: each new request has an error, until there is."""
  begin = Engine._begin
  engine.steps.before = raising(RuntimeError("x"))
  monkeypatch.setattr(Engine, "_begin", lambda _: raising(MemoryError())(""))
  for _ in range(3):
    with pytest.raises(InputError): next(engine.stream(PROMPT, 5))
  engine.steps.before = lambda _: None
  monkeypatch.setattr(Engine, "_begin", begin)
  assert [*engine.stream(PROMPT, 5)] == answer(PROMPT, 5)

@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("name", ["step", "_failed"])
def test_dead_thread_leaves_nobody(engine, monkeypatch, error, name):
  """
  The thread ends by an error: all answers have ended without a look from their readers, also one that came in the last
  moment. The next request starts a new thread.
  """
  with Gate(engine) as gate:
    streams = [engine.stream(PROMPT, 500)]
    assert gate.reached.wait(5)
    streams += engine.streams(PROMPT, 500, 3)  # in the inbox
    thread = engine._inbox.thread
    monkeypatch.setattr(Engine, name, lambda *_: raising(error)(""))
    if name == "_failed": monkeypatch.setattr(engine.steps, "_feed", lambda *_: raising(error)(""))
  thread.join(5)
  assert not thread.is_alive() and [s.finish for s in streams] == ["error"] * 4 and engine.counters["errors"] == 4
  for stream in streams:
    with pytest.raises(InputError, match="thread"): list(stream)
  assert engine.health().state == "idle"
  monkeypatch.undo()
  engine.steps.before = lambda _: None
  assert [*engine.stream(PROMPT, 9)] == answer(PROMPT, 9)
  idle(engine)

def test_lost_request_is_an_error(engine, monkeypatch):
  """A thread that vanished without its last lines: a waiting reader finds out, in a thread and in asyncio."""
  monkeypatch.setattr("tinygrad_llm.engine.batch.stream.PATIENCE", 0.05)
  monkeypatch.setattr("tinygrad_llm.engine.batch.engine._run", lambda *_: None)
  with pytest.raises(InputError, match="thread"): next(engine.stream(PROMPT, 5))
  async def main(): return [token async for token in engine.astream(PROMPT, 5)]
  with pytest.raises(InputError, match="thread"): asyncio.run(main())
  left = engine.stream(PROMPT, 5)
  monkeypatch.undo()
  assert [*engine.stream(PROMPT, 5)] == answer(PROMPT, 5) and left.finish == "error"

def test_a_new_pool_waits_for_the_lock(engine):
  """The holder of the lock may have blocks of the pool, which is not replaced meanwhile."""
  list(engine.stream(PROMPT, 3))
  with engine.lock:
    engine._is_whole, pool = False, engine.pool  # as after a failed step
    stream = engine.stream(PROMPT, 9)
    time.sleep(0.1)
    assert engine.pool is pool
  assert [*stream] == answer(PROMPT, 9) and engine.pool is not pool

def test_copies_before_a_failed_one_are_not_done_again(engine):
  """A block that was copied may have been zeroed since, for another sequence."""
  engine.steps.cells[1:4], copy = [[1] * BLOCK, [2] * BLOCK, [3] * BLOCK], engine.steps.copy
  engine.pool.copies = [(1, 2), (None, 1), (3, 4), (4, 5)]
  engine.steps.copy = lambda source, *to: raising(MemoryError())("") if source == 3 else copy(source, *to)
  with pytest.raises(MemoryError): engine._copy()
  engine.steps.copy = copy
  engine._copy()
  assert [engine.steps.cells[i][0] for i in range(2, 6)] == [1, 3, 3, 3] and not engine.pool.copies

# *** an engine that sticks

def test_readers_leave_a_stuck_step(engine):
  """cancel(), close() of the stream and of the engine end a reader that waits, though the step never returns."""
  ends = {}
  def read(i: int) -> None: ends[i] = [*streams[i]], streams[i].finish
  with Gate(engine) as gate:
    streams = [engine.stream(PROMPT, 50) for _ in range(3)]
    assert gate.reached.wait(5)
    threads = [in_thread(lambda i=i: read(i)) for i in range(3)]
    async def main() -> list[int]:
      stream = engine.astream(PROMPT, 50)
      asyncio.get_running_loop().call_later(0.05, stream.cancel)
      return [token async for token in stream]
    begun = time.perf_counter()
    assert asyncio.run(main()) in ([], answer(PROMPT, 1))
    streams[0].cancel()
    streams[1].close()
    for thread in threads[:2]: thread.join(0.9)  # less than a reader's patience
    closing = in_thread(engine.close)
    threads[2].join(0.9)
    assert len(ends) == 3 and {finish for _, finish in ends.values()} == {"cancelled"}
    assert time.perf_counter() - begun < 0.9 and closing.is_alive()
    with pytest.raises(InputError, match="closed"): engine.stream(PROMPT, 5)
  closing.join(5)
  assert not closing.is_alive()

def test_health(engine, monkeypatch):
  """idle, running, stuck, and running again as the step returns; dead once it is closed."""
  assert engine.health()[::2] == ("idle", {"requests": 0, "errors": 0, "steps": 0, "open": 0})
  list(engine.stream(PROMPT, 20))
  idle(engine)
  monkeypatch.setattr(health, "SHORT", 0.05)
  monkeypatch.setattr(health, "TIMES", 0)
  with Gate(engine) as gate:
    stream = engine.stream(PROMPT, 3)
    assert gate.reached.wait(5) and engine.health().state == "running"
    time.sleep(0.1)
    state, seconds, counts = engine.health()
    assert state == "stuck" and seconds > 0.05 and counts["open"] == 1 and counts["requests"] == 2
    stream.cancel()
    assert engine.health().state == "stuck"  # nobody waits any more, but no other request would run
  idle(engine)
  engine.close()
  assert engine.health().state == "dead"

def test_limits_learn_from_times():
  """The limit is 60 s or 50 times what is usual for so many tokens; ten minutes for a step that was never done."""
  now, progress = [0.0], health.Progress()
  def step(kind: str, tokens: int, seconds: float) -> float:
    progress.begins(kind, tokens)
    limit = progress.limit(kind, tokens)
    now[0] += seconds
    progress.ended()
    return limit
  with pytest.MonkeyPatch.context() as m:
    m.setattr(health.time, "perf_counter", lambda: now[0])
    progress.other()
    assert step("piece", 100, 300) == 600  # it compiles
    for _ in range(5): limit = step("piece", 100, 4)
    assert limit == pytest.approx(200) and step("piece", 256, 10) == pytest.approx(512)
    assert step(1, 1, 0.02) == 600 and step(1, 1, 0.02) == 60
    progress.begins(1)
    now[0] += 61
    assert progress.look() == (61, True)
    progress.ended()
    now[0] += 61
    assert progress.look() == (61, False)  # another user of the model may hold it

# *** numbers that are not finite

@pytest.mark.parametrize("at", ["prompt", "answer"])
def test_damaged_numbers_are_reused_by_nobody(engine, at):
  """A step once writes numbers that are not finite: its request fails, and the same request is right afterwards."""
  prompt = [*range(90)] * 3
  if at == "prompt":
    engine.steps.damage = 1  # of two pieces
    stream = engine.stream(prompt, 9)
  else:
    with held(engine):
      stream = engine.stream(prompt[:127], 500)
      next(stream)
      engine.steps.damage = 1
  with pytest.raises(InputError, match="nan"): list(stream)
  for _ in range(2): assert [*engine.stream(prompt, 70)] == answer(prompt, 70)
  assert [*engine.stream(prompt[:127], 200)] == answer(prompt[:127], 200)

def test_damaged_blocks_are_zeroed(engine, monkeypatch):
  """Before another sequence has them: what a failed request held alone, and after a failed step all that was held."""
  cleared = list[int]()
  monkeypatch.setattr(engine.steps, "clear", lambda block, window: cleared.append(block))
  shared, rest = [*range(90), *range(38)], [3] * 70
  list(engine.stream(shared, 1))
  with held(engine):
    with engine.lock: keeper, stream = (engine.stream([*shared, *more], 800) for more in ([1], rest))
    assert next(keeper) == answer([*shared, 1], 1)[0] and next(stream) == answer([*shared, *rest], 1)[0]
    blocks = [*stream._request.sequence.table]
    assert len(blocks) > 3 and blocks[:2] == keeper._request.sequence.table[:2]
    stream._request.sampler.__class__ = type("Fails", (), {"greedy": False, "__call__": lambda *_, **__: 1 / 0})
    later = Gate(engine, lambda: keeper.timing.tokens > 300)
  with later:
    with pytest.raises(InputError, match="ZeroDivisionError"): list(stream)
    for _ in range(300): next(keeper)
    assert {*blocks[2:]} <= {*cleared} and not {*blocks[:2]} & {*cleared}
    cleared.clear()
    blocks = [*keeper._request.sequence.table]
    engine.steps.before = raising(RuntimeError("x"))
  with pytest.raises(InputError): list(keeper)
  engine.steps.before = lambda _: None
  list(engine.stream(PROMPT, 5))
  assert {0, *blocks} <= {*cleared}

# *** all at once

@pytest.mark.parametrize("seed", some(range(60), 0, 1, 2, 3, 5, 25))
def test_random_attacks(seed):
  """
  Six threads ask, fork, cancel, drop and leave at random over a small pool, while steps raise and damage numbers.

  Tokens are right or missing; answers without a fault are whole; at the end no block is held.
  """
  rng, faults, found = random.Random(seed), [0], []
  engine = HistoryEngine(rng.choice([6, 12, 40]), rng.choice([200, 320, 1024]))
  most, raises, damages = min(engine.steps.blocks * 64 - 64, engine._context), *rng.choices([0, 0, 0.01], k=2)
  chance = random.Random(seed)
  def before(_: str) -> None:
    if chance.random() < raises:
      faults[0] += 1
      raise chance.choice(ERRORS)
    if chance.random() < damages: faults[0], engine.steps.damage = faults[0] + 1, 1
    if chance.random() < 0.01: time.sleep(0.002)
  engine.steps.before = before
  def ask(k: int) -> None:
    try:
      r = random.Random(f"{seed} {k}")
      for _ in range(20): one(r)
      found.append(None)
    except BaseException as e: found.append(e)
  def one(r: random.Random) -> None:
    prompt = random.Random(r.randrange(3)).choices(range(97), k=r.choice([0, 64, 100]))
    prompt = (prompt + r.choices(range(97), k=r.choice([1, 2, 63, 64, 65, r.randint(1, 120)])))[:most - 2]
    length = r.choice([1, 2, 20, 70])
    sampler = r.choice([Greedy, Likeliest])
    streams = engine.streams(prompt, length, r.choice([1, 1, 1, 2, 5]), sampler=sampler)
    if r.random() < 0.2: streams[0].cancel()
    for i, stream in enumerate(streams):
      tokens, leaves = [], r.randint(1, length) if r.random() < 0.3 else None
      try:
        for token in stream:
          tokens.append(token)
          if len(tokens) == leaves: stream.cancel()
      except InputError: assert stream.finish == "error" and faults[0]
      assert tokens == answer(prompt, length, i, sampler)[:len(tokens)]
      assert stream.finish in ("length", "cancelled", "error", "context")
      assert stream.finish != "length" or len(tokens) == length
      assert stream.finish != "context" or len(prompt) + length > most - 1
      assert 0 <= stream.timing.cached_tokens <= len(prompt)
      if r.random() < 0.1: return  # the rest are dropped
  threads = [in_thread(lambda k=k: ask(k)) for k in range(6)]
  for thread in threads: thread.join(60)
  assert found == [None] * 6
  idle(engine)
  engine.close()

def test_dropped_inside_its_own_end(engine):
  """A garbage collection may drop a stream in any thread, also in the one that ends it."""
  stream = engine.stream(PROMPT, 10**6)
  request, outbox = stream._request, stream._request.outbox
  end = outbox.end
  def ends(error=None):
    outbox.end = end
    AsyncStream.__del__(stream)
    end(error)
  outbox.end = ends
  thread = in_thread(lambda: request.end("length"))
  thread.join(2)
  assert not thread.is_alive() and stream.finish in ("cancelled", "length")
