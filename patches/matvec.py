"""
A schedule for matrix-vector products, whatever their weights are made of.

Why: tinygrad's rule wants reduce(a[..] * b[..]). It never fires on a weight that is half, quantised, or multiplied by a
  norm: reduce(cast(a * b)), a * (b * c), a * (d * q - m).
How: `x` is a load that every step of the sum reads, `w` one that also depends on an output axis; the loads below casts,
  sums and products are looked at. On a GPU threads share a row, see matvec_gpu.py. On the CPU, the loops of a block of
  weights are unrolled, and 16 rows if they lie side by side: lanes.py makes vectors of them. MV_THREADS_PER_ROW,
  MV_BLOCKSIZE and MV_ROWS_PER_THREAD override the defaults; the CPU has only the last, for rows that are not
  interleaved.
Numbers: 8192 x 2048, one core, GB/s: Q4_K 1.1 -> 8.9, Q6_K 0.7 -> 8.2, Q8_0 1.9 -> 17, MXFP4 1.0 -> 8.5 (Zen 4,
  AVX-512, medians, all other patches on)
Upstream: not sent.
"""
from __future__ import annotations
from collections.abc import Sequence
from dataclasses import dataclass
from tinygrad.codegen.opt import Opt, OptOps, heuristic
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.dtype import dtypes
from tinygrad.helpers import DEBUG, getenv, prod
from tinygrad.uop.ops import AxisType, Ops, UOp, resolve
from tinygrad_llm.patches import lanes
from tinygrad_llm.patches.columns import on_columns
from tinygrad_llm.patches.lanes import LANES
from tinygrad_llm.patches.matvec_gpu import on_gpu
from tinygrad_llm.patches.vectors import has_vectors

SEAMS = {
  "tinygrad.codegen.opt.heuristic:hand_coded_optimizations": "0fe425ff3d3b",
  "tinygrad.codegen.opt.postrange:Scheduler": "35256edac7fb",
}

PERIOD = 256    # weights unrolled at most, a block of the largest formats
SHARED = 4      # steps of an output axis at once, where they share loads
STEPS = 64      # unrolled at least, where rows are lanes
WORK = 1 << 15  # products a thread should have at least

_stock = heuristic.hand_coded_optimizations

@dataclass(frozen=True)
class Sum:
  """A sum of products: its loops, the loads that depend on no output axis of `rows`, and those that do."""
  loops: tuple[UOp, ...]
  xs: tuple[UOp, ...]
  ws: tuple[UOp, ...]
  rows: UOp|None  # an output axis of ws alone

  @property
  def packed(self) -> bool:
    """Whether a load serves several steps of the sum."""
    return any(not set(self.loops) <= set(u.ranges) for u in self.ws)

  def strides(self, of: tuple[UOp, ...]) -> dict[UOp, int]:
    """The loops with a constant stride in the load that has most of them, ascending."""
    best: dict[UOp, int] = {}
    for u in of:
      found = {r: s for r, s in lanes.strides(u.src[1].get_idx()).items() if r in self.loops}
      if len(found) > len(best): best = found
    return dict(sorted(best.items(), key=lambda item: item[1]))

def find_sum(k: Scheduler) -> Sum|str:
  """The kernel's sum, or why there is none to schedule."""
  if len(reduces := k.reduceops) != 1 or reduces[0].arg[0] is not Ops.ADD: return "not one sum"
  red = reduces[0]
  if not dtypes.is_float(red.dtype): return "not a sum of floats"
  if not all(r.op is Ops.RANGE and r.src[0].op is Ops.CONST for r in red.src[1:]): return "a loop of no constant length"
  loops, loads = set(red.src[1:]), [u for u in red.src[0].toposort() if u.op is Ops.INDEX and u.src[0].op is Ops.PARAM]
  for row in sorted(set(red.ranges), key=lambda r: -r.vmax):
    ws = tuple(u for u in loads if row in u.ranges)
    xs = tuple(u for u in loads if row not in u.ranges)
    of_x, of_w = ({r for u in loads for r in u.ranges} for loads in (xs, ws))
    if ws and loops & (of_x | of_w) <= of_x and of_x < of_w | loops:  # loops of no load: over fields of a word of x
      return Sum(tuple(red.src[1:]), xs, ws, row)
  return Sum(tuple(red.src[1:]), tuple(loads), (), None)

def _size(r: UOp) -> int: return int(r.vmax) + 1

def _unroll(k: Scheduler, r: UOp, amount: int) -> UOp|None:
  """Unrolls `amount` steps of a loop; the rest of it, if there is one."""
  size = r.vmax + 1
  k.apply_opt(Opt(OptOps.UNROLL, k.unrollable_dims.index(k.rngs.index(r)), 0 if amount == size else amount))
  return None if amount == size else r.replace(src=(r.src[0].const_like(size // amount),))

def _fits(size: int, most: int) -> int:
  """The largest power of two that divides size, or size itself, up to `most`."""
  if size <= most: return size
  return max(n for n in (2 ** i for i in range(most.bit_length())) if size % n == 0 and n <= most)

def on_cpu(k: Scheduler, s: Sum) -> Scheduler|str:
  """
  Unrolls a block of weights in the order of x; threads share the rows. The lanes are rows if memory interleaves them,
  else lanes.py finds them in the block.
  """
  if (tile := _tile(s)) is not None: return on_tiles(k.copy(), s, tile)
  loads, unrolled, most = s.xs or s.ws, 1, PERIOD if s.packed else 4 * LANES
  in_order = s.strides(loads)
  if len(in_order) < len(s.loops) or next(iter(in_order.values())) != 1: return "no load with stride 1"
  k = k.copy()
  for r, stride in in_order.items():
    if unrolled < LANES and (stride != unrolled or LANES % unrolled): return "fewer neighbours than lanes"
    rest: UOp|None = r
    while rest is not None and unrolled < most and (n := _fits(_size(rest), min(most // unrolled, 32))) > 1:
      rest = _unroll(k, rest, n)
      unrolled *= n
    if rest is not None: break
  if unrolled % LANES: return "fewer neighbours than lanes"
  rows = getenv("MV_ROWS_PER_THREAD", 1)
  if s.rows is not None and rows > 1 and s.rows.src[0].divides(rows) is not None:
    k.apply_opt(Opt(OptOps.UPCAST, k.rngs.index(s.rows), rows))
  if s.rows is None and (shared := sharing(k, s.xs)) is not None:
    k.apply_opt(Opt(OptOps.UPCAST, k.rngs.index(shared), _fits(_size(shared), SHARED)))
  share(k)
  return k

def sharing(k: Scheduler, loads: Sequence[UOp]) -> UOp|None:
  """An output axis of known length that some of the loads do not have: its steps share what those load."""
  axes = [r for r in k.ranges_of(AxisType.WEAK) if r.src[0].op is Ops.CONST and _size(r) <= 2 * SHARED]
  return next((r for r in axes if 0 < sum(r in u.ranges for u in loads) < len(loads) and _fits(_size(r), SHARED) > 1),
              None)

def _tile(s: Sum) -> UOp|None:
  """The output axis of as many rows as there are lanes, whose words lie side by side."""
  return next((r for r in lanes.side_by_side((*s.ws, *s.xs)) if r not in s.loops), None)

def on_tiles(k: Scheduler, s: Sum, tile: UOp) -> Scheduler:
  """
  Unrolls the loops of a block, or of a few, at least up to STEPS: those over the weights of a word in any case, and all
  where a weight's bits come from several places, for these to be read in order.
  """
  in_order = s.strides(tuple(u for u in (*s.ws, *s.xs) if tile not in u.ranges))
  loops = sorted(s.loops, key=lambda r: in_order.get(r, 0))
  words = [u for u in (*s.ws, *s.xs) if tile in u.ranges]
  first = next((r for r in loops if any(r in u.ranges for u in words)), None)
  words = [u for u in words if first in u.ranges]
  inside = {r for r in loops if r not in words[0].ranges} if len(words) == 1 else set(loops)
  k.apply_opt(Opt(OptOps.UPCAST, k.rngs.index(tile), 0))
  unrolled = 1
  for i, r in enumerate(loops):
    if unrolled * _size(r) > PERIOD or unrolled >= STEPS and not inside.intersection(loops[i:]): break
    _unroll(k, r, _size(r))
    unrolled *= _size(r)
  share(k)
  return k

def share(k: Scheduler) -> None:
  """Threads share the longest output axis, if there is enough to do."""
  most = k.ren.global_max[0] if k.ren.has_threads and k.ren.global_max else 1
  outer = k._globalizable_rngs()
  axes = [a for a in k.axes_of(AxisType.WEAK) if isinstance(k.full_shape[a], int) and k.rngs[a] in outer]
  axes.sort(key=lambda a: -k.full_shape[a])
  work = prod(k.full_shape)
  for threads in range(most, 1, -1):
    for axis in axes:
      if k.full_shape[axis] % threads == 0 and resolve(work >= threads * WORK, True):
        return k.apply_opt(Opt(OptOps.THREAD, axis, threads))

def hand_coded_optimizations(k: Scheduler) -> Scheduler:
  if getenv("MV", 1) == 0 or not (has_vectors(k.ren) or k.ren.has_local and k.ren.has_shared): return _stock(k)
  found = find_sum(k)
  made = found if isinstance(found, str) else (on_cpu if has_vectors(k.ren) else on_gpu)(k, found)
  if isinstance(made, str) and has_vectors(k.ren) and (columns := on_columns(k)) is not None:
    share(made := columns)
  if DEBUG >= 3: print(f"MATVEC: {k.colored_shape()}: {made if isinstance(made, str) else made.applied_opts}")
  return _stock(k) if isinstance(made, str) else made

def install() -> None: heuristic.hand_coded_optimizations = hand_coded_optimizations
