"""
Multithreading on a CPU: chooses the output axis of a kernel that threads share.
"""
from __future__ import annotations
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from tinygrad.codegen.opt import Opt, OptOps
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.helpers import prod
from tinygrad.uop.ops import AxisType, Ops, UOp, resolve
from tinygrad_llm.patches.hooks import is_stage
from tinygrad_llm.patches.ir.indices import size
from tinygrad_llm.patches.ir.targets import most_threads

WORK = 1 << 15  # least iterations (products) per thread

_alone: ContextVar[bool] = ContextVar("whether kernels have one thread", default=False)

@contextmanager
def one_thread() -> Iterator[None]:
  """Kernels lowered inside this context get one thread."""
  token = _alone.set(True)
  try: yield
  finally: _alone.reset(token)

def share(k: Scheduler, first: UOp|None = None) -> None:
  """
  Shares an output axis among as many threads as divide it and have enough work.

  `first` is preferred, then the longest axis. A stage of a kernel gets one thread.
  """
  most = 1 if _alone.get() or is_stage() else most_threads(k.ren)
  outer = k._globalizable_rngs()
  axes = [a for a in k.axes_of(AxisType.WEAK) if k.rngs[a] in outer]
  # axes of unknown length come last
  axes.sort(key=lambda a: (k.rngs[a] is not first, k.rngs[a].src[0].op is not Ops.CONST, -size(k.rngs[a])))
  work = prod(k.full_shape)
  for threads in range(most, 1, -1):
    for axis in axes:
      if k.rngs[axis].src[0].divides(threads) is not None and resolve(work >= threads * WORK, True):
        k.apply_opt(Opt(OptOps.THREAD, axis, threads))
        return
