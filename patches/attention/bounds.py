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
      negated = hidden.op is Ops.CMPNE and hidden.src[1].op is Ops.CONST and hidden.src[1].val is True
      if negated: hidden = hidden.src[0]
      if hidden.op is not Ops.CMPLT: continue
      a, b = hidden.src
      if (at := _other(a, b, position)) is not None: ends[not negated] = at + 1 if negated else at  # at < position
      elif (at := _other(b, a, position)) is not None: ends[negated] = at - 1 if negated else at    # position < at
  return ends[0], ends[1]

def _other(a: UOp, b: UOp, position: UOp) -> UOp|None:
  """The side of a comparison of a and b that faces the position, where b is the position plus terms; None: b is not."""
  left, right = _index(a), _index(b)
  if left is None or right is None or position in left.ranges: return None
  rest = [t for t in right.split_uop(Ops.ADD) if t is not position]
  if len(rest) == len(list(right.split_uop(Ops.ADD))) or any(position in t.ranges for t in rest): return None
  return left - added(rest) if rest else left

def _index(u: UOp) -> UOp|None:
  """Integer arithmetic over loads as an index expression; None for anything else. Chunks divide and multiply."""
  if u.op is Ops.CAST: return _index(u.src[0])
  if u.op is Ops.CONST: return UOp.const(int(u.val))
  if u.dtype is dtypes.weakint: return u
  if u.op is Ops.INDEX: return u.cast(dtypes.weakint)
  if u.op not in (Ops.ADD, Ops.MUL, Ops.FLOORDIV): return None
  if (a := _index(u.src[0])) is None or (b := _index(u.src[1])) is None: return None
  return a // b if u.op is Ops.FLOORDIV else a + b if u.op is Ops.ADD else a * b
