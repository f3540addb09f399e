"""
GEMM in the tile registers of a CPU: how many rows are decoded together. A part of matvec.py, as vector/amx.py is of it.
"""
from __future__ import annotations
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad_llm.patches.matmul import divided, find
from tinygrad_llm.patches.opts import ScheduleOps, action
from tinygrad_llm.patches.passes import most_threads, scheduled_by
from tinygrad_llm.patches.vector import amx

def on_tile_registers(k: Scheduler) -> Scheduler|None:
  """A matmul of bfloat16 in tile registers; None if it is none, or there are none."""
  if not amx.available(k.ren): return None
  if isinstance(m := find(divided(k.ast)), str) or amx.why_not(m): return None
  (made := k.copy()).apply_opt(action(ScheduleOps.AMX, amx.tiles(m, most_threads(k.ren))))
  scheduled_by("matmul_amx")
  return made
