"""An exception at any place of the engine's thread: its readers get an end, and the next request an answer."""
import gc
import sys
import threading
import time

import pytest
from tests.support.extended import some
from tests.support.history_engine import HistoryEngine, answer

from tinygrad_llm.engine.batch import engine as engine_module
from tinygrad_llm.engine.batch import stream as stream_module
from tinygrad_llm.errors import InputError

PROMPT, TOKENS = [1, 2, 3] * 30, 6
STEP = 263  # distance of the places; the extended run takes all of them
pytestmark = [pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
              pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]

class Interrupt:
  """
  Raises once, at the n-th call of a Python function or return of a C function in the thread that runs it.

  Python looks for exceptions of other threads and for signals there, and most calls take memory.
  """
  def __init__(self, at: int, error: type[BaseException]):
    self.at, self.error, self.count = at, error, 0

  def __call__(self, frame, event: str, _) -> None:
    self.count += event in ("call", "c_return")
    if self.count < self.at: return
    sys.setprofile(None)
    raise self.error("interrupt")

def read(stream) -> tuple[str, list[int]]:
  found = list[int]()
  try: found += stream
  except InputError: return "error", found
  return "whole", found

def in_time(do, seconds: float = 20.0):
  """do()'s result, from a thread that must end."""
  found = []
  thread = threading.Thread(target=lambda: found.append(do()), daemon=True)
  thread.start()
  thread.join(seconds)
  assert found, "it waits for ever"
  return found[0]

def interrupted(monkeypatch, interrupt: Interrupt) -> bool:
  """One life of an engine; whether the exception came."""
  run = engine_module._run
  def profiled(*args) -> None:
    sys.setprofile(interrupt)
    try: run(*args)
    finally: sys.setprofile(None)
  monkeypatch.setattr(engine_module, "_run", profiled)
  engine = HistoryEngine(12, 256)
  streams = engine.streams(PROMPT, TOKENS, 2)
  monkeypatch.setattr(engine_module, "_run", run)
  for i, stream in enumerate(streams):
    end, tokens = in_time(lambda s=stream: read(s))
    assert tokens == answer(PROMPT, TOKENS, i)[:len(tokens)]
    assert end == "error" or len(tokens) == TOKENS
  del streams, stream
  for _ in range(3):  # the exception may come only now
    if (found := in_time(lambda: read(engine.stream([4, 5, 6], 5))))[0] == "whole": break
  assert found == ("whole", answer([4, 5, 6], 5))
  gc.collect()
  end = time.perf_counter() + 20
  while engine.is_busy() or engine.pool.counts().referenced:
    assert time.perf_counter() < end, engine.pool.counts()
    time.sleep(0.001)
  in_time(lambda: (engine.close(),))
  return interrupt.count >= interrupt.at

@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("first", some(range(STEP), 59))
def test_interrupted_anywhere(monkeypatch, first, error):
  monkeypatch.setattr(stream_module, "PATIENCE", 0.05)
  at = first or STEP
  while interrupted(monkeypatch, Interrupt(at, error)): at += STEP
  assert at > 5 * STEP
