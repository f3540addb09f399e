"""Tokens on their way from the engine to the reader of an answer."""
from __future__ import annotations
import asyncio, copy, threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import NoReturn
from tinygrad_llm.errors import InputError

class Outbox:
  """
  Tokens in order, and then the end of the answer. A token costs the engine one call, and a system call if a reader
  waits for it.

  - ended: no token comes any more
  - was_left: the answer belongs to the process that this one was forked from
  - wake: called whenever something came, for readers that do not wait in take()
  """
  def __init__(self) -> None:
    self._items, self._ends = SimpleQueue[int | None](), threading.RLock()  # None: the end
    self._over = False  # a reader has met the end
    self.ended, self.error, self.was_left = False, None, False  # type: bool, Exception | None, bool
    self.wake: Callable[[], None] | None = None

  @property
  def unread(self) -> int:
    """Tokens that were not taken yet, and the end."""
    return self._items.qsize()

  def put(self, token: int) -> None:
    """Passes a token on. Nothing is read after the end."""
    if self.ended: return
    self._items.put(token)
    if self.wake is not None: self.wake()

  def end(self, error: Exception | None = None) -> None:
    """No token comes any more. error: is raised once all tokens were taken, a copy for each take()."""
    with self._ends:
      if self.ended: return
      self.error, self.ended = error, True
    self._items.put(None)
    if self.wake is not None: self.wake()

  def leave(self) -> None:
    """In a forked child: the answer stays the parent's."""
    self._items, self._ends, self.ended, self._over = SimpleQueue(), threading.RLock(), True, True
    self.was_left = True
    self.error = InputError("stream: it belongs to the process that this one was forked from; begin another one here")

  def take(self, wait: float = 0.0) -> int | None:
    """The next token; None if there is none after `wait` seconds. StopIteration or the error at the end."""
    if self._over: self._raise()
    try: token = self._items.get(timeout=wait) if wait else self._items.get_nowait()
    except Empty:
      if not self.ended: return None
      try: token = self._items.get_nowait()  # what came before the end; an error may have kept the end itself away
      except Empty: token = None
    if token is not None: return token
    self._over = True
    self._items.put(None)  # another reader may wait
    self._raise()

  def _raise(self) -> NoReturn:
    if self.error is not None: raise copy.copy(self.error)  # threads may share it; a copy has no frames
    raise StopIteration

class Bell:
  """
  Wakes the readers of an event loop: one call of the loop, and one system call, for all tokens of a step.

  Where an exception stops ring() half-way, the next answer() repairs it.
  """
  def __init__(self) -> None:
    self._rung, self._is_due = deque[asyncio.Event](), False

  def ring(self, loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """Sets an event of the loop soon; any thread may call it."""
    self._rung.append(event)
    if self._is_due: return  # answer() comes after this, and finds the event
    self._is_due = True
    try: loop.call_soon_threadsafe(self.answer)
    except RuntimeError:  # the loop is closed, and nobody waits
      self._is_due = False
      self._rung.clear()

  def answer(self) -> None:
    """Sets the events, in the loop."""
    self._is_due = False
    while self._rung: self._rung.popleft().set()
