"""
What a kernel's sum is a sum of: the dot product of a row of a matrix and x, by what its loads depend on.

`x` is a load that every step of the sum reads, `w` one that also depends on an output axis; the loads below casts, sums
and products are looked at.
"""
from __future__ import annotations
from dataclasses import dataclass
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.expressions import strides

def size(r: UOp) -> int:
  """Steps of a loop."""
  return int(r.vmax) + 1

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
      found = {r: s for r, s in strides(u.src[1].get_idx()).items() if r in self.loops}
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
