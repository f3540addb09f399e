"""
GEMV schedules: choose the loops of matrix-vector products whose weights are quantised, half or scaled.

Why: tinygrad's matvec rule matches reduce(a[..] * b[..]). It never fires on a weight that is half, quantised, or
  multiplied by a norm: reduce(cast(a * b)), a * (b * c), a * (d * q - m).
How: ir/products.py finds x and w among the loads of the sum. On a GPU, threads share a row (gemv_gpu.py). On a CPU
  (gemv_cpu.py, gemv_columns.py), the loops of a block of weights are unrolled, and so are 16 rows if memory interleaves
  them. Without vector/lanes.py, which makes vectors of these, tinygrad's schedule stays. MV_THREADS_PER_ROW,
  MV_BLOCKSIZE and MV_ROWS_PER_THREAD override the defaults. A CPU reads only the last, for rows that are not
  interleaved.
Numbers: 8192 x 2048, one core, GB/s: Q4_K 1.1 -> 8.9, Q6_K 0.7 -> 8.2, Q8_0 1.9 -> 17, MXFP4 1.0 -> 8.5 (Zen 4,
  AVX-512, medians, all other patches on)
Upstream: not sent. It would widen the matvec rule of hand_coded_optimizations; the CPU's part needs vector/lanes.py.
"""
from __future__ import annotations
from tinygrad.codegen.opt import KernelOptError
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.helpers import DEBUG, getenv
from tinygrad_llm.patches.hooks import scheduled_by
from tinygrad_llm.patches.ir.products import find_sum
from tinygrad_llm.patches.schedule.choose import choosers
from tinygrad_llm.patches.schedule.cpu_threads import share
from tinygrad_llm.patches.schedule.gemm_amx import on_tile_registers
from tinygrad_llm.patches.schedule.gemm_gpu import on_blocks
from tinygrad_llm.patches.schedule.gemv_columns import on_columns
from tinygrad_llm.patches.schedule.gemv_cpu import on_cpu
from tinygrad_llm.patches.schedule.gemv_gpu import TOKENS, on_gpu
from tinygrad_llm.patches.vector import lanes

SEAMS = {
  "tinygrad.codegen.opt.postrange:Scheduler": "35256edac7fb",
}

def choose(k: Scheduler) -> Scheduler|None:
  """Schedules a kernel that multiplies with a matrix. None if it does not, or if no schedule fits it."""
  vectors = lanes.available(k.ren)
  if getenv("MV", 1) == 0 or not (vectors or k.ren.has_local and k.ren.has_shared): return None
  if (blocks := (on_tile_registers if vectors else on_blocks)(k)) is not None: return blocks
  found, by = (find_sum(k), "gemv_cpu") if vectors else (find_sum(k, TOKENS), "gemv_gpu")
  try: made = found if isinstance(found, str) else (on_cpu if vectors else on_gpu)(k, found)
  except KernelOptError as e: made = f"an optimisation does not apply: {e}"
  if isinstance(made, str) and vectors and (columns := on_columns(k)) is not None:
    share(made := columns)
    by = "gemv_columns"
  if DEBUG >= 3: print(f"GEMV: {k.colored_shape()}: {made if isinstance(made, str) else made.applied_opts}")
  if isinstance(made, str): return None
  scheduled_by(by)
  return made

def install() -> None: choosers["gemv"] = choose
