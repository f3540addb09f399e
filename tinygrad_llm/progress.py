"""How far the compiling of kernels is, on stderr."""
from __future__ import annotations
import os, sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from tqdm import tqdm
from tinygrad_llm.patches.cache import programs

# of VT100 and all that came after it. Down and up again makes room below; then save the place and go there
BELOW, BACK = "\x1bD\x1b[A\x1b7\x1b[B\r", "\r\x1b[K\x1b8"

def _free_lock() -> None:
  """In a fork: a bar that another thread drew at that moment holds tqdm's lock for ever."""
  for lock in getattr(vars(tqdm).get("_lock"), "locks", ()):
    if not lock.acquire(False):
      tqdm.set_lock(RLock())
      return
    lock.release()

if hasattr(os, "register_at_fork"): os.register_at_fork(after_in_child=_free_lock)

@contextmanager
def compiling(show: bool, midline: bool = False) -> Iterator[None]:
  """
  Shows what is made in this block: "scheduling", then "compiling 37/61" kernels, for how long it has gone on and how
  long it will; on a terminal only.

  midline: text stands in the line, perhaps; the bar is below, and the cursor back where it was afterwards.
  """
  if not show or not sys.stderr.isatty():
    yield
    return
  if midline: sys.stdout.flush()
  bar: tqdm | None = None
  before = 0  # kernels of the batches that are done
  def update(done: int, total: int) -> None:
    nonlocal bar, before
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
