"""
Compile workers: kernels that are lowered in other processes are patched, too, and return however deep they nest.

Why: kernels are lowered and compiled in spawned processes that do not import the program's main module; a patch that
  only the parent applied is silently absent there (0 of 6 kernels patched at PARALLEL=3). And a graph is pickled by
  recursion: a lowered kernel of a mixture of experts in MXFP4 nests deeper than Python recurses, then the worker dies
  of the error, in telling of it, and the parent waits for ever.
How: the pool's initialiser is pickled by reference, so ours is imported by each worker, and importing it imports
  tinygrad_llm, which applies the patches. It brings what the parent's devices are, which a worker may not ask: stored
  schedules are kept by that. Between processes a graph is the flat list of serialize.py, which
  multiprocessing is told to make of a UOp; one with contents of buffers, or arguments of other classes, is tinygrad's.
Numbers: kernels compiled at PARALLEL=2 that were patched, 0 of 12 -> 12 of 12.
Upstream: not sent; tinygrad has no notion of patches. The flat list would do there as it is.
"""
import functools
import os
from multiprocessing.reduction import ForkingPickler
from typing import Any
from tinygrad.dtype import AddrSpace
from tinygrad.engine import worker
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm import patches
from tinygrad_llm.patches import places
from tinygrad_llm.patches.cache import disk_cache, schedules, serialize

SEAMS = {
  "tinygrad.engine.worker:_init_worker": "d11bc983921b",
  "tinygrad.engine.worker:get_worker_pool": "daa5e0085fa7",
  "tinygrad.uop.ops:UOp.__reduce__": "bbc305b89034",
}

_stock = worker._init_worker

class Initialiser:
  """Of a pool: init_worker with what the parent knows when it starts a worker."""
  def __call__(self) -> None: raise AssertionError("it is for other processes")
  def __reduce__(self) -> tuple[Any, ...]: return functools.partial, (init_worker, schedules.cards())

def init_worker(cards: dict[str, dict[str, str]]|None = None) -> None:
  """tinygrad's own. That this function was found has applied the patches; if not, the worker must not go on."""
  patches.apply()
  disk_cache.say_nothing()
  schedules.CARDS.update(cards or {})
  _stock()

def graph(data: bytes) -> UOp:
  """What reduce() has written."""
  return serialize.load(data)[0]

def reduce(u: UOp) -> tuple[Any, ...]:
  """How multiprocessing sends a graph."""
  stock: tuple = u.__reduce__()
  if any(s.op is Ops.BUFFER and s.addrspace is AddrSpace.GLOBAL for s in u.toposort()): return stock
  try: return graph, (serialize.dump([u]),)
  except ValueError: return stock

def _after_fork() -> None:
  """The pool is the parent's, and its threads are not here: the child starts its own."""
  worker.worker_pool = None

def install() -> None:
  places.replace(worker, "_init_worker", Initialiser())
  if hasattr(os, "register_at_fork"): os.register_at_fork(after_in_child=_after_fork)
  ForkingPickler.register(UOp, reduce)
