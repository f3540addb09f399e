"""
The process's lock around loading, capturing and compiling, which tinygrad does with state of the whole process.

It has a module of its own because a patch and the app both hold it: host/thread_safety.py at the seams of tinygrad, the
app while it loads a model. The module imports nothing of tinygrad, so that the lock may be held before tinygrad is
imported.

A fork waits up to PATIENCE seconds for the lock, so that the child finds tinygrad's state whole, not in the middle of a
kernel. The child never finds it locked by a thread that it does not have. The fork handler that is registered last runs
first, with no other lock in hand. Therefore the modules that take their own locks before a fork, and that a thread
needs while it loads a model (it starts threads), are imported here first.
"""
from __future__ import annotations
import _thread, concurrent.futures.thread, logging, os, threading  # noqa: F401
from typing import Any

PATIENCE = 30.0

_RLock: Any = _thread.RLock  # its release cannot be interrupted; a Python class's could

class ProcessLock(_RLock):
  """
  A re-entrant lock that threads get in the order in which they ask. Without the gate, a thread that releases it and
  asks again at once, as between two steps, would get it again before a waiting thread has woken.
  """
  def __init__(self) -> None:
    self._gate, self._forking = threading.Lock(), threading.local()

  def __enter__(self) -> bool:
    if self._is_owned(): return bool(self.acquire())
    try:
      with self._gate: return bool(self.acquire())
    except BaseException:  # Ctrl-C, after it was acquired
      if self._is_owned(): self.release()
      raise

  def is_held(self) -> bool:
    """Whether this thread holds the lock."""
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
