"""
Register blocking: several tokens of a prompt share what a CPU loads and unpacks of a matrix.

Why: a loop over tokens inside of that over rows unpacks a block of weights again for each token.
How: an action (TOKENS of opts.py) for kernels whose lanes are rows: of the output loop that the matrix does not have,
  so many steps are unrolled, and their sums stay in registers. Of a loop of unknown length the last steps are computed
  twice, and stored twice: there is no other loop for what is left.
Numbers: see vector/operand_packing.py
Upstream: not sent.
"""
from __future__ import annotations
from collections.abc import Callable
from typing import Any
from tinygrad.codegen.opt import Opt, check
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.uop.ops import AxisType, Ops, UOp
from tinygrad_llm.patches.opts import ScheduleOps, check_amount
from tinygrad_llm.patches.vector.lanes import side_by_side

SEAMS = {
  "tinygrad.codegen.opt.postrange:Scheduler": "35256edac7fb",
}

MOST = 16  # tokens: more sums than there are registers

def tokens(k: Scheduler) -> UOp|None:
  """The output loop that the one matrix whose rows are lanes does not have."""
  found = side_by_side(u for u in k.ast.toposort() if u.op is Ops.INDEX and u.src[0].op is Ops.PARAM)
  if len(found) != 1 or not k.reduceops: return None
  load = next(iter(found.values()))
  outside = [r for r in k.ranges_of(AxisType.WEAK) if r in k._output_rngs() and r not in load.ranges]
  return outside[0] if len(outside) == 1 else None

_apply_opt: Callable[..., Any]  # what it was before this patch

def apply_opt(self: Scheduler, opt: Opt, append_opt: bool = True) -> Any:
  if opt.op is not ScheduleOps.TOKENS: return _apply_opt(self, opt, append_opt)
  check_amount(self, opt, 1, MOST)
  check((loop := tokens(self)) is not None, "there is no loop over tokens")
  assert loop is not None and isinstance(opt.arg, int)
  check(opt.arg <= loop.vmax + 1, "there are fewer tokens")
  if opt.arg > 1: self.ast = self.ast.substitute({loop: blocked(loop, opt.arg, next(self.opt_range))})
  if append_opt: self.applied_opts.append(opt)

def blocked(loop: UOp, n: int, id: int) -> UOp:
  """A loop as one over blocks of n, and an unrolled one inside of them."""
  length, inner = loop.src[0], UOp.range(n, id, AxisType.UPCAST, dtype=loop.dtype)
  if (parts := length.divides(n)) is not None: return loop.replace(src=(parts,)) * n + inner
  return (loop.replace(src=((length + (n - 1)) // n,)) * n + inner).minimum(length - 1)

def install() -> None:
  global _apply_opt
  _apply_opt, Scheduler.apply_opt = Scheduler.apply_opt, apply_opt  # type: ignore[method-assign]
