"""
GEMV on a CPU: unrolls a block of weights. SIMD lanes are 16 interleaved rows or 16 neighbouring weights; threads share
the rows. A helper of gemv.py.
"""
from __future__ import annotations
from collections.abc import Sequence
from tinygrad.codegen.opt import Opt, OptOps
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.helpers import getenv
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import AxisType, Ops, UOp
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.ir.actions import ScheduleOps, action
from tinygrad_llm.patches.ir.byte_groups import SIGN
from tinygrad_llm.patches.ir.indices import choosing, divisor, size, steps
from tinygrad_llm.patches.ir.packed_bytes import with_offset
from tinygrad_llm.patches.ir.products import Sum
from tinygrad_llm.patches.ir.sums import frees_a_factor
from tinygrad_llm.patches.ir.targets import LANES, adds_pairs, most_threads, registers
from tinygrad_llm.patches.ir.value_bounds import bounds
from tinygrad_llm.patches.schedule.cpu_threads import share
from tinygrad_llm.patches.schedule.register_tiles import matrix_rows, tile_shape, tokens
from tinygrad_llm.patches.tiles.pack_operands import MOST
from tinygrad_llm.patches.vector.lanes import interleaved

PERIOD = 256    # most weights to unroll: a block of the largest formats
ROWS = 2        # rows of floats that are added up at once: a sum's next addition waits for the last one
SHARED = 8      # longest output axis that is unrolled because its steps share loads
STEPS = 64      # least steps to unroll where lanes are rows
SWEPT = 32      # the same where many tokens share the weights
TOKENS = 8      # most tokens whose sums stay in registers together
SHARING = 4     # times the square of the registers: most products per step of tokens for unpacking weights in registers
HELD = 32       # with AVX2, most weights a row that are unpacked in registers: they are all registers
LEAST = 1 << 18  # smallest matrix, in weights, that is blocked over a prompt's tokens: it takes seconds to lower
UNPACKED = 1 << 19  # bytes of weights that are unpacked together: they fit a core's cache

def _unroll(k: Scheduler, r: UOp, amount: int) -> UOp|None:
  """Unrolls `amount` steps of a loop. Returns the rest of the loop, or None if nothing is left."""
  size = r.vmax + 1
  k.apply_opt(Opt(OptOps.UNROLL, k.unrollable_dims.index(k.rngs.index(r)), 0 if amount == size else amount))
  return None if amount == size else r.replace(src=(r.src[0].const_like(size // amount),))

def _fits(size: int, most: int) -> int:
  """Returns size if it is at most `most`, else the largest power of two up to `most` that divides it."""
  if size <= most: return size
  return max(n for n in (1 << i for i in range(most.bit_length())) if size % n == 0 and n <= most)

def on_cpu(k: Scheduler, s: Sum) -> Scheduler|str:
  """
  Unrolls a block of weights in the order of x and shares the rows among threads. Returns the reason if it cannot.

  The lanes are rows if memory interleaves them; otherwise lanes.py finds the lanes within the block. Floats then are
  added up for two rows at once. F16, 32128 x 2048, one row of x, 2 threads of a Xeon with AVX-512 in turns: 8.8 -> 6.9
  ms. With 64128 rows and 8 rows of x, F16 28 -> 22 ms, BF16 35 -> 21 ms.
  """
  if (tile := _tile(s)) is not None: return on_tiles(k.copy(), s, tile)
  loop, packed = tokens(k) if is_on("register_tiles") else None, any(_serves(u, s.loops) > 2 for u in s.ws or s.xs)
  loads, unrolled, most = s.xs or s.ws, 1, PERIOD if packed else (2 if loop is not None else 4) * LANES
  in_order = s.strides(loads)
  if len(in_order) < len(s.loops) or next(iter(in_order.values())) != 1: return "no load with stride 1"
  k = k.copy()
  for r, stride in in_order.items():
    if unrolled < LANES and (stride != unrolled or LANES % unrolled): return "fewer neighbours than lanes"
    rest: UOp|None = r
    while rest is not None and unrolled < most and (n := _fits(size(rest), min(most // unrolled, 32))) > 1:
      rest = _unroll(k, rest, n)
      unrolled *= n
    if rest is not None: break
  if unrolled % LANES: return "fewer neighbours than lanes"
  if loop is not None:  # a few tokens and rows share each load, often from a cache: no software prefetch
    k.apply_opt(action(ScheduleOps.PREFETCH, 0))
    k.apply_opt(action(ScheduleOps.TOKENS, min(size(loop), tile_shape(k.ren)[0])))
  shared, sums = sharing(k, s.xs) if loop is None and s.rows is None else None, len(s.reds)
  if shared is not None:
    k.apply_opt(Opt(OptOps.UPCAST, k.rngs.index(shared), 0))
    sums *= size(shared)
  if loop is not None: row, most = next(iter(matrix_rows(k)), None), tile_shape(k.ren)[1] // sums
  else:
    row = s.rows if shared is None else max(matrix_rows(k), key=size, default=None)
    most = 1 if packed or unrolled < STEPS else min(ROWS, registers(k.ren) // 2 // sums)
  rows = getenv("MV_ROWS_PER_THREAD", 1 if row is None else _fits(size(row), max(1, most)))
  if row is not None and rows > 1 and row.src[0].divides(rows) is not None:
    k.apply_opt(Opt(OptOps.UPCAST, k.rngs.index(row), rows))
  share(k, None if loop is None else next(reversed(matrix_rows(k)), None))
  return k

def _serves(load: UOp, loops: Sequence[UOp]) -> int:
  """How many steps of a sum one load serves: two of a word with BF16 weights, all of a small block."""
  return steps([r for r in loops if r not in load.ranges])

def sharing(k: Scheduler, loads: Sequence[UOp]) -> UOp|None:
  """Returns a short output axis of known length that some of the loads lack: its steps share those loads."""
  axes = [r for r in k.ranges_of(AxisType.WEAK) if r.src[0].op is Ops.CONST and size(r) <= SHARED]
  return next((r for r in axes if 0 < sum(r in u.ranges for u in loads) < len(loads)), None)

def _tile(s: Sum) -> UOp|None:
  """Returns the output axis of a row tile: LANES rows whose words lie side by side in memory. None if there is none."""
  return next((r for r in interleaved((*s.ws, *s.xs)) if r not in s.loops), None)

def on_tiles(k: Scheduler, s: Sum, tile: UOp) -> Scheduler:
  """
  Schedules a row tile: unrolls the loops of one block or a few, at least up to STEPS steps.

  Loops over the weights of a word are always unrolled. If a weight's bits come from several loads, all loops of the
  block are unrolled, so that memory is read in order; not if many tokens share the weights. For Q6_K, steps of 2, 4 and
  8 rows by 128256 x 2048 took 15.8, 16.7 and 20.3 ms without that order, 10.4, 10.9 and 17.6 with it (Zen 4, 2 threads,
  medians).
  Weights that a few tokens use once are unpacked in registers, not into an array. 4 and 8 rows by 8192 x 2048, read
  from memory: Q4_K 0.41 -> 0.36 and 0.65 -> 0.60 ms, Q6_K 0.81 -> 0.71 and 0.94 -> 0.63. AVX2 has room for the 32
  weights of a small block only. Time in registers by time with an array, 2, 4 and 8 rows of 4096 x 2048, one core of a
  Zen 5: Q4_K 1.07, 1.25, 1.20, Q5_K 1.18, 1.32, Q2_K 0.99, 1.30 (64 weights a step); Q4_0 0.84, 0.88, 0.93, MXFP4 0.71,
  0.81, 0.70. Without VNNI, a byte of 8 bits takes two products in registers. From an array it is signed and takes one:
  IQ4_NL 1.64, 1.61, 2.03, IQ4_XS 1.46, 1.52, 2.00, Q8_0 1.14, 1.08, 1.23.

  docs/streams.md has times of 2, 4 and 8 rows by one row's. There, one row read 66 GB/s in Q4_K, 35 in MXFP4, 50 in
  Q5_K, 39 in Q2_K, 49 in the others, as the bandwidth of a shared machine moved.
  """
  in_order = s.strides(tuple(u for u in (*s.ws, *s.xs) if tile not in u.ranges))
  loops = sorted(s.loops, key=lambda r: in_order.get(r, 0))
  words = [u for u in (*s.ws, *s.xs) if tile in u.ranges and u in s.reds[0].backward_slice]
  first = next((r for r in loops if any(r in u.ranges for u in words)), None)
  words = [u for u in words if first in u.ranges]
  in_turn = ((loop := tokens(k)) is None or size(loop) <= TOKENS) and len(words) > 1
  inside = set(loops) if in_turn else {r for r in loops if any(r not in u.ranges for u in words)}
  unrolled, enough, blocks = 1, STEPS if loop is None or in_turn else SWEPT, list[UOp]()
  for i, r in enumerate(loops):
    if unrolled * size(r) > PERIOD or unrolled >= enough and not inside.intersection(loops[i:]): break
    blocks.append(r)
    unrolled *= size(r)
  outside = [r for r in k.ranges_of(AxisType.WEAK) if r in k._output_rngs() and r not in (tile, loop)]
  chosen = choosing(interleaved((*s.ws, *s.xs))[tile].src[1].get_idx())
  of_tiles = [r for r in outside if r not in chosen]
  known = all(r.src[0].op is Ops.CONST for r in chosen)  # a few pairs of rows and experts, no prompt's
  # blocks that are left out would leave their threads idle
  shared = max(of_tiles, key=size, default=None) if chosen and known else None
  if loop is not None:
    count = steps(of_tiles)
    of_step, few = min(size(loop), TOKENS), size(loop) <= TOKENS and known
    if few or count * steps([tile, *s.loops]) >= LEAST:
      if is_on("register_tiles"): k.apply_opt(action(ScheduleOps.TOKENS, of_step))
      fits = few and in_registers(k.ren, of_step, unrolled, are_of_7_bits(s, tile))
      if is_on("pack_operands") and not fits:
        k.apply_opt(action(ScheduleOps.TILES, 1 if few else _tiles(k, s, count)))
  k.apply_opt(Opt(OptOps.UPCAST, k.rngs.index(tile), 0))
  for r in blocks: _unroll(k, r, size(r))
  share(k, shared)
  return k

def in_registers(ren: Renderer, of_step: int, weights: int, of_7_bits: bool = True) -> bool:
  """
  Whether a step's weights of each row are unpacked in registers, to be multiplied by the tokens of a step.

  of_7_bits: whether AVX2 multiplies the weights as they are. In an array, others are signed bytes.
  """
  return of_7_bits and weights <= HELD if adds_pairs(ren) else of_step * weights <= SHARING * registers(ren) ** 2

def are_of_7_bits(s: Sum, tile: UOp) -> bool:
  """Whether the integers of a matrix's weights, without their offset, are from 0 to 127."""
  loops = frozenset(s.loops)
  wholes = [whole for red in s.reds for p in frees_a_factor(red.src[0], loops) for f in p
            if {tile, *loops} <= {*f.ranges} and (whole := with_offset(f)[0]) is not None]
  return all(least >= 0 and most < SIGN for least, most in map(bounds, wholes))

def _tiles(k: Scheduler, s: Sum, count: int) -> int:
  """
  Returns how many of `count` row tiles are unpacked together: as many as a cache holds.

  A divisor of a thread's share is preferred if it is more than half of that.
  """
  most = max(1, min(MOST, UNPACKED // (LANES * steps(s.loops) * len(s.reds))))
  of_thread = count // divisor(count, most_threads(k.ren))
  even = divisor(of_thread, most)
  return even if 2 * even > most else most
