"""
Factor materialisation: an expensive factor that many terms of a sum share is stored, not computed again for each.

Why: tinygrad fuses elementwise code into every kernel that reads it, however often it is read. A rotated query would be
  rotated again for each position that it is compared with.
How: a factor of a summed product becomes a kernel of its own on two conditions. At least REPEATS terms share it, and an
  element of it takes more than OPERATIONS float operations, which is about what a store and a load cost. Factors with
  sums in them stay. So do factors that read integers: these are packed weights, which are never stored.
Rewrite:
  sum k: w[n, k] * f(x[k]) for each of many n, f of many operations
  --> t[k] = f(x[k]); sum k: w[n, k] * t[k]
Numbers: scores of 512 tokens of a 1B model, operations a product 9 -> 2; a decode step has no such factor
  (flash_decoding.py keeps its queries in shared memory).
Upstream: not sent; there, a part of remove_bufferize.
"""
from __future__ import annotations
from tinygrad.dtype import dtypes
from tinygrad.helpers import prod
from tinygrad.schedule import rangeify
from tinygrad.schedule.indexing import BufferizeOpts
from tinygrad.uop.ops import AxisType, GroupOp, Ops, PatternMatcher, UOp, UPat
from tinygrad_llm.patches import places
from tinygrad_llm.patches.hooks import PARTS
from tinygrad_llm.patches.ir.builder import next_loop

SEAMS = {
  "tinygrad.schedule.rangeify:get_kernel_graph": "410b0e3486ef",
  "tinygrad.schedule.rangeify:pm_limit_bufs": "46f09b443c11",
  "tinygrad.schedule.indexing:BufferizeOpts": "e931bd7ff25e",
}

OPERATIONS = 4
REPEATS = 16  # least number of terms that share a factor

def _inside(u: UOp) -> bool: return u.op not in (Ops.STAGE, Ops.AFTER)

def _operations(factor: UOp) -> int:
  """Float operations for one element of a factor; 0 if the factor must not be stored."""
  ops = factor.toposort(_inside)
  if any(u.op is Ops.REDUCE or u.op is Ops.INDEX and dtypes.is_int(u.dtype) for u in ops): return 0
  return sum(u.op in GroupOp.ALU and dtypes.is_float(u.dtype) for u in ops)

def _repeats(total: UOp, factor: UOp) -> int:
  return prod(int(r.vmax) + 1 for r in total.src[0].ranges if r not in factor.ranges)

def store(sink: UOp) -> UOp|None:
  subs, first = dict[UOp, UOp](), next_loop(sink)
  for total in sink.toposort(lambda u: u.op is not Ops.STAGE or u.tag != PARTS):
    if total.op is not Ops.REDUCE or total.arg != (Ops.ADD, 0) or not dtypes.is_float(total.dtype): continue
    for factor in total.src[0].split_uop(Ops.MUL):
      if factor.op in (Ops.INDEX, Ops.CONST) or not factor.ranges or factor in subs: continue
      if _operations(factor) <= OPERATIONS or _repeats(total, factor) < REPEATS: continue
      loops = sorted(factor.ranges, key=lambda r: r.arg)
      own = [r.replace(arg=(first + i, AxisType.WEAK)) for i, r in enumerate(loops)]  # the sum may use the same loops
      first += len(own)
      stored = UOp(Ops.STAGE, src=(factor.substitute(dict(zip(loops, own)), walk=True), *own),
                   arg=BufferizeOpts(factor.device, removable=False))
      subs[factor] = stored.index(*loops)
  return sink.substitute(subs, walk=True) if subs else None

pm_store = PatternMatcher([(UPat(Ops.SINK, name="sink"), store)])

def install() -> None: places.rules(rangeify, "pm_limit_bufs", pm_store)
