"""
Multithreading on a CPU: which output axis of a kernel is shared among threads.
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

WORK = 1 << 15  # products a thread should have at least

_alone: ContextVar[bool] = ContextVar("whether kernels have one thread", default=False)

@contextmanager
def one_thread() -> Iterator[None]:
  """Kernels that are lowered in here have one thread."""
  token = _alone.set(True)
  try: yield
  finally: _alone.reset(token)

def share(k: Scheduler, first: UOp|None = None) -> None:
  """Threads share an output axis, if there is enough to do: `first`, or the longest. Stages of a kernel have one."""
  most = 1 if _alone.get() or is_stage() else most_threads(k.ren)
  outer = k._globalizable_rngs()
  axes = [a for a in k.axes_of(AxisType.WEAK) if k.rngs[a] in outer]
  # of unknown length only where there is no other
  axes.sort(key=lambda a: (k.rngs[a] is not first, k.rngs[a].src[0].op is not Ops.CONST, -size(k.rngs[a])))
  work = prod(k.full_shape)
  for threads in range(most, 1, -1):
    for axis in axes:
      if k.rngs[axis].src[0].divides(threads) is not None and resolve(work >= threads * WORK, True):
        k.apply_opt(Opt(OptOps.THREAD, axis, threads))
        return
