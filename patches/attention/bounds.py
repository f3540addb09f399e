"""The positions that causal masks and windows leave to a query. Used by part.py and flash_decoding.py."""
from __future__ import annotations
import math
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.ir.sums import added

def visible(score: UOp, position: UOp) -> tuple[UOp|None, UOp|None]:
  """The first and the last position whose score no mask sets to -infinity; None: no bound."""
  ends: list[UOp|None] = [None, None]
  for u in score.toposort():
    if u.op is not Ops.WHERE or u.src[1].op is not Ops.CONST or u.src[1].val != -math.inf: continue
    for hidden in u.src[0].split_uop(Ops.OR):
      is_first = hidden.op is Ops.CMPNE and hidden.src[1].op is Ops.CONST and hidden.src[1].val is True
      if is_first: hidden = hidden.src[0]  # not (a < position): a is before the first
      if hidden.op is not Ops.CMPLT or (at := _before(hidden.src[0], hidden.src[1], position)) is None: continue
      ends[not is_first] = at + 1 if is_first else at
  return ends[0], ends[1]

def _before(a: UOp, b: UOp, position: UOp) -> UOp|None:
  """In a < b, the value that is less than the position; None if a < b is no such comparison."""
  left, right = _index(a), _index(b)
  if left is None or right is None or position in left.ranges: return None
  rest = [t for t in right.split_uop(Ops.ADD) if t is not position]
  if len(rest) == len(list(right.split_uop(Ops.ADD))) or any(position in t.ranges for t in rest): return None
  return left - added(rest) if rest else left

def _index(u: UOp) -> UOp|None:
  """An integer sum as an index expression; None if it is neither an index, nor a load, nor a sum."""
  if u.op is Ops.CAST: return _index(u.src[0])
  if u.op is Ops.CONST: return UOp.const(int(u.val))
  if u.dtype is dtypes.weakint: return u
  if u.op is Ops.INDEX: return u.cast(dtypes.weakint)
  if u.op is not Ops.ADD or (a := _index(u.src[0])) is None or (b := _index(u.src[1])) is None: return None
  return a + b
