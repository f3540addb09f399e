"""
Register blocking: several tokens of a prompt share what a CPU loads and unpacks of a matrix.

Why: a loop over tokens inside of that over rows unpacks a block of weights again for each token; outside of it, each
  token reads the whole matrix.
How: an action (TOKENS of opts.py): of the output loop that the matrix does not have, so many steps are unrolled, and
  their sums stay in registers. Of a loop of unknown length the last steps are computed twice, and stored twice: there
  is no other loop for what is left. Where lanes are neighbours of a sum and not rows, as with floats, SWEPT tokens are
  inside of the loops over rows, and a few rows are unrolled, too.
Numbers: see vector/operand_packing.py; floats, 256 tokens by 8192 x 2048, 10^9 products a second, 2 threads: F16 14 ->
  99, BF16 13 -> 102 (Intel with AVX-512)
Upstream: not sent.
"""
from __future__ import annotations
from collections.abc import Callable
from typing import Any
from tinygrad.codegen.opt import Opt, check
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.helpers import count
from tinygrad.uop.ops import AxisType, Ops, UOp
from tinygrad_llm.patches.expressions import until
from tinygrad_llm.patches.opts import ScheduleOps, check_amount
from tinygrad_llm.patches.vector.lanes import side_by_side

SEAMS = {
  "tinygrad.codegen.opt.postrange:Scheduler": "35256edac7fb",
}

MOST = 16  # tokens: more sums than there are registers
SWEPT = 32  # tokens whose elements a core's cache holds, where rows are no lanes

def _loads(root: UOp) -> list[UOp]:
  return [u for u in root.toposort() if u.op is Ops.INDEX and u.src[0].op is Ops.PARAM]

def _tile(k: Scheduler) -> UOp|None:
  """The load of the one matrix whose rows are lanes."""
  outputs = k._output_rngs()
  found = [u for r, u in side_by_side(_loads(k.ast)).items() if r in outputs]
  return found[0] if len(found) == 1 else None

def tokens(k: Scheduler) -> UOp|None:
  """
  The output loop that the one matrix whose rows are lanes does not have; without lanes, one of unknown length that a
  factor of the sum does not have.
  """
  if not k.reduceops: return None
  outputs = [r for r in k.ranges_of(AxisType.WEAK) if r in k._output_rngs()]
  if (tile := _tile(k)) is not None: outside = [r for r in outputs if r not in tile.ranges]
  else:
    factors = [u for red in k.reduceops for u in _loads(red.src[0])]
    outside = [r for r in outputs if r.src[0].op is not Ops.CONST and any(r not in u.ranges for u in factors)]
  return outside[0] if len(outside) == 1 else None

_apply_opt: Callable[..., Any]  # what it was before this patch

def apply_opt(self: Scheduler, opt: Opt, append_opt: bool = True) -> Any:
  if opt.op is not ScheduleOps.TOKENS: return _apply_opt(self, opt, append_opt)
  check_amount(self, opt, 1, MOST)
  check((loop := tokens(self)) is not None, "there is no loop over tokens")
  assert loop is not None and isinstance(opt.arg, int)
  check(opt.arg <= loop.vmax + 1, "there are fewer tokens")
  if opt.arg > 1:
    made = (swept if _tile(self) is None else blocked)(loop, opt.arg, self.opt_range)
    self.ast = self.ast.substitute({loop: made})
  if append_opt: self.applied_opts.append(opt)

def blocked(loop: UOp, n: int, ids: count) -> UOp:
  """A loop as one over blocks of n, and an unrolled one inside of them."""
  length, inner = loop.src[0], UOp.range(n, next(ids), AxisType.UPCAST, dtype=loop.dtype)
  if (parts := length.divides(n)) is not None: return loop.replace(src=(parts,)) * n + inner
  return (loop.replace(src=((length + (n - 1)) // n,)) * n + inner).minimum(length - 1)

def swept(loop: UOp, n: int, ids: count) -> UOp:
  """A loop as one over SWEPT steps, all of which are inside of the loops over rows, n of them unrolled."""
  length, many = loop.src[0], SWEPT // n * n
  outer, block = loop.replace(src=((length + (many - 1)) // many,)), UOp.range(many // n, next(ids), AxisType.WEAK)
  inner = UOp.range(n, next(ids), AxisType.UPCAST)
  first = outer * many
  return (first + until(block, length - first, n) * n + inner).minimum(length - 1)

def install() -> None:
  global _apply_opt
  _apply_opt, Scheduler.apply_opt = Scheduler.apply_opt, apply_opt  # type: ignore[method-assign]
