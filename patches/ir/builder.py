"""
Fresh loops and arrays: numbers of loops that a graph does not have yet, and slots of the arrays that passes make.

tinygrad orders loops by their numbers and identifies an array by its slot. A pass that adds loops counts on from
`next_loop`. A pass that adds arrays counts on from its own row of `Slot`.
"""
from __future__ import annotations
import itertools
from tinygrad.dtype import AddrSpace, DType, dtypes
from tinygrad.uop.ops import AxisType, Ops, UOp
from tinygrad_llm.patches.ir.targets import LANES

MARK = -1  # second element of a lane loop's arg, which tells it from other loops

def lanes(count: int, id: int, axis_type: AxisType = AxisType.REDUCE) -> UOp:
  """A loop over `count` lanes: the innermost loop of a sum, or a loop that fills an array."""
  return UOp.range(count, id, MARK, axis_type)

def is_lanes(u: UOp) -> bool: return u.op is Ops.RANGE and len(u.arg) > 2 and u.arg[1] == MARK

class Slot:
  """The first slot of each pass's arrays. tinygrad's accumulators count from 0; no kernel has 256 arrays of a kind."""
  SHARED_OPERANDS = 1 << 8
  MMA_TILES = 1 << 9
  HOIST_SUMS = 1 << 10
  HOIST_SCALES = 1 << 11
  HOIST_FACTORS = 1 << 12
  PACK_OPERANDS = 1 << 13

def next_loop(graph: UOp) -> int:
  """The smallest number that is above the numbers of all loops in a graph; 0 for a graph without loops."""
  return max((r.arg[0] for r in graph.toposort() if r.op is Ops.RANGE), default=-1) + 1

class Loops:
  """
  Makes the loops and arrays of a kernel for a CPU, numbered in the order in which they are made: the outermost first.

  of: the graph that the kernel replaces; numbers start after the loops of that graph.
  """
  def __init__(self, of: UOp): self._ids = itertools.count(next_loop(of))
  def range(self, n: UOp|int, kind: AxisType = AxisType.WEAK) -> UOp: return UOp.range(n, next(self._ids), kind)
  def loop(self, n: UOp|int, kind: AxisType = AxisType.WEAK) -> UOp:
    """A loop of n steps; the constant 0 if n is 1."""
    return self.range(n, kind) if not isinstance(n, int) or n > 1 else UOp.const(0)
  def lane(self, n: int = LANES) -> UOp: return lanes(n, next(self._ids), AxisType.WEAK)
  def array(self, n: int, dtype: DType = dtypes.float32) -> UOp:
    return UOp.placeholder((n,), dtype, next(self._ids), AddrSpace.REG)
