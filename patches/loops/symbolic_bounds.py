"""
A loop of symbolic length keeps its length: tinygrad would shrink it to a constant, or fail at the comparison.

Why: tinygrad ends a loop early if every access in it is masked: i < c for a constant c. In a loop of symbolic length n,
  c may be more than n, and the loop would run beyond its data. If another access has no mask, tinygrad compares c with
  n and stops with an assertion. A prompt's short convolution has both accesses: rows from before the prompt, i < 2, and
  the prompt's own rows.
How: while tinygrad collects bounds, a symbolic length counts as a constant above all masks. Before it applies the
  bounds, every loop of symbolic length gets its own length back.
Rewrite:
  for i in range(n): y[i] = (i < 2) ? a[i] : b[i - 2]  with n = 1 .. 16
  --> the same; without the pass: AssertionError, or range(2) if b is masked, too
Numbers: no figure; kernels that compiled before are the same, see tests/tools/kernel_hashes.py.
Upstream: not sent; there, mark_gated would skip ranges whose size is no constant.
"""
from __future__ import annotations
from tinygrad import codegen
from tinygrad.uop.ops import Ops, PatternMatcher, UOp, UPat
from tinygrad_llm.patches import places

SEAMS = {
  "tinygrad.codegen.simplify:mark_gated": "d97576b697ce",
  "tinygrad.codegen:full_rewrite_to_sink": "a1124f83af03",
}
ABOVE = 1 << 60  # above every mask

def _is_symbolic(loop: UOp) -> bool: return loop.src[0].op is not Ops.CONST

def comparable(ctx: dict[UOp, UOp]) -> None:
  """Before a bound is compared: a symbolic loop's bound becomes a constant."""
  for loop in ctx:
    if _is_symbolic(loop): ctx[loop] = loop.src[0].const_like(ABOVE)

def restored(ctx: dict[UOp, UOp]) -> None:
  """Before the bounds are applied: a symbolic loop's bound becomes its length."""
  for loop in ctx:
    if _is_symbolic(loop): ctx[loop] = loop.src[0]

pm_symbolic_bounds = PatternMatcher([
  (UPat(Ops.INDEX), lambda ctx: comparable(ctx)),
  (UPat(Ops.SINK), lambda ctx: restored(ctx)),
])

def install() -> None: places.rules(codegen, "pm_simplify_ranges", pm_symbolic_bounds, first=True)
