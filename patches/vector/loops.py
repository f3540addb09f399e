"""
Loops and arrays of a kernel that is written for a CPU, numbered in the order in which they are made: the outermost loop
first. For attention/, amx.py and epilogues.py.
"""
from __future__ import annotations
import itertools
from tinygrad.dtype import AddrSpace, DType, dtypes
from tinygrad.uop.ops import AxisType, Ops, UOp
from tinygrad_llm.patches.vector.lanes import LANES
from tinygrad_llm.patches.vector.vectorizer import lanes

class Loops:
  """Those that are made for a graph, whose own loops have the numbers before."""
  def __init__(self, of: UOp):
    self._ids = itertools.count(max(r.arg[0] for r in of.toposort() if r.op is Ops.RANGE) + 1)
  def range(self, n: UOp|int, kind: AxisType = AxisType.WEAK) -> UOp: return UOp.range(n, next(self._ids), kind)
  def loop(self, n: UOp|int, kind: AxisType = AxisType.WEAK) -> UOp:
    """A loop, or 0 if that is all that it counts."""
    return self.range(n, kind) if not isinstance(n, int) or n > 1 else UOp.const(0)
  def lane(self) -> UOp: return lanes(LANES, next(self._ids), AxisType.WEAK)
  def array(self, n: int, dtype: DType = dtypes.float32) -> UOp:
    return UOp.placeholder((n,), dtype, next(self._ids), AddrSpace.REG)
