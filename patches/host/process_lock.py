"""
The lock of this process around loading, capturing and compiling: tinygrad does these with state of the whole process.

It is here, and not in a patch or in the app, because both hold it: host/thread_safety.py at the seams of tinygrad,
the app while it loads a model, which goes through many of them. It imports nothing of tinygrad, so that it may be held
before that is imported.

A fork waits up to PATIENCE seconds for whoever holds the lock, so that the child finds tinygrad's state whole, not in
the middle of a kernel. The child never finds it locked by a thread that it does not have. What is registered last waits
first, with no other lock in hand: the modules that take locks of their own before a fork, which whoever loads a model
needs (it starts threads), are imported before.
"""
from __future__ import annotations
import _thread, concurrent.futures.thread, logging, os, threading  # noqa: F401
from typing import Any

PATIENCE = 30.0

_RLock: Any = _thread.RLock  # its release cannot be interrupted, as that of a Python class could

class ProcessLock(_RLock):
  """
  A re-entrant lock that threads get in the order in which they ask: without the gate, one that releases it and asks
  again at once, as between two steps, would have it again before a waiting thread has woken.
  """
  def __init__(self) -> None:
    self._gate, self._forking = threading.Lock(), threading.local()

  def __enter__(self) -> bool:
    if self._is_owned(): return bool(self.acquire())
    try:
      with self._gate: return bool(self.acquire())
    except BaseException:  # Ctrl-C, after it was got
      if self._is_owned(): self.release()
      raise

  def is_held(self) -> bool:
    """Whether this thread holds it."""
    return bool(self._is_owned())

  def before_fork(self) -> None:
    self._forking.held = False
    if not (owned := self._is_owned()) and not self._gate.acquire(timeout=PATIENCE): return
    try: self._forking.held = self.acquire(timeout=PATIENCE)
    finally:
      if not owned: self._gate.release()

  def after_fork(self, child: bool) -> None:
    if self._forking.held: self.release()
    elif child: self._at_fork_reinit()
    if child: self._gate = threading.Lock()

lock = ProcessLock()

if hasattr(os, "register_at_fork"):
  os.register_at_fork(before=lock.before_fork, after_in_parent=lambda: lock.after_fork(False),
                      after_in_child=lambda: lock.after_fork(True))
