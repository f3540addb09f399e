"""
A loop has one end: of sums over a, and over a and b, each has an a of its own, and so have sums inside and outside of
another loop. A GPU's thread is no loop: sums that differ in threads alone share their loops.
"""
from __future__ import annotations
from tinygrad.uop.ops import AxisType, Ops, UOp
from tinygrad_llm.patches.ir.builder import next_loop

NO_LOOPS = (AxisType.UNROLL, AxisType.UPCAST, AxisType.GLOBAL, AxisType.LOCAL, AxisType.WARP, AxisType.GROUP_REDUCE)

def _ends(red: UOp) -> dict[UOp, tuple[UOp, ...]]:
  """Of a sum's loops: those that end with it, then those that it is inside of. Of a group's threads: all of them."""
  loops, order = [r for r in red.src[1:] if r.op is Ops.RANGE], lambda r: r.arg
  threads = tuple(sorted((r for r in loops if r.arg[-1] is AxisType.GROUP_REDUCE), key=order))
  end = tuple(r for r in (*loops, *sorted(red.ranges, key=order)) if r.arg[-1] not in NO_LOOPS)
  return dict.fromkeys(threads, threads) | {r: end for r in loops if r in end}

def split_loops(sink: UOp) -> UOp:
  """Where a loop would end a second time, and not in the same place as the first time, it becomes a new one."""
  ends: dict[UOp, tuple[UOp, ...]] = {}
  sums = [u for u in sink.toposort() if u.op is Ops.REDUCE]
  for red in sums:
    if not (again := [r for r, end in _ends(red).items() if ends.setdefault(r, end) != end]): continue
    first = next_loop(sink)
    new = {r: r.replace(arg=(first + i, *r.arg[1:])) for i, r in enumerate(again)}
    return split_loops(sink.substitute({u: u.substitute(new) for u in sums if _ends(u) == _ends(red)}))
  return sink
