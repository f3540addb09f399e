"""
GEMV on a GPU: coalesced 16-byte loads, the threads of a warp share a row. A helper of gemv.py.

Why: what a GPU wants is 16 bytes a thread in one load, a warp's loads side by side, enough threads for all of its
  multiprocessors, and x in registers for several rows. The weights' loops are in the order of the weights; a packed
  matrix has another: fields of a word, words of a plane, blocks.
How: by the strides of the load that brings most of the weights. Loops that it does not follow are inside of a word and
  are unrolled; so are the loops with the smallest strides until they are 16 bytes, and then those in which the weights'
  factors stay the same, so that no two threads unpack one scale. The loops with the next strides are shared by the
  threads of a row, as many as make a warp, also of matrices that lie apart, as experts do whose products are added up;
  what is left is a loop. A thread has the same place in several rows, as many as its registers allow; a group has as
  many rows as make WARPS warps.
  Where that leaves a card's multiprocessors fewer than WARPS_EACH warps each, two warps share a row that takes one of
  them LONG steps, and then a thread has fewer rows.
  MV_THREADS_PER_ROW, MV_BLOCKSIZE (in warps) and MV_ROWS_PER_THREAD override the numbers; a Tile has others, as other
  projects' kernels (search/known_schedules.py).
Numbers: sm_80, 87 and 90, 16 types, shapes of 1B and 8B models: loads of 16 bytes, all bytes of the sectors that
  warps touch are wanted, at most 128 registers, no stack, operations at most 1.09 times those needed,
  0.8 with fields_in_place. Experts of
  qwen3moe, olmoe, deepseek2 and gpt-oss: the same, but 83% of the sectors for rows of 768 weights in Q6_K, of which a
  step of a warp reads 2 of each 32 bytes of factors (tests/gpu/gpu_schedules.py).
  H100, us in a graph of launches, weights cold, without two warps a row and fields_in_place -> with (the best of 24 to
  42 Tiles): 2048 x 8192 in Q4_K 13.0 -> 7.5 (7.4), in Q6_K 13.8 -> 9.7 (8.3); 2048 x 2048 in Q4_K 3.9 -> 3.2 (3.1); a
  head of 128256 x 2048 in Q6_K 103 -> 86 (86); gate and up, 16384 x 2048 in Q4_K, 12.1 -> 10.7 (9.9), 28672 x 4096 35.8
  -> 30.8 (30.5); 4096 x 4096 in Q4_K 7.7 -> 6.8 (6.0), 4096 x 14336 23.3 -> 20.0 (19.8), in Q6_K 32.1 -> 26.1 (24.4).
Upstream: not sent.
"""
from __future__ import annotations
import os
from dataclasses import dataclass, replace
from tinygrad.codegen.opt import KernelOptError, Opt, OptOps
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.dtype import dtypes
from tinygrad.helpers import getenv, prod
from tinygrad.uop.ops import AxisType, Ops, UOp
from tinygrad_llm.patches.ir.indices import size, steps, strides
from tinygrad_llm.patches.ir.products import Sum
from tinygrad_llm.patches.ir.targets import WARP, multiprocessors

MV_NAMES = ("MV_THREADS_PER_ROW", "MV_BLOCKSIZE", "MV_ROWS_PER_THREAD")
THREADS, WARPS, ROWS = 32, 4, 4  # 32/4/4 was best on sm_87 of what GiveThanksAlways/tinygrad tried

BYTES = 16     # of a load
UNROLLED = 32  # steps of a loop at most
SHARED = 64    # weights with the same factors that a thread unpacks in a step at most
VALUES = 256   # weights of all rows that a thread unpacks in a step
NUMBERS = 144  # that a thread holds at the same time: of x, and of each row words, and FACTORS for a group of weights
FACTORS = 4
WARPS_EACH, LONG = 12, 4  # of a multiprocessor, at least; steps of a row that are many

@dataclass(frozen=True)
class Tile:
  """
  Who computes what of a product, as near as its sizes allow. threads: that share a row; warps: as many threads each, of
  a block; rows: of a thread, None: as many as it has registers for; weights: of a row, that a thread unpacks in a step
  at most, where the threads share a block of the matrix before they share the next, None: 16 bytes a load and all that
  have the same factors, where they share what follows in memory.
  """
  threads: int
  warps: int
  rows: int|None = None
  weights: int|None = None

def _default(s: Sum) -> Tile:
  return Tile(getenv(MV_NAMES[0], THREADS), getenv(MV_NAMES[1], WARPS), getenv(MV_NAMES[2], 0) or None)

def _order(s: Sum, u: UOp) -> dict[UOp, int]:
  """The loops that a load follows with a constant stride, ascending. A look-up in a table follows few."""
  found = strides(u.src[1].get_idx())
  return dict(sorted([(r, n) for r, n in found.items() if r in s.loops], key=lambda item: item[1]))

def _changing(s: Sum, piece: set[UOp]) -> set[UOp]:
  """The loops that change the weights' factors: what is computed from weights alone, and alike for some of a piece."""
  values = [u for red in s.reds for u in red.src[0].toposort() if dtypes.is_float(u.dtype) and s.rows in u.ranges]
  return {r for u in values if not (piece and piece <= set(u.ranges))
          and not set(s.xs) & u.backward_slice_with_self.keys() for r in u.ranges}

def _divisor(n: int, most: int) -> int:
  """The largest divisor up to `most`; a power of two if that is not much less: they are exchanged in fewer steps."""
  best = max(d for d in range(1, min(n, most) + 1) if n % d == 0)
  two = max(d for d in (1 << i for i in range(most.bit_length())) if n % d == 0 and d <= most)
  return two if two * 2 > best else best

def _part(k: Scheduler, op: OptOps, r: UOp, amount: int) -> UOp|None:
  """Unrolls `amount` steps of a loop or gives them to as many threads; the rest of the loop, if there is one."""
  axis = k.rngs.index(r)
  axes = k.unrollable_dims if op is OptOps.UNROLL else [i for i, q in enumerate(k.rngs) if q in k.ranges_of(r.arg[-1])]
  k.apply_opt(Opt(op, axes.index(axis), 0 if op is OptOps.UNROLL and amount == size(r) else amount))
  return None if amount == size(r) else r.replace(src=(r.src[0].const_like(size(r) // amount),))

def _rows(s: Sum, unroll: dict[UOp, int], changing: set[UOp]) -> int:
  """How many rows a thread has registers for."""
  values = prod(unroll.values())
  words = sum(prod(n for r, n in unroll.items() if r in u.ranges) for u in s.ws)
  of_row = words + FACTORS * len(s.reds) * prod(n for r, n in unroll.items() if r in changing)
  rows = max(1, ROWS // len(s.reds))
  while rows > 1 and (rows * len(s.reds) * values > VALUES or values + rows * of_row > NUMBERS): rows //= 2
  return rows

def on_gpu(k: Scheduler, s: Sum, tile: Tile|None = None) -> Scheduler|str:
  """Threads of a warp read what follows each other in w, 16 bytes each, and add up a row; or as a tile says."""
  if s.rows is None: return "no axis that only the weight has"
  if s.rows.src[0].op is not Ops.CONST: return "rows of no constant number"
  if tile is not None: return _tiled(k, s, tile)
  made = _tiled(k, s, tile := _default(s))
  if isinstance(made, str) or any(name in os.environ for name in MV_NAMES): return made
  wanted = multiprocessors(k.ren) * WARPS_EACH * WARP
  if _threads(made) < wanted and steps(made.ranges_of(AxisType.REDUCE)) >= LONG:
    tile = replace(tile, threads=2 * tile.threads, warps=max(1, tile.warps // 2))
    made = _better(made, _tiled(k, s, tile))
  while _threads(made) < wanted and (rows := steps(made.ranges_of(AxisType.UPCAST))) > 1:
    if (fewer := _better(made, _tiled(k, s, replace(tile, rows=rows // 2)))) is made: break
    made = fewer
  return made

def _threads(k: Scheduler) -> int:
  """Of all blocks together."""
  return steps(k.ranges_of(AxisType.GLOBAL, AxisType.LOCAL, AxisType.GROUP_REDUCE))

def _better(k: Scheduler, other: Scheduler|str) -> Scheduler:
  """The other, if it is a schedule of more threads."""
  return other if not isinstance(other, str) and _threads(other) > _threads(k) else k

def _tiled(k: Scheduler, s: Sum, tile: Tile) -> Scheduler|str:
  assert s.rows is not None
  main = max(s.ws, key=lambda u: steps(_order(s, u)) * u.dtype.itemsize)  # it brings most bytes
  if not (order := _order(s, main)): return "no constant strides"
  k, unroll = k.copy(), dict[UOp, int]()
  for r in s.loops:
    if r not in main.ranges and size(r) <= UNROLLED and prod(unroll.values()) * size(r) <= (tile.weights or VALUES):
      _part(k, OptOps.UNROLL, r, size(r))
      unroll[r] = size(r)
  together, piece, rest, group = 1, set[UOp](), dict[UOp, UOp](), 1
  for r, stride in order.items():  # neighbours in memory: a load
    left: UOp|None = r
    most = BYTES // main.dtype.itemsize // together
    if tile.weights is not None: most = min(most, max(1, tile.weights // prod(unroll.values())))
    if stride == together and (n := _divisor(size(r), most)) > 1:
      left = _part(k, OptOps.UNROLL, r, n)
      together, unroll[r] = together * n, n
      piece.add(r)
    if left is not None: rest[r] = left
  changing = _changing(s, piece)
  if s.packed:
    for r in [r for r in rest if r not in changing]:
      if prod(unroll.values()) * (n := size(rest[r])) > (tile.weights or SHARED): continue
      _part(k, OptOps.UNROLL, rest.pop(r), n)
      unroll[r] = unroll.get(r, 1) * n
  rest |= {r: r for r in s.loops if r in main.ranges and r not in order}  # from another place in memory each
  if tile.weights is not None:
    in_order = s.strides(s.xs)
    rest = dict(sorted(rest.items(), key=lambda item: in_order.get(item[0], 0)))
  warp = prod(size(r) & -size(r) for r in rest.values()) >= tile.threads  # without odd numbers of threads
  for r in rest.values():  # neighbours of those: a warp
    if (n := _divisor(size(r) & -size(r) if warp else size(r), tile.threads // group)) <= 1: continue
    # those that make a warp full are a range of their own: they exchange what they have
    inside = n if group * n <= WARP or (full := WARP // group) <= 1 or n % full else full
    try:
      left = _part(k, OptOps.GROUP, r, inside)
      if n > inside and left is not None: _part(k, OptOps.GROUP, left, n // inside)
    except KernelOptError: break
    group *= n
  rows, per_thread = size(s.rows), tile.rows or _rows(s, unroll, changing)
  while rows % per_thread: per_thread -= 1
  block = _divisor(rows // per_thread, max(1, tile.warps * tile.threads // group))
  row = s.rows
  if block > 1:
    k.apply_opt(Opt(OptOps.LOCAL, k.rngs.index(row), block))
    row = row.replace(src=(row.src[0].const_like(rows // block),))
  if per_thread > 1 and row in k.rngs: k.apply_opt(Opt(OptOps.UPCAST, k.rngs.index(row), per_thread))
  return k
