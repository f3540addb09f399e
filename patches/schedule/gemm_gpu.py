"""
GEMM on a GPU: chooses the block of threads for a matmul's tiles. A helper of gemv.py; tiles/mma_tiles.py writes the
kernel.
"""
from __future__ import annotations
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.helpers import ceildiv
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.hooks import scheduled_by
from tinygrad_llm.patches.ir.actions import ScheduleOps, action
from tinygrad_llm.patches.ir.matmuls import divided, find, loaded_after
from tinygrad_llm.patches.tiles.mma_tiles import Block, core_of, fits

LEAST = 16  # least rows, and least tokens at most: a smaller product is a few matrix-vector products
BLOCKS = 128  # least blocks of a kernel: the multiprocessors of a large card
SIZES = ((128, 128, 64, 32), (128, 64, 32, 32), (64, 64, 32, 32), (32, 64, 32, 16), (16, 64, 16, 16))
FEW, LOADED = 3, 2  # SIZES from this one on have few sums per thread; most loads of an epilogue: a residual and a bias
WIDE = 32  # least tokens of a warp, for each product, if several share it
WEIGHTS = (64, 128, 32, 16)

def on_blocks(k: Scheduler) -> Scheduler|None:
  """Schedules a matmul in blocks of threads. None if the kernel is no matmul, or has few tokens or rows."""
  if not (is_on("mma_tiles") and k.ren.has_local and k.ren.has_shared): return None
  if isinstance(m := find(divided(k.ast)), str): return None
  if (core := core_of(m, k.ren)) is None: return None
  if min(tokens := int(m.n_tokens.vmax), m.n_rows) < LEAST: return None
  n = len(m.products)
  # several products share a warp's registers: it gets fewer tokens of each, or fewer rows if it has few tokens
  sizes = [(t, r // n, wt, max(wr // n, core.rows)) if wt < n * WIDE else (t, r // n, wt // n, wr)
           for t, r, wt, wr in SIZES]
  # an epilogue that loads much for each sum leaves a thread registers for few sums
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
