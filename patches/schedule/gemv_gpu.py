"""
GEMV on a GPU: coalesced 16-byte loads; the threads of a warp share a row. A helper of gemv.py.

Why: a GPU needs 16-byte loads that a warp coalesces, enough threads for all multiprocessors, and x in registers for
  several rows. The kernel's loops count weights in the order of x. A packed matrix has another order in memory: fields
  of a word, words of a plane, blocks.
How: the strides of the load that brings most of the weights' bytes decide. Loops that this load does not follow are
  inside of a word and are unrolled. Loops with the smallest strides are unrolled until they are 16 bytes. Next come
  loops in which the weights' factors stay the same, so that no two threads unpack the same scale.
  The threads of a row share the loops with the next strides until they make a warp. These loops may also be over
  matrices that lie apart, such as experts whose products are added up. The remaining steps are a loop.
  A thread has the same place in several rows, as many as its registers allow. A block has as many rows as make WARPS
  warps. If a card's multiprocessors get fewer than WARPS_EACH warps each, two warps share a row that takes one warp
  LONG steps; if they still do, a thread has fewer rows.
  A step of several sequences has as many rows of x. A thread multiplies its weights by up to SHARING of them, and takes
  fewer weights at a time; threads of the same block take the rest. Up to four warps share a long row.
  MV_THREADS_PER_ROW, MV_BLOCKSIZE (in warps) and MV_ROWS_PER_THREAD override the numbers. A Tile sets others, such as
  the numbers of other projects' kernels (search/known_schedules.py).
Numbers: sm_80, 87 and 90, 16 types, shapes of 1B and 8B models: every load has 16 bytes, and warps use every byte of
  the sectors that they touch. Kernels have at most 128 registers and no stack. Operations are at most 1.09 times the
  needed ones, 0.8 with fields_in_place. Experts of qwen3moe, olmoe, deepseek2 and gpt-oss are the same, with one
  exception: rows of 768 weights in Q6_K use 83% of the sectors. A warp's step reads 2 of each 32 bytes of their factors
  (tests/gpu/gpu_schedules.py).
  H100, us in a graph of launches, weights cold, without two warps a row and fields_in_place -> with (the best of 24 to
  42 Tiles). Q4_K: 2048 x 8192 13.0 -> 7.5 (7.4), 2048 x 2048 3.9 -> 3.2 (3.1), 4096 x 4096 7.7 -> 6.8 (6.0),
  4096 x 14336 23.3 -> 20.0 (19.8), gate and up of 16384 x 2048 12.1 -> 10.7 (9.9), of 28672 x 4096 35.8 -> 30.8 (30.5).
  Q6_K: 2048 x 8192 13.8 -> 9.7 (8.3), 4096 x 14336 32.1 -> 26.1 (24.4), a head of 128256 x 2048 103 -> 86 (86).
  Several rows of x are not timed. Estimates for an H100, us, 1, 2, 4 and 8 rows by 2048 x 8192: Q4_K 7, 10, 22, 42,
  Q6_K 9, 10, 21, 40; tinygrad's own schedule of 8 rows: 614 and 729. Q2_K and Q3_K have a stack (80, 120 bytes).
Upstream: not sent; there, its matvec heuristic could accept casts, nested products and packed words.
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
THREADS, WARPS, ROWS = 32, 4, 4  # GiveThanksAlways/tinygrad tried several settings on sm_87: 32/4/4 was best

BYTES = 16     # per load
UNROLLED = 32  # longest loop within a word to unroll
SHARED = 64    # most weights with the same factors that a thread unpacks per step
VALUES = 256   # most weights, of all its rows, that a thread unpacks per step
NUMBERS = 144  # most values live in a thread: x, and for each row its words and FACTORS per group of weights
NUMBERS_SHARED = 160  # the same where several rows of x share few weights
FACTORS = 4
TOKENS, SHARING = 8, 4  # most rows of x, and most of them that share the weights in a thread's registers
OF_ALL = 32    # most weights of a row that a thread unpacks per step, times the rows of x that share them
WARPS_EACH, LONG = 12, 4  # least warps per multiprocessor; steps from which a row is long

@dataclass(frozen=True)
class Tile:
  """
  How threads divide a product; a schedule comes as near to it as the product's sizes allow.

  - threads: threads that share a row
  - warps: groups of so many threads in a block
  - rows: rows per thread; None: as many as registers allow
  - weights: most weights of a row that a thread unpacks per step. The threads then share one block of the matrix before
    they share the next. None: 16 bytes per load and all weights with the same factors. The threads then share what
    follows in memory.
  """
  threads: int
  warps: int
  rows: int|None = None
  weights: int|None = None

def _default(s: Sum) -> Tile:
  weights = OF_ALL // n if (n := _sharing(s)) > 1 else None
  return Tile(getenv(MV_NAMES[0], THREADS), getenv(MV_NAMES[1], WARPS), getenv(MV_NAMES[2], 0) or None, weights)

def _sharing(s: Sum) -> int:
  """Returns how many rows of x share the weights in a thread's registers."""
  return _divisor(steps(s.tokens), SHARING)

def _order(s: Sum, u: UOp) -> dict[UOp, int]:
  """Returns the loops that a load follows with a constant stride, ascending. A table look-up follows few."""
  found = strides(u.src[1].get_idx())
  return dict(sorted([(r, n) for r, n in found.items() if r in s.loops], key=lambda item: item[1]))

def _changing(s: Sum, piece: set[UOp]) -> set[UOp]:
  """
  Returns the loops that change the weights' factors, such as scales.

  A factor is a float that is computed from weights alone and is the same for some of a piece's weights. piece: the
  loops of one load.
  """
  values = [u for red in s.reds for u in red.src[0].toposort() if dtypes.is_float(u.dtype) and s.rows in u.ranges]
  return {r for u in values if not (piece and piece <= set(u.ranges))
          and not set(s.xs) & u.backward_slice_with_self.keys() for r in u.ranges}

def _divisor(n: int, most: int) -> int:
  """
  Returns the largest divisor of n up to `most`, or a power of two if that is more than half of it.

  Powers of two are reduced across threads in fewer steps.
  """
  best = max(d for d in range(1, min(n, most) + 1) if n % d == 0)
  two = max(d for d in (1 << i for i in range(most.bit_length())) if n % d == 0 and d <= most)
  return two if two * 2 > best else best

def _part(k: Scheduler, op: OptOps, r: UOp, amount: int) -> UOp|None:
  """Unrolls `amount` steps of a loop, or gives them to as many threads. Returns the rest of the loop, or None."""
  axis = k.rngs.index(r)
  axes = k.unrollable_dims if op is OptOps.UNROLL else [i for i, q in enumerate(k.rngs) if q in k.ranges_of(r.arg[-1])]
  k.apply_opt(Opt(op, axes.index(axis), 0 if op is OptOps.UNROLL and amount == size(r) else amount))
  return None if amount == size(r) else r.replace(src=(r.src[0].const_like(size(r) // amount),))

def _rows(s: Sum, unroll: dict[UOp, int], changing: set[UOp]) -> int:
  """Returns the number of rows that a thread has registers for. One at a time, the rows of x are multiplied."""
  values = prod(unroll.values())
  words = sum(prod(n for r, n in unroll.items() if r in u.ranges) for u in s.ws)
  of_row = words + FACTORS * len(s.reds) * prod(n for r, n in unroll.items() if r in changing)
  rows, most = max(1, ROWS // len(s.reds)), NUMBERS_SHARED if s.tokens else NUMBERS
  while rows > 1 and (rows * len(s.reds) * values > VALUES or values + rows * of_row > most): rows //= 2
  return rows

def on_gpu(k: Scheduler, s: Sum, tile: Tile|None = None) -> Scheduler|str:
  """
  Threads of a warp read neighbouring 16 bytes of w and reduce a row together. tile: divides the product otherwise.

  Returns the reason if the kernel cannot be scheduled so.
  """
  if s.rows is None: return "no axis that only the weight has"
  if s.rows.src[0].op is not Ops.CONST: return "a symbolic number of rows"
  if tile is not None: return _tiled(k, s, tile)
  made = _tiled(k, s, tile := _default(s))
  if isinstance(made, str) or any(name in os.environ for name in MV_NAMES): return made
  wanted = multiprocessors(k.ren) * WARPS_EACH * WARP
  for _ in range(2 if s.tokens else 1):
    if _threads(made) >= wanted or steps(made.ranges_of(AxisType.REDUCE)) < LONG: break
    tile = replace(tile, threads=2 * tile.threads, warps=max(1, tile.warps // 2))
    made = _better(made, _tiled(k, s, tile))
  while not s.tokens and _threads(made) < wanted and (rows := steps(made.ranges_of(AxisType.UPCAST))) > 1:
    if (fewer := _better(made, _tiled(k, s, replace(tile, rows=rows // 2)))) is made: break
    made = fewer
  return made

def _threads(k: Scheduler) -> int:
  """Returns the number of threads of all blocks together."""
  return steps(k.ranges_of(AxisType.GLOBAL, AxisType.LOCAL, AxisType.GROUP_REDUCE))

def _better(k: Scheduler, other: Scheduler|str) -> Scheduler:
  """Returns `other` if it is a schedule with more threads, else k."""
  return other if not isinstance(other, str) and _threads(other) > _threads(k) else k

def _tiled(k: Scheduler, s: Sum, tile: Tile) -> Scheduler|str:
  assert s.rows is not None
  main = max(s.ws, key=lambda u: steps(_order(s, u)) * u.dtype.itemsize)  # brings most bytes
  if not (order := _order(s, main)): return "no constant strides"
  k, unroll = k.copy(), dict[UOp, int]()
  for r in s.loops:
    if r not in main.ranges and size(r) <= UNROLLED and prod(unroll.values()) * size(r) <= (tile.weights or VALUES):
      _part(k, OptOps.UNROLL, r, size(r))
      unroll[r] = size(r)
  together, piece, rest, group = 1, set[UOp](), dict[UOp, UOp](), 1
  for r, stride in order.items():  # neighbours in memory: one load
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
  rest |= {r: r for r in s.loops if r in main.ranges and r not in order}  # no constant stride
  if tile.weights is not None:
    in_order = s.strides(s.xs)
    rest = dict(sorted(rest.items(), key=lambda item: in_order.get(item[0], 0)))
  warp = prod(size(r) & -size(r) for r in rest.values()) >= tile.threads  # powers of two are enough
  for r in rest.values():  # the next strides: the threads of a warp
    if (n := _divisor(size(r) & -size(r) if warp else size(r), tile.threads // group)) <= 1: continue
    # threads of one warp get a range of their own: they exchange their partial sums
    inside = n if group * n <= WARP or (full := WARP // group) <= 1 or n % full else full
    try:
      left = _part(k, OptOps.GROUP, r, inside)
      if n > inside and left is not None: _part(k, OptOps.GROUP, left, n // inside)
    except KernelOptError: break
    group *= n
  rows, per_thread = size(s.rows), tile.rows or _rows(s, unroll, changing)
  while rows % per_thread: per_thread -= 1
  n = _sharing(s)
  block = _divisor(rows // per_thread, max(1, tile.warps * tile.threads // (group * (steps(s.tokens) // n))))
  row = s.rows
  if block > 1:
    k.apply_opt(Opt(OptOps.LOCAL, k.rngs.index(row), block))
    row = row.replace(src=(row.src[0].const_like(rows // block),))
  if per_thread > 1 and row in k.rngs: k.apply_opt(Opt(OptOps.UPCAST, k.rngs.index(row), per_thread))
  for token in s.tokens:
    held = _divisor(size(token), n)
    n //= held
    if (apart := size(token) // held) > 1:
      k.apply_opt(Opt(OptOps.LOCAL, k.rngs.index(token), apart))
      token = token.replace(src=(token.src[0].const_like(held),))
    if held > 1: k.apply_opt(Opt(OptOps.UPCAST, k.rngs.index(token), 0))
  return k
