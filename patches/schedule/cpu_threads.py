"""
Multithreading on a CPU: which output axis of a kernel is shared among threads.
"""
from __future__ import annotations
from collections.abc import Iterator
from contextlib import contextmanager
from tinygrad.codegen.opt import Opt, OptOps
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.helpers import prod
from tinygrad.uop.ops import AxisType, UOp, resolve
from tinygrad_llm.patches.passes import most_threads

WORK = 1 << 15  # products a thread should have at least

_alone: list[bool] = []

@contextmanager
def one_thread() -> Iterator[None]:
  """In here nothing is shared."""
  _alone.append(True)
  try: yield
  finally: _alone.pop()

def share(k: Scheduler, first: UOp|None = None) -> None:
  """Threads share an output axis, if there is enough to do: `first`, or the longest."""
  most = 1 if _alone else most_threads(k.ren)
  outer = k._globalizable_rngs()
  axes = [a for a in k.axes_of(AxisType.WEAK) if isinstance(k.full_shape[a], int) and k.rngs[a] in outer]
  axes.sort(key=lambda a: (k.rngs[a] is not first, -k.full_shape[a]))
  work = prod(k.full_shape)
  for threads in range(most, 1, -1):
    for axis in axes:
      if k.full_shape[axis] % threads == 0 and resolve(work >= threads * WORK, True):
        return k.apply_opt(Opt(OptOps.THREAD, axis, threads))
