"""
Loops and integer expressions: numbers of steps, the terms of an index, the value of an expression for given leaves.

Pure functions that several rooms share.
"""
from __future__ import annotations
import functools, struct
from collections.abc import Iterable, Sequence
from tinygrad.dtype import AddrSpace, DType, dtypes
from tinygrad.helpers import prod
from tinygrad.uop.ops import GroupOp, Ops, UOp, exec_alu

def size(r: UOp) -> int:
  """The number of steps of a loop."""
  return int(r.vmax) + 1

def steps(loops: Iterable[UOp]) -> int:
  """The number of times that the innermost of some nested loops runs."""
  return prod(map(size, loops))

def divisor(n: int, most: int) -> int:
  """The largest divisor of n up to `most`."""
  return max(d for d in range(1, min(n, most) + 1) if n % d == 0)

def flat(loops: Sequence[UOp], at: Sequence[UOp]|None = None) -> UOp:
  """The flat step number of nested loops, the last of which is the innermost. at: a step of each; None: the loops."""
  return functools.reduce(lambda n, step: n * size(step[0]) + step[1], zip(loops, at or loops), UOp.const(0))

def apart(at: UOp, loops: Sequence[UOp]) -> dict[UOp, UOp]:
  """{loop: its step} of a flat step number: the inverse of flat(). The first loop may be of any length."""
  ret: dict[UOp, UOp] = {}
  for i, r in reversed(list(enumerate(loops))):
    ret[r] = at % size(r) if i else at
    if i: at = at // size(r)
  return ret

def strides(idx: UOp) -> dict[UOp, int]:
  """{loop: its stride} of an index, for the terms that are a loop times a constant."""
  ret: dict[UOp, int] = {}
  for term in idx.split_uop(Ops.ADD):
    if term.op is Ops.RANGE: ret[term] = 1
    elif term.op is Ops.MUL and term.src[0].op is Ops.RANGE and term.src[1].op is Ops.CONST:
      ret[term.src[0]] = term.src[1].val
  return ret

def ended(u: UOp, *loops: UOp) -> UOp:
  """u with the loops ended after it. Entries that are not loops (the constant 0) are skipped."""
  return u.end(*[r for r in loops if r.op is Ops.RANGE])

def usual_length(loop: UOp) -> UOp:
  """
  The usual number of steps of a loop whose length may depend on the thread or on memory.

  Thread and block numbers count as the middle of their ranges. If memory holds the length, the largest possible one.
  """
  if (length := loop.src[0]).op_in_backward_slice_with_self(Ops.LOAD): return UOp.const(int(length.vmax))
  return length.substitute({x: (x.src[0] - 1) // 2 for x in length.toposort() if x.op is Ops.SPECIAL})

def while_true(condition: UOp, step: UOp, otherwise: str = "break") -> UOp:
  """
  A step of a C loop; the loop ends before it where the condition is false.

  otherwise: the C statement for that case, which may also be "continue".
  """
  made = UOp(Ops.CUSTOM, dtypes.int, (condition, step.cast(dtypes.int)), f"({{{{ if (!{{0}}) {otherwise}; {{1}}; }}}})")
  return made.cast(dtypes.weakint).maximum(0).minimum(int(step.vmax))  # otherwise indices would have 64 bits

def until(step: UOp, end: UOp, n: int = 1) -> UOp:
  """
  A step of a loop that ends before the first step with step * n >= end.

  The length of a loop cannot depend on the steps of other loops, but `end` can.
  """
  return while_true(step * n < end, step)

def lesser(step: UOp, last: UOp) -> UOp:
  """The lesser of a step and a number that is at least 0, as C writes it: indices keep the step's bounds."""
  made = UOp(Ops.CUSTOM, dtypes.int, (step.cast(dtypes.int), last.cast(dtypes.int)), "({0} < {1} ? {0} : {1})")
  return made.cast(dtypes.weakint).maximum(0).minimum(int(step.vmax))  # otherwise indices would have 64 bits

def users_of(uops: Iterable[UOp]) -> dict[UOp, list[UOp]]:
  """{UOp: the UOps that use it}."""
  found: dict[UOp, list[UOp]] = {}
  for u in uops:
    for s in u.src: found.setdefault(s, []).append(u)
  return found

def choosing(idx: UOp) -> dict[UOp, list[UOp]]:
  """
  {range: loads that depend on it} for ranges that an index depends on through loaded numbers alone.

  Such a range is the loop over blocks where each block loads the number of its expert.
  """
  own = idx.toposort(gate=lambda u: u.op is not Ops.INDEX)
  loaded = [s for u in own for s in u.src if s.op is Ops.INDEX and s.ranges]
  return {r: [u for u in loaded if r in u.ranges] for u in loaded for r in u.ranges if r not in own}

def flat_uses(ast: UOp) -> dict[UOp, list[UOp]]:
  """
  {a kernel's parameter: the nodes that index it}, for those whose size an index alone decides.

  A parameter of a size that is no constant is left out. So is one with an index that may be negative or has several
  axes, one that is used otherwise, and one with several nodes.
  """
  uses, slots, otherwise = dict[UOp, list[UOp]](), dict[int, set[UOp]](), set[UOp]()
  for u in ast.toposort():
    for i, s in enumerate(u.src):
      if s.op is not Ops.PARAM or s.addrspace is not AddrSpace.GLOBAL: continue
      slots.setdefault(s.arg.slot, set()).add(s)
      if u.op is Ops.INDEX and i == 0 and len(u.src) == 2 and u.src[1].get_idx().vmin >= 0:
        uses.setdefault(s, []).append(u)
      else: otherwise.add(s)
  return {p: nodes for p, nodes in uses.items() if p not in otherwise and len(slots[p.arg.slot]) == 1
          and len(p.src) == 1 and p.src[0].op is Ops.CONST}

def last_use(nodes: Iterable[UOp]) -> int:
  """The largest element that some indices reach."""
  return max(int(u.src[1].get_idx().vmax) for u in nodes)

def terms(u: UOp) -> list[UOp]:
  """The terms of an integer sum, with casts, constant factors and shifts applied to each term."""
  if u.op is Ops.ADD: return [t for s in u.src for t in terms(s)]
  if u.op is Ops.CAST and dtypes.is_int(u.src[0].dtype): return [t.cast(u.dtype) for t in terms(u.src[0])]
  if u.op not in (Ops.MUL, Ops.SHL) or u.src[1].op is not Ops.CONST: return [u]
  return [u.replace(src=(t, u.src[1])) for t in terms(u.src[0])]

def inside(u: UOp, ranges: frozenset[UOp]) -> frozenset[UOp]: return ranges.intersection(u.ranges)

def stripped(u: UOp) -> UOp:
  """An integer without those casts around it that keep all of its bits."""
  while u.op is Ops.CAST and dtypes.is_int(u.src[0].dtype) and u.dtype.itemsize >= u.src[0].dtype.itemsize: u = u.src[0]
  return u

def evaluate(u: UOp, values: dict[UOp, int|float]) -> int|float:
  """The number that u is. values: {UOp: number} of its leaves; intermediate results are added to it."""
  if u not in values:
    src = [evaluate(s, values) for s in u.src]
    if u.op is Ops.CONST: values[u] = u.val
    elif u.op is Ops.CAST: values[u] = exec_alu(Ops.ADD, u.dtype, (u.dtype.const(src[0]), 0))
    elif u.op is Ops.BITCAST: values[u] = struct.unpack(_fmt(u.dtype), struct.pack(_fmt(u.src[0].dtype), src[0]))[0]
    else: values[u] = exec_alu(u.op, u.dtype, src)
  return values[u]

def _fmt(dtype: DType) -> str: return "<" + (dtype.fmt or "")

def is_gather(x: UOp) -> bool:
  """Whether x is `value where counter == index else 0`: a comparison one side of which reads no buffer."""
  while x.op in GroupOp.Movement: x = x.src[0]
  if x.op is not Ops.WHERE: return False
  compared = [u for u in x.src[0].toposort() if u.op in (Ops.CMPNE, Ops.CMPEQ)]
  cond = next((u for u in compared if u.src[1].base.op is not Ops.CONST), None)
  reads = (Ops.BUFFER, Ops.PARAM, Ops.AFTER)
  return cond is not None and any(not s.op_in_backward_slice_with_self(*reads) for s in cond.src)
