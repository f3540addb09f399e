"""
GEMM in the AMX tile registers of a CPU: chooses how many row tiles are dequantised together. A helper of gemv.py;
tiles/amx_tiles.py writes the kernel.
"""
from __future__ import annotations
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad_llm.patches.hooks import scheduled_by
from tinygrad_llm.patches.ir.actions import ScheduleOps, action
from tinygrad_llm.patches.ir.matmuls import divided, find
from tinygrad_llm.patches.ir.targets import most_threads
from tinygrad_llm.patches.tiles import amx_tiles

def on_tile_registers(k: Scheduler) -> Scheduler|None:
  """Schedules a bfloat16 matmul for tile registers. None if the kernel is no such matmul or the CPU lacks them."""
  if not amx_tiles.available(k.ren): return None
  if isinstance(m := find(divided(k.ast)), str) or amx_tiles.why_not(m): return None
  (made := k.copy()).apply_opt(action(ScheduleOps.AMX, amx_tiles.tiles(m, most_threads(k.ren))))
  scheduled_by("gemm_amx")
  return made
