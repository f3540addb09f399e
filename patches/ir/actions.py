"""
Schedule actions that tinygrad's OptOps have no name for. An Opt holds either kind, so a schedule is a list of Opts.
"""
from __future__ import annotations
from enum import Enum
from typing import cast
from tinygrad.codegen.opt import Opt, OptOps, check
from tinygrad.codegen.opt.postrange import Scheduler

Opts = tuple[Opt, ...]

class ScheduleOps(Enum):
  """
  Schedule actions of the passes. Each value says what the action sets, where, and whose schedule it reproduces.

  An action is applied once and has no axis. search/known_schedules.py lists schedules of other projects, which use
  tinygrad's actions, too.
  """
  PREFETCH = "bytes from a load of a stream to what is asked for with it, 0: nothing (vector/ordered_loads.py): " \
             "software prefetch, as in llama.cpp's ggml_vec_dot_q4_0_q8_0 for SSSE3"
  POSITIONS = "positions of attention that are computed together (attention/decode_cpu.py): 64 are a tile of " \
              "llama.cpp's flash attention on CPUs, GGML_FA_TILE_KV"
  QUERIES = "queries of a head that share what is loaded of keys and values (attention/decode_cpu.py): 1 is " \
            "llama.cpp's flash_attn_ext_vec; all are MLX's sdpa_vector_2pass, a threadgroup of which has a group's"
  VECTORS = "vectors of sums of values at a time (attention/decode_cpu.py): 16 are the 4 x 4 of llama.cpp's simd_gemm"
  THREADS = "threads of a block of attention (attention/decode_gpu.py): 128 are llama.cpp's flash_attn_ext_vec on " \
            "CUDA, 32 its simdgroup on Metal"
  LANES = "threads that share a key (attention/decode_gpu.py): 8 are llama.cpp's flash_attn_ext_vec on CUDA, 16 next " \
          "to its 32 on Metal, whose loads are half as wide"
  TOKENS = "tokens whose sums are in registers together (schedule/register_tiles.py): 8 are ik_llama.cpp's " \
           "microkernel"
  TILES = "tiles of rows that are unpacked together (tiles/pack_operands.py): 16 are the 256 rows of llama.cpp's " \
          "window of weights"
  BLOCK = "tokens, rows and weights of a step of a block of threads, tokens and rows of a warp " \
          "(tiles/mma_tiles.py): CUTLASS's threadblock and warp shapes; 32, 64, 32, 16, 32 are llama.cpp's " \
          "kernel_mul_mm on Metal"
  AMX = "tiles of rows that are decoded together for the tile registers of a CPU (tiles/amx_tiles.py): 2 are " \
        "llama.cpp's TILE_N of ggml_backend_amx"

  def __lt__(self, other: ScheduleOps|OptOps) -> bool: return self.name < other.name

def action(op: ScheduleOps, amount: int|tuple[int, ...]) -> Opt:
  """An action with its amount, as tinygrad's list of Opts holds it."""
  return Opt(cast(OptOps, op), None, amount)

def chosen(opts: Opts|None, op: ScheduleOps, default: int) -> int:
  """The amount of an action in a schedule; `default` if the schedule does not have it."""
  return next((opt.arg for opt in opts or () if opt.op is op and isinstance(opt.arg, int)), default)

def check_amount(k: Scheduler, opt: Opt, least: int, most: int) -> None:
  """Checks that an action's amount is in a range and that the action is applied once. KernelOptError if not."""
  check(isinstance(opt.arg, int) and least <= opt.arg <= most, f"{opt.op.name} must be {least} to {most}")
  check(all(known.op is not opt.op for known in k.applied_opts), f"{opt.op.name} may be applied only once")
