"""Tells how far a load is: on stderr the compiling of kernels, and all of it to a listener."""
from __future__ import annotations
import os, sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import RLock
from tqdm import tqdm
from tinygrad_llm.patches.cache import programs

# VT100 escapes. Going down and up again makes room below the line; then save the cursor and go down
BELOW, BACK = "\x1bD\x1b[A\x1b7\x1b[B\r", "\r\x1b[K\x1b8"

# of this thread: called with (what, how many are done, of how many). The bytes of "weights", "steps" of the model, and
# "kernels", of which there are 0 while a step is scheduled
listener: ContextVar[Callable[[str, int, int], None] | None] = ContextVar("listener", default=None)

def tell(what: str, done: int, total: int) -> None:
  if (heard := listener.get()) is not None: heard(what, done, total)

def _free_lock() -> None:
  """Called in a fork: tqdm's lock would stay held for ever if another thread drew a bar at that moment."""
  for lock in getattr(vars(tqdm).get("_lock"), "locks", ()):
    if not lock.acquire(False):
      tqdm.set_lock(RLock())
      return
    lock.release()

if hasattr(os, "register_at_fork"): os.register_at_fork(after_in_child=_free_lock)

@contextmanager
def compiling(show: bool, midline: bool = False) -> Iterator[None]:
  """
  Shows the progress of compiling in this block, on a terminal only. The listener is told in any case.

  It says "scheduling", then "compiling 37/61" kernels, with the time so far and the time left. If `midline` is set, the
  cursor's line may hold text: the bar is then below that line, and the cursor returns to its place afterwards.
  """
  show = show and sys.stderr.isatty()
  if not show and listener.get() is None:
    yield
    return
  if midline and show: sys.stdout.flush()
  bar: tqdm | None = None
  before = 0  # kernels of finished batches
  def update(done: int, total: int) -> None:
    nonlocal bar, before
    tell("kernels", before + done, before + total if total else 0)
    if not show:
      if done == total: before += total
      return
    if bar is None:
      if midline: sys.stderr.write(BELOW)
      bar = tqdm(file=sys.stderr, leave=False, unit="kernel")
    bar.total, bar.n = before + total or None, before + done
    bar.set_description("compiling" if total else "scheduling")
    if done == total: before += total
  token = programs.progress.set(update)
  try: yield
  finally:
    programs.progress.reset(token)
    if bar is not None:
      bar.close()
      if midline: sys.stderr.write(BACK)
      sys.stderr.flush()
