"""Register pressure of a linear program: the bytes of vectors that are live at once, in the order of rendering."""
from __future__ import annotations
from collections.abc import Sequence
from tinygrad.dtype import AddrSpace
from tinygrad.uop.ops import Ops, UOp

VECTOR = 16  # bytes of the smallest value that counts: a 128-bit register
NO_VALUE = frozenset({Ops.CONST, Ops.PARAM, Ops.RANGE, Ops.END, Ops.STORE, Ops.SINK, Ops.AFTER, Ops.INDEX, Ops.SHRINK,
                      Ops.NOOP, Ops.GROUP, Ops.IF, Ops.ENDIF, Ops.BARRIER})

def _nbytes(u: UOp) -> int:
  """Bytes of a vector value or of an array in registers; 0 for anything else."""
  if u.op is Ops.BUFFER: return u.max_numel() * u.dtype.itemsize if u.addrspace is AddrSpace.REG else 0
  if u.op in NO_VALUE or u._shape is None or all(s.op is Ops.CONST for s in u.src) and u.op is Ops.STACK: return 0
  size = u.max_numel() * u.dtype.itemsize
  return size if size >= VECTOR else 0

def most_alive(ops: Sequence[UOp]) -> int:
  """
  The most bytes of vectors that are live at once. ops: the operations of a linear program, in order.

  A live range goes from the operation to its last use. A value from before a loop that is used inside lives to the
  loop's end. Arrays in registers count; constants, addresses and scalars do not.
  """
  at = {u: i for i, u in enumerate(ops)}
  loops = _loops(ops, at)
  ends = dict[UOp, int]()
  for i, u in enumerate(ops):
    for s in u.src:
      while s.op in (Ops.AFTER, Ops.INDEX, Ops.SHRINK) and s.src: s = s.src[0]  # the value that it refers to
      if s not in at: continue
      around = [end for begin, end in loops if at[s] < begin < i <= end]
      ends[s] = max(ends.get(s, 0), i, *around)
  changes = [0] * (len(ops) + 1)
  for u, end in ends.items():
    changes[at[u]] += (size := _nbytes(u))
    changes[end] -= size
  most = alive = 0
  for change in changes: most = max(most, alive := alive + change)
  return most

def _loops(ops: Sequence[UOp], at: dict[UOp, int]) -> list[tuple[int, int]]:
  """The first and the last operation of each loop."""
  return [(at[r], i) for i, u in enumerate(ops) if u.op is Ops.END for r in u.src if r.op is Ops.RANGE and r in at]
