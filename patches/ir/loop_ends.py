"""
Loop ends: a RANGE may be closed by only one END, so reductions nested differently get their own copy of a shared range.

Examples are a sum over a beside a sum over a and b, and sums inside and outside of another loop. GPU thread axes are
not loops: reductions that differ only in them share the END.
"""
from __future__ import annotations
from tinygrad.uop.ops import AxisType, Ops, UOp
from tinygrad_llm.patches.ir.builder import next_loop

NO_LOOPS = (AxisType.UNROLL, AxisType.UPCAST, AxisType.GLOBAL, AxisType.LOCAL, AxisType.WARP, AxisType.GROUP_REDUCE)

def _ends(red: UOp) -> dict[UOp, tuple[UOp, ...]]:
  """
  {loop of a reduction: the place where it ends}.

  The place is named by the loops that end with the reduction, then the loops around it. For the threads of a group, the
  place is all threads of the group.
  """
  loops, order = [r for r in red.src[1:] if r.op is Ops.RANGE], lambda r: r.arg
  threads = tuple(sorted((r for r in loops if r.arg[-1] is AxisType.GROUP_REDUCE), key=order))
  end = tuple(r for r in (*loops, *sorted(red.ranges, key=order)) if r.arg[-1] not in NO_LOOPS)
  return dict.fromkeys(threads, threads) | {r: end for r in loops if r in end}

def split_loops(sink: UOp) -> UOp:
  """Gives a reduction its own copy of each loop that another reduction ends in another place."""
  ends: dict[UOp, tuple[UOp, ...]] = {}
  sums = [u for u in sink.toposort() if u.op is Ops.REDUCE]
  for red in sums:
    if not (again := [r for r, end in _ends(red).items() if ends.setdefault(r, end) != end]): continue
    first = next_loop(sink)
    new = {r: r.replace(arg=(first + i, *r.arg[1:])) for i, r in enumerate(again)}
    return split_loops(sink.substitute({u: u.substitute(new) for u in sums if _ends(u) == _ends(red)}))
  return sink
