"""
Actions on a kernel that tinygrad's OptOps have no name for. An Opt holds either, so that a schedule is a list of Opts.
"""
from __future__ import annotations
from enum import Enum
from tinygrad.codegen.opt import Opt, OptOps

class ScheduleOps(Enum):
  """What each one sets; the room whose kernels it changes says how. An action is applied once, and has no axis."""
  PREFETCH = "bytes from a load of a stream to what is asked for with it; 0: nothing (vector/ordered_loads.py)"
  POSITIONS = "positions of attention that are computed together (attention/cpu.py)"
  QUERIES = "queries of a head that share what is loaded of keys and values (attention/cpu.py, gpu.py)"
  VECTORS = "vectors of sums of values at a time (attention/cpu.py)"
  THREADS = "threads of a block of attention (attention/gpu.py)"
  LANES = "threads that share a key (attention/gpu.py)"

  def __lt__(self, other: ScheduleOps|OptOps) -> bool: return self.name < other.name

def chosen(opts: tuple[Opt, ...]|None, op: ScheduleOps, default: int) -> int:
  """The amount of an action of a schedule."""
  return next((opt.arg for opt in opts or () if opt.op is op and isinstance(opt.arg, int)), default)
