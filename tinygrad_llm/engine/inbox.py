"""The requests of an engine on their way to its thread, and until they end."""
from __future__ import annotations
import threading
from collections import deque
from collections.abc import Iterable
from tinygrad_llm.engine import closed
from tinygrad_llm.engine.batch.request import Request
from tinygrad_llm.engine.batch.sequence import Sequence

class Inbox:
  """
  The requests of an engine that have not ended, and messages of other threads to its thread.

  requests: all of them, also forks that have not begun. new: those that the thread has not taken. thread: the one that
  runs them; None: the next request starts one.

  lock: guards all of this. It is taken by itself, not by `changed`, whose methods are Python: an exception in their
  last line would leave it locked for ever.
  """
  def __init__(self) -> None:
    self.lock, self.closed = threading.RLock(), False
    self.changed = threading.Condition(self.lock)
    self.requests, self.new = dict[Sequence, Request](), deque[Request]()
    self.thread: threading.Thread | None = None
    self.news = False  # the disk, or a reader that lagged behind, has done something

  def wake(self) -> None:
    """Lets the thread look what the disk or a reader has done."""
    with self.lock:
      self.news = True
      self.changed.notify()

  def take(self) -> Iterable[Request]:
    """The requests that the thread has not taken."""
    with self.lock: new, self.new, self.news = self.new, deque(), False
    return new

  def end(self, finish: str, error: Exception | None = None, taken: bool = False) -> int:
    """Ends all requests, or those that the thread has taken; how many they were."""
    with self.lock:
      kept = {r.sequence for first in self.new for r in (first, *first.forks)} if taken else set[Sequence]()
      ended = [r for s, r in self.requests.items() if s not in kept]
      for r in ended: del self.requests[r.sequence]
      if not taken: self.new.clear()
      for r in ended:
        r.sequence.cancelled = True
        r.end(finish, error)
    return len(ended)

  def stop(self) -> None:
    """Ends all requests and the thread. Readers do not wait for the step under way."""
    with self.lock:
      self.closed = True
      self.changed.notify()
      for request in self.requests.values(): request.cancel()
      thread = self.thread
    if thread is not None and thread is not threading.current_thread(): thread.join(closed.STEP)
