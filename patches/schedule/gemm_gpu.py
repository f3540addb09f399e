"""
GEMM on a GPU: the block of threads that a matmul's tiles have. A helper of gemv.py, as tiles/mma_tiles.py is.
"""
from __future__ import annotations
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.helpers import ceildiv
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.hooks import scheduled_by
from tinygrad_llm.patches.ir.actions import ScheduleOps, action
from tinygrad_llm.patches.ir.matmuls import divided, find, loaded_after
from tinygrad_llm.patches.tiles.mma_tiles import Block, core_of, fits

LEAST = 16  # tokens, of as many as there can be, and rows: below, a product is a few matrix-vector products
BLOCKS = 128  # of a kernel, at least: multiprocessors of a large card
SIZES = ((128, 128, 64, 32), (128, 64, 32, 32), (64, 64, 32, 32), (32, 64, 32, 16), (16, 64, 16, 16))
FEW, LOADED = 3, 2  # of SIZES, those with few sums a thread; more loads than a residual and a bias
WIDE = 32  # tokens of a warp
WEIGHTS = (64, 128, 32, 16)

def on_blocks(k: Scheduler) -> Scheduler|None:
  """A matmul in blocks; None if it is none, or has few tokens or rows."""
  if not (is_on("mma_tiles") and k.ren.has_local and k.ren.has_shared): return None
  if isinstance(m := find(divided(k.ast)), str): return None
  if (core := core_of(m, k.ren)) is None: return None
  if min(tokens := int(m.n_tokens.vmax), m.n_rows) < LEAST: return None
  n = len(m.products)
  # of several products, a warp has fewer tokens, and as many rows of each
  sizes = [(t, r // n, wt, max(wr // n, core.rows)) if wt < n * WIDE else (t, r // n, wt // n, wr)
           for t, r, wt, wr in SIZES]
  # of sums that are stored together with what is loaded for each, a thread has registers for few
  if loaded_after(k.ast) > LOADED: sizes = sizes[FEW:]
  fitting = [s for s in sizes if s[0] <= max(tokens, sizes[-1][0])]
  wide = [s for s in fitting if m.n_matrices * ceildiv(tokens, s[0]) * ceildiv(m.n_rows, s[1]) >= BLOCKS]
  for t, r, wt, wr in [*wide, *fitting[::-1]]:
    for weights in WEIGHTS:
      if not fits(m, block := Block(t, r, weights, wt, wr), core, k.ren): continue
      (made := k.copy()).apply_opt(action(ScheduleOps.BLOCK, block.arg))
      scheduled_by("gemm_gpu")
      return made
  return None
