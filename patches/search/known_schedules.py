"""
Hand-written schedules of other projects, as states of our space: a search starts from them and from the heuristic's.

Sources: llama.cpp (ggml: mmvq.cu, fattn-vec.cuh, ggml-metal.metal), MLX (qmv.cu, quantized.h) and ik_llama.cpp (iqk). A
schedule says which thread computes which part. It does not say with which instructions: llama.cpp multiplies bytes on
CUDA, and MLX scales x instead of shifting weights. A warp is a simdgroup on Metal.
"""
from __future__ import annotations
from collections.abc import Mapping
from tinygrad.codegen.opt import KernelOptError, Opt
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import AxisType, UOp
from tinygrad_llm.patches.attention import decode_gpu
from tinygrad_llm.patches.attention.part import Part
from tinygrad_llm.patches.ir.actions import Opts, ScheduleOps, action
from tinygrad_llm.patches.ir.indices import steps
from tinygrad_llm.patches.ir.products import Sum, find_sum
from tinygrad_llm.patches.ir.targets import has_vectors
from tinygrad_llm.patches.schedule.gemv_cpu import on_cpu
from tinygrad_llm.patches.schedule.gemv_gpu import Tile, on_gpu
from tinygrad_llm.patches.search.space import fits

TILES = {
  # mul_mat_vec_q: 4 warps share a row, one row per block; two words of a superblock per thread, 16 threads for Q4_K
  "llama.cpp CUDA": Tile(128, 1, 1, 16),
  # the same with one word per thread, as for Q6_K, where 32 threads share a superblock
  "llama.cpp CUDA, 8 weights": Tile(128, 1, 1, 8),
  # the same for short rows (small K): a warp per row, 4 rows per block
  "llama.cpp CUDA, small K": Tile(32, 4, 1, 16),
  # qmv: a block of 32 x 8 threads, a warp per row, 16 weights per thread
  "MLX CUDA qmv": Tile(32, 8, 1, 16),
  # kernel_mul_mv_q4_K: 2 simdgroups of 2 rows, 8 lanes per superblock; x is in registers for both rows
  "llama.cpp Metal, 8 lanes": Tile(32, 2, 2, 32),
  # kernel_mul_mv_q6_K: the same with 16 lanes per superblock
  "llama.cpp Metal, 16 lanes": Tile(32, 2, 2, 16),
  # kernel_mul_mv_q8_0: 4 simdgroups of 2 rows, 8 weights per thread
  "llama.cpp Metal, 4 simdgroups": Tile(32, 4, 2, 8),
  # qmv_fast, and llama.cpp's kernel_mul_mv_q4_0: 2 simdgroups of 4 rows, 16 weights per thread
  "MLX Metal qmv_fast": Tile(32, 2, 4, 16),
  # variants of the GEMVs for Metal: a simdgroup has one row, or several that read x once; 16 bytes per load
  **{f"{threads} threads, {rows} row{'s' * (rows > 1)}": Tile(32, threads // 32, rows)
     for threads in (64, 128, 256) for rows in (1, 2, 4)},
}

ATTENTION = {
  # flash_attn_ext_vec: 4 warps and one query per block; 8 threads share a key, 16 bytes each
  "llama.cpp CUDA": {ScheduleOps.THREADS: 128, ScheduleOps.LANES: 8, ScheduleOps.QUERIES: 1},
  # kernel_flash_attn_ext_vec: one simdgroup and one query per block; half a simdgroup shares a key of 128 elements
  "llama.cpp Metal": {ScheduleOps.THREADS: 32, ScheduleOps.LANES: 16, ScheduleOps.QUERIES: 1},
}

PROMPTS = {
  # all weights of 32 rows are unpacked, then the tokens sweep over them, 8 at a time
  "ik_llama.cpp": {ScheduleOps.TOKENS: 8, ScheduleOps.TILES: 2},
  # its pull request 27851: a window of 256 rows, 16 tokens at a time
  "llama.cpp #27851": {ScheduleOps.TOKENS: 16, ScheduleOps.TILES: 16},
}

REGISTERS = {  # row tiles that are unpacked together for a CPU's tile registers (AMX)
  # ggml_backend_amx: 2 x 2 accumulator tiles, weights of 32 rows
  "llama.cpp AMX": 2,
}

MATMULS = {  # tokens, rows and weights of a block's step; tokens and rows of a warp
  # kernel_mul_mm: 64 rows by 32 tokens, 4 simdgroups of 4 x 2 tiles of 8 x 8
  "llama.cpp Metal kernel_mul_mm": (32, 64, 32, 16, 32),
  # qmm_t: 32 x 32, 2 x 2 simdgroups
  "MLX Metal qmm_t": (32, 32, 32, 16, 16),
  # the fp16 example with fp32 accumulators: 4 warps of 64 x 64
  "CUTLASS 128 x 128 x 32": (128, 128, 32, 64, 64),
}

def known(k: Scheduler) -> dict[str, Opts]:
  """
  Known schedules of a matrix product, by name: any product on a GPU, one of packed weights and many tokens on a CPU.

  Other kernels have none: {}. k: a Scheduler as Loops.start() makes it. Schedules that do not fit the sizes are left
  out: another number of rows per thread, or fewer than half of the threads of a block or of a row.
  """
  made = dict[str, Opts]() if has_vectors(k.ren) else _alone(k, ScheduleOps.BLOCK, MATMULS)
  if isinstance(found := find_sum(k), str): return made
  if has_vectors(k.ren): return _of_prompts(k, found) | _alone(k, ScheduleOps.AMX, REGISTERS)
  if not (k.ren.has_local and k.ren.has_shared): return {}
  for name, tile in TILES.items():
    try: state = on_gpu(k, found, tile)
    except KernelOptError: continue
    if not isinstance(state, str) and _is(state, tile) and fits(state): made[name] = tuple(state.applied_opts)
  return made

def _alone(k: Scheduler, op: ScheduleOps, listed: Mapping[str, int|tuple[int, ...]]) -> dict[str, Opts]:
  """Schedules of a single action, for a product of many tokens; an action that does not apply is left out."""
  made = dict[str, Opts]()
  for name, amounts in listed.items():
    state = k.copy()
    try: state.apply_opt(action(op, amounts))
    except KernelOptError: continue
    made[name] = tuple(state.applied_opts)
  return made

def _of_prompts(k: Scheduler, found: Sum) -> dict[str, Opts]:
  """The heuristic's schedule of a prefill GEMM on a CPU, with other numbers of tokens and tiles (PROMPTS)."""
  try: state = on_cpu(k, found)
  except KernelOptError: return {}
  if isinstance(state, str) or ScheduleOps.TILES not in {opt.op for opt in state.applied_opts}: return {}
  def chosen(opt: Opt, amounts: dict[ScheduleOps, int]) -> Opt:
    return action(opt.op, amounts[opt.op]) if isinstance(opt.op, ScheduleOps) and opt.op in amounts else opt
  return {name: tuple(chosen(opt, amounts) for opt in state.applied_opts)
          for name, amounts in PROMPTS.items()}

def _is(k: Scheduler, tile: Tile) -> bool:
  """Whether the sizes allowed a schedule to be what its tile asks for."""
  threads, block = steps(k.ranges_of(AxisType.GROUP_REDUCE)), tile.warps * tile.threads
  if tile.weights is not None and threads * 2 < tile.threads: return False
  rows, outputs = steps(k.ranges_of(AxisType.UPCAST)), steps(k.ranges_of(AxisType.LOCAL))
  return rows == tile.rows and block <= threads * outputs * 2 <= block * 2

def known_attention(ast: UOp, ren: Renderer) -> dict[str, Opts]:
  """Known schedules of a part of decode attention on a GPU, by name; {} for any other kernel."""
  if not ren.has_local or (part := Part.of(ast)) is None or part.tokens is not None: return {}
  made = {name: tuple(action(op, n) for op, n in amounts.items()) for name, amounts in ATTENTION.items()}
  return {name: opts for name, opts in made.items() if decode_gpu.on_gpu(part, opts) is not None}
