"""
Integer dot products that start from activation sums: a format's offset costs no product. A helper of hoist_sums.py.

Why: a weight d * (q - 32) makes sum(x * q) - 32 * sum(x) in each group of x. As floats, the second term takes a
  multiply-add for each group and row of x, as many as the first.
How: where sums are stored beside a group's bytes (ir/byte_groups.py), the offset times the group's sum is an integer.
  An array has it for each group and unrolled token. The group's dot product, which is exact in int32, starts from it
  instead of from zero.
Rewrite:
  sum g: d[row, g] * s[g] * (sum c: float(q[row, g, c]) * x[g, c]) - 32 * d[row, g] * s[g] * (sum c: x[g, c])
  --> t[g] = -32 * (sum c: x[g, c]); sum g: d[row, g] * s[g] * float(t[g] + (sum c: q[row, g, c] * x[g, c]))
Numbers: new / old time of 1, 2, 4, 8 rows by 512 x 2048, from a core's cache, one core of a Zen 5: Q6_K 0.88, 0.89,
  0.73, 0.80. 8 rows by 8192 x 2048 from memory, 2 cores: Q6_K 0.83, NVFP4 0.59, Q3_K 0.85, MXFP4 0.86, Q5_0 0.89
"""
from __future__ import annotations
from collections.abc import Iterable
from dataclasses import dataclass
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.ir.byte_groups import SIGN, Group, find
from tinygrad_llm.patches.ir.packed_bytes import with_offset
from tinygrad_llm.patches.ir.sums import Factors

@dataclass(frozen=True)
class Start:
  """
  Two products of a sum, by their numbers, that are one: `first` has an integer weight where `second` has an offset.

  start: what the group's dot product starts from, int32, the same for all rows. weight: the integer. rest: the factors
  beside it and the byte of x.
  """
  first: int
  second: int
  group: Group
  start: UOp
  weight: UOp
  rest: Factors

  def product(self, start: UOp) -> Factors:
    """The product of both. It is the same in each step of the group's loops."""
    dot = (self.weight.cast(dtypes.int) * self.group.byte.cast(dtypes.int)).reduce(*self.group.loops, arg=Ops.ADD)
    return ((dot + start).cast(dtypes.float), *self.rest)

def _constant(f: UOp) -> int|None:
  f = f.src[0] if f.op is Ops.CAST else f
  return int(f.val) if f.op is Ops.CONST and int(f.val) == f.val else None

def _start(products: list[Factors], i: int, j: int, loops: frozenset[UOp]) -> Start|None:
  p, q = products[i], products[j]
  if len(p) != len(q) or len(apart := [n for n, (a, b) in enumerate(zip(p, q)) if a is not b]) != 1: return None
  weight, added = with_offset(p[apart[0]])
  if weight is None or added or (offset := _constant(q[apart[0]])) is None: return None
  others = [f for n, f in enumerate(p) if n != apart[0]]
  of_x = [f for f in others if any(u.dtype is dtypes.int8 for u in f.toposort()) or f.op is Ops.BITCAST]
  for x in of_x:
    rest = tuple(f for f in others if f is not x)
    free = [r for r in loops if not any(r in f.ranges for f in rest)]
    for scale in of_x:
      if scale is x or (group := find((x, scale), free)) is None or not set(group.loops) <= set(weight.ranges): continue
      return Start(i, j, group, (group.total >> (SIGN.bit_length() - 1)) * -offset, weight, rest)
  return None

def starts(products: list[Factors], loops: Iterable[UOp]) -> list[Start]:
  """The pairs of products, each in at most one pair, that are dot products of whole groups of x and an offset."""
  found, of, used = list[Start](), frozenset(loops), set[int]()
  for i in range(len(products)):
    for j in range(len(products)):
      if i == j or {i, j} & used or (start := _start(products, i, j, of)) is None: continue
      found.append(start)
      used |= {i, j}
  return found
