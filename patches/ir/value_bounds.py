"""
Exact bounds of integers that are functions of a few bits, such as the number that a 4-bit code stands for.

Interval arithmetic (vmin, vmax) gives up where signs are applied by XOR. Here a value is evaluated for all values of
the bits that it depends on.
"""
from __future__ import annotations
import itertools
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import GroupOp, Ops, UOp
from tinygrad_llm.patches.ir.indices import evaluate

MOST = 256  # combinations of bits that are evaluated

def _leaves(u: UOp, known: dict[UOp, frozenset[UOp]|None]) -> frozenset[UOp]|None:
  """The innermost integers of few values that u is a function of; None if it depends on anything else."""
  if u not in known:
    of = [_leaves(s, known) for s in u.src] if u.op in GroupOp.ALU or u.op is Ops.CAST else [None]
    if u.op is Ops.CONST: known[u] = frozenset()
    elif None not in of: known[u] = frozenset().union(*of)  # type: ignore[arg-type]
    else: known[u] = frozenset((u,)) if dtypes.is_int(u.dtype) and u.vmax - u.vmin < MOST - 1 else None
  return known[u]

def bounds(u: UOp) -> tuple[int, int]:
  """The least and the largest value of an integer; its vmin and vmax if it is no function of a few bits."""
  leaves = _leaves(u, {})
  if leaves is None: return int(u.vmin), int(u.vmax)
  values, count = [range(int(leaf.vmin), int(leaf.vmax) + 1) for leaf in leaves], 1
  for of in values: count *= len(of)
  if count > MOST: return int(u.vmin), int(u.vmax)
  found = [int(evaluate(u, dict(zip(leaves, at)))) for at in itertools.product(*values)]
  return min(found), max(found)
