"""Whether an engine makes progress: when its last step began and ended, and how long such a step may take."""
from __future__ import annotations
import time
from collections import deque
from collections.abc import Hashable
from typing import NamedTuple

LAST = 9       # measured times that are kept of a kind of step; their median is what is usual
SHORT = 60.0   # seconds that any step may take
TIMES = 50     # times the usual seconds, if these are more
FIRST = 600.0  # seconds that the first step of a kind may take, which compiles, and other users of the model

class Health(NamedTuple):
  """
  An engine's state now.

  - state: "idle": it has no requests; "running"; "stuck": a step takes longer than any should; "dead": its thread has
    ended with requests left, or the model is closed
  - seconds: since the last progress: a step's begin or end, or a request that woke the engine
  - counts: "requests" and "errors" so far, finished "steps", "open" requests now
  """
  state: str
  seconds: float
  counts: dict[str, int]

class Progress:
  """
  The step under way, and the times of those before. One thread writes; others read without a lock.

  A step of a kind that was done before may take 60 s, or 50 times what is usual for so many tokens, if that is more. A
  first step compiles, and other users of the model may hold it between two steps: both may take 600 s.
  """
  def __init__(self) -> None:
    self.steps = 0  # finished
    self._usual = dict[Hashable, deque[float]]()  # seconds a token
    # when something happened last, and the step that began then: its kind (None: something else happened), its tokens
    self._last = time.perf_counter(), None, 1  # type: tuple[float, Hashable, int]

  def begins(self, kind: Hashable, tokens: int = 1) -> None:
    """A step of a kind begins. tokens: its time is expected to grow with them."""
    self._last = time.perf_counter(), kind, tokens

  def ended(self) -> None:
    """The step is over."""
    (begun, kind, tokens), now = self._last, time.perf_counter()
    self._count(kind, (now - begun) / tokens, now)

  def ended_behind(self, kind: Hashable, seconds: float) -> None:
    """The same for a step of one token a row, behind which another may have begun."""
    self._count(kind, seconds, time.perf_counter())

  def _count(self, kind: Hashable, seconds: float, now: float) -> None:
    self.steps += 1
    if (times := self._usual.get(kind)) is None: times = self._usual[kind] = deque(maxlen=LAST)
    times.append(seconds)
    self._last = now, None, 1

  def other(self) -> None:
    """Something else happened: a request came, or a step failed."""
    self._last = time.perf_counter(), None, 1

  def look(self) -> tuple[float, bool]:
    """Seconds since the last progress, and whether these are too many for an engine with requests."""
    at, kind, tokens = self._last
    return (seconds := time.perf_counter() - at), seconds > self.limit(kind, tokens)

  def limit(self, kind: Hashable, tokens: int = 1) -> float:
    """Seconds that a step of a kind may take; kind None: seconds until the next step begins."""
    times = sorted(self._usual.get(kind, ()))
    return max(SHORT, TIMES * tokens * times[len(times) // 2]) if times else FIRST
