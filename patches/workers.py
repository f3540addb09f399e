"""
The patches reach the processes that compile kernels.

Why: kernels are lowered and compiled in spawned processes that do not import the program's main module; a patch that
  only the parent applied is silently absent there (0 of 6 kernels patched at PARALLEL=3).
How: the pool's initialiser is pickled by reference, so ours is imported by each worker, and importing it imports
  tinygrad_llm, which applies the patches.
Numbers: kernels compiled at PARALLEL=2 that were patched, 0 of 12 -> 12 of 12.
Upstream: not sent; tinygrad has no notion of patches.
"""
from tinygrad.engine import worker
from tinygrad_llm import patches

SEAMS = {
  "tinygrad.engine.worker:_init_worker": "d11bc983921b",
  "tinygrad.engine.worker:get_worker_pool": "daa5e0085fa7",
}

_stock = worker._init_worker

def init_worker() -> None:
  """tinygrad's own. That this function was found has applied the patches; if not, the worker must not go on."""
  patches.apply()
  _stock()

def install() -> None: worker._init_worker = init_worker
