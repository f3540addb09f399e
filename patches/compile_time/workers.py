"""
Compile workers: kernels lowered in other processes are patched, too, and return however deep they nest.

Why: spawned processes lower and compile kernels, and do not import the program's main module. A patch that only the
  parent applied is silently absent there (0 of 6 kernels patched at PARALLEL=3).
  And tinygrad pickles a graph by recursion. A lowered kernel of a mixture of experts in MXFP4 nests deeper than Python
  recurses. The worker then dies of the error while it reports it, and the parent waits for ever.
How: the pool's initialiser is pickled by reference, so each worker imports ours, and with it tinygrad_llm, which
  applies the patches. The initialiser brings a description of the parent's devices, which a worker may not ask: the
  keys of stored schedules hold it.
  Between processes a graph is the flat list of serialize.py; multiprocessing is told to pickle a UOp that way. A graph
  with contents of buffers, or with arguments of other classes, is pickled by tinygrad.
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
  """The initialiser of a pool: init_worker with what the parent knows when it starts a worker."""
  def __call__(self) -> None: raise AssertionError("it runs in workers only")
  def __reduce__(self) -> tuple[Any, ...]: return functools.partial, (init_worker, schedules.cards())

def init_worker(cards: dict[str, dict[str, str]]|None = None) -> None:
  """
  Runs tinygrad's initialiser in a worker. Importing this module has applied the patches; apply() raises if that failed.
  """
  patches.apply()
  disk_cache.say_nothing()
  schedules.CARDS.update(cards or {})
  _stock()

def graph(data: bytes) -> UOp:
  """The graph in the bytes of reduce()."""
  return serialize.load(data)[0]

def reduce(u: UOp) -> tuple[Any, ...]:
  """How multiprocessing pickles a graph: a function and its arguments."""
  stock: tuple = u.__reduce__()
  if any(s.op is Ops.BUFFER and s.addrspace is AddrSpace.GLOBAL for s in u.toposort()): return stock
  try: return graph, (serialize.dump([u]),)
  except ValueError: return stock

def _after_fork() -> None:
  """Drops the parent's pool, whose threads are not in this child: the child starts its own."""
  worker.worker_pool = None

def install() -> None:
  places.replace(worker, "_init_worker", Initialiser())
  if hasattr(os, "register_at_fork"): os.register_at_fork(after_in_child=_after_fork)
  ForkingPickler.register(UOp, reduce)
