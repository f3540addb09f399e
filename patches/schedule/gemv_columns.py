"""
Transposed GEMV (x @ w, attention's values) and counts: SIMD lanes are neighbouring columns. A helper of gemv.py.

Why: in x @ w, each row of w is contiguous (attention's values: positions of D elements). Neighbours in memory belong to
  different sums, and the sums may be of unknown length. Counting how many numbers are larger than each of some numbers
  (ranks) has the same form.
How: 16 columns are SIMD lanes (lanes.rows). Sums of up to COLUMNS columns stay in registers, for several rows of x that
  share w.
Numbers: routing to experts, with the ranks of 256 scores, 54 -> 8 us, of 128 14 -> 5 (Zen 4, one thread)
"""
from __future__ import annotations
from tinygrad.codegen.opt import Opt, OptOps
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.ir.indices import strides
from tinygrad_llm.patches.ir.targets import LANES

COLUMNS, ROWS = 8 * LANES, 4

def _divisor(r: UOp, most: int) -> int:
  """Returns the largest divisor of a loop's length up to `most`."""
  return next(n for n in range(most, 0, -1) if r.src[0].divides(n) is not None)

def on_columns(k: Scheduler) -> Scheduler|None:
  """Unrolls columns, and rows of x that share w; None if the kernel has no columns."""
  if len(k.reduceops) != 1: return None
  counts = dtypes.is_int((red := k.reduceops[0]).dtype)
  loads = [u for u in red.src[0].toposort() if u.op is Ops.INDEX and u.src[0].op is Ops.PARAM]
  stored = next(strides(u.src[0].src[1].get_idx()) for u in k.ast.toposort() if u.op is Ops.STORE)
  ws = [(u, r) for u in loads for r, n in strides(u.src[1].get_idx()).items()
        if n == 1 and stored.get(r) == 1 and r.src[0].divides(LANES) is not None]
  if not counts: ws = [(u, r) for u, r in ws if set(red.src[1:]) & set(u.ranges)]
  if not ws: return None
  w, column = ws[0]
  if any(column in u.ranges and column not in strides(u.src[1].get_idx()) for u in loads): return None
  rows = [r for r in stored if r not in w.ranges and r.src[0].op is Ops.CONST and r.vmax < 2 * ROWS]
  k = k.copy()
  rest = k.apply_opt(Opt(OptOps.UPCAST, k.rngs.index(column), LANES))[0]
  if rest.op is Ops.RANGE and (n := _divisor(rest, COLUMNS // LANES)) > 1:
    k.apply_opt(Opt(OptOps.UPCAST, k.rngs.index(rest), n))
  if rows and (n := _divisor(rows[0], ROWS)) > 1: k.apply_opt(Opt(OptOps.UPCAST, k.rngs.index(rows[0]), n))
  return k
