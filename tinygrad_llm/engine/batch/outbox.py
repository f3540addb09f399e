"""Tokens on their way from the engine to the reader of an answer."""
from __future__ import annotations
import asyncio, copy, threading, time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn
from tinygrad_llm.errors import InputError

class Outbox:
  """
  Tokens in order, and then the end of the answer. A token costs the engine one call.

  - relay: wakes a reader that waits for a token, soon; None: put() does so itself, by a system call
  - ended: no token comes any more
  - was_left: the answer belongs to the process that this one was forked from
  - wake: called whenever something came, for readers that do not wait in take()
  """
  def __init__(self) -> None:
    self._items, self._ends = deque[int | None](), threading.RLock()  # None: the end
    self._waiting = deque[threading.Lock]()  # each is held by a reader's wait until it is released for it
    self._over = False  # a reader has met the end
    self.relay: Relay | None = None
    self.ended, self.error, self.was_left = False, None, False  # type: bool, Exception | None, bool
    self.wake: Callable[[], None] | None = None

  @property
  def unread(self) -> int:
    """Tokens that were not taken yet, and the end."""
    return len(self._items)

  def put(self, token: int) -> None:
    """Passes a token on. Nothing is read after the end."""
    if self.ended: return
    self._items.append(token)
    if self._waiting: self._call()
    if self.wake is not None: self.wake()

  def end(self, error: Exception | None = None) -> None:
    """No token comes any more. error: is raised once all tokens were taken, a copy for each take()."""
    with self._ends:
      if self.ended: return
      self.error, self.ended = error, True
    self._tell_end()
    if self.wake is not None: self.wake()

  def leave(self) -> None:
    """In a forked child: the answer stays the parent's."""
    self._items, self._waiting, self._ends, self.relay = deque(), deque(), threading.RLock(), None
    self.ended = self._over = self.was_left = True
    self.error = InputError("stream: it belongs to the process that this one was forked from; begin another one here")

  def take(self, wait: float = 0.0) -> int | None:
    """The next token; None if there is none after `wait` seconds. StopIteration or the error at the end."""
    if self._over: self._raise()
    if wait and not self._items: self._wait(wait)
    try: token = self._items.popleft()
    except IndexError:
      if not self.ended: return None
      try: token = self._items.popleft()  # what came before the end; an error may have kept the end itself away
      except IndexError: token = None
    if token is not None: return token
    self._over = True
    self._tell_end()  # another reader may wait
    self._raise()

  def _tell_end(self) -> None:
    self._items.append(None)
    self._call()
    if self.relay is not None: self.relay.ring_all()  # no step may come that rings

  def _call(self) -> None:
    """Wakes a reader that waits, if there is one."""
    try: lock = self._waiting.popleft()
    except IndexError: return
    if self.relay is None: lock.release()
    else: self.relay.add(lock)

  def _wait(self, seconds: float) -> None:
    """Waits until something is there, or the answer has ended, or so many seconds are over."""
    until = time.monotonic() + seconds
    while not self._items and not self.ended and seconds > 0:
      (lock := threading.Lock()).acquire()
      is_called = False
      try:
        self._waiting.append(lock)  # what comes after this wakes it
        is_called = not self._items and not self.ended and lock.acquire(timeout=seconds)
      finally:
        if not is_called:
          with suppress(ValueError): self._waiting.remove(lock)
        if self.relay is not None: self.relay.ring()
      if not self._items: seconds = until - time.monotonic()  # another reader was faster

  def _raise(self) -> NoReturn:
    if self.error is not None: raise copy.copy(self.error)  # threads may share it; a copy has no frames
    raise StopIteration

class Relay:
  """
  Wakes the readers of a step that wait in threads: the engine wakes one, and each that wakes the next.

  So the engine makes one system call, and no two readers wait for Python's lock at once. A reader that gives up as it
  is woken wakes another one all the same. Should that find too few, the next ring() goes on.
  """
  def __init__(self) -> None:
    self._locks = deque[threading.Lock]()

  def add(self, lock: threading.Lock) -> None:
    """A lock that a reader waits for, to be released by one of the next rings."""
    self._locks.append(lock)

  def ring(self) -> None:
    """Wakes the next reader, if there is one."""
    try: lock = self._locks.popleft()
    except IndexError: return
    lock.release()

  def ring_all(self) -> None:
    """Wakes all of them."""
    while self._locks: self.ring()

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
