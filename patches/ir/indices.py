"""
Loops and integer expressions: how many steps, what an index adds up, what a value is for given leaves. Pure functions
that rooms share.
"""
from __future__ import annotations
import functools, struct
from collections.abc import Iterable, Sequence
from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import prod
from tinygrad.uop.ops import GroupOp, Ops, UOp, exec_alu

def size(r: UOp) -> int:
  """Steps of a loop."""
  return int(r.vmax) + 1

def steps(loops: Iterable[UOp]) -> int:
  """How often the innermost of some loops runs."""
  return prod(map(size, loops))

def divisor(n: int, most: int) -> int:
  """The largest divisor of n up to `most`."""
  return max(d for d in range(1, min(n, most) + 1) if n % d == 0)

def flat(loops: Sequence[UOp], at: Sequence[UOp]|None = None) -> UOp:
  """The number of a step of loops, the last of which is the innermost. at: a step of each; None: what they count."""
  return functools.reduce(lambda n, step: n * size(step[0]) + step[1], zip(loops, at or loops), UOp.const(0))

def apart(at: UOp, loops: Sequence[UOp]) -> dict[UOp, UOp]:
  """The other way round: the step of each loop; the first may be of any length."""
  ret: dict[UOp, UOp] = {}
  for i, r in reversed(list(enumerate(loops))):
    ret[r] = at % size(r) if i else at
    if i: at = at // size(r)
  return ret

def strides(idx: UOp) -> dict[UOp, int]:
  """The ranges that an index adds, times a constant."""
  ret: dict[UOp, int] = {}
  for term in idx.split_uop(Ops.ADD):
    if term.op is Ops.RANGE: ret[term] = 1
    elif term.op is Ops.MUL and term.src[0].op is Ops.RANGE and term.src[1].op is Ops.CONST:
      ret[term.src[0]] = term.src[1].val
  return ret

def ended(u: UOp, *loops: UOp) -> UOp:
  """What is done in each step of loops, some of which may be 0."""
  return u.end(*[r for r in loops if r.op is Ops.RANGE])

def usual_length(loop: UOp) -> UOp:
  """
  How many steps a loop has, in the middle of what runs in parallel; if a number in memory says so, as many as there
  can be.
  """
  if (length := loop.src[0]).op_in_backward_slice_with_self(Ops.LOAD): return UOp.const(int(length.vmax))
  return length.substitute({x: (x.src[0] - 1) // 2 for x in length.toposort() if x.op is Ops.SPECIAL})

def while_true(condition: UOp, step: UOp, otherwise: str = "break") -> UOp:
  """A step of a C loop, which ends before it where the condition is false; or goes on, where `otherwise` says so."""
  made = UOp(Ops.CUSTOM, dtypes.int, (condition, step.cast(dtypes.int)), f"({{{{ if (!{{0}}) {otherwise}; {{1}}; }}}})")
  return made.cast(dtypes.weakint).maximum(0).minimum(int(step.vmax))  # else places would be numbers of 64 bits

def until(step: UOp, end: UOp, n: int = 1) -> UOp:
  """A step of a loop, which ends before one with step * n >= end. A loop's length is that of no other's steps."""
  return while_true(step * n < end, step)

def users_of(uops: Iterable[UOp]) -> dict[UOp, list[UOp]]:
  """What uses each UOp."""
  found: dict[UOp, list[UOp]] = {}
  for u in uops:
    for s in u.src: found.setdefault(s, []).append(u)
  return found

def choosing(idx: UOp) -> dict[UOp, list[UOp]]:
  """The ranges that an index depends on by way of loaded numbers alone, and these: as the expert of a block."""
  own = idx.toposort(gate=lambda u: u.op is not Ops.INDEX)
  loaded = [s for u in own for s in u.src if s.op is Ops.INDEX and s.ranges]
  return {r: [u for u in loaded if r in u.ranges] for u in loaded for r in u.ranges if r not in own}

def terms(u: UOp) -> list[UOp]:
  """What a number of bits is the sum of."""
  if u.op is Ops.ADD: return [t for s in u.src for t in terms(s)]
  if u.op is Ops.CAST and dtypes.is_int(u.src[0].dtype): return [t.cast(u.dtype) for t in terms(u.src[0])]
  if u.op not in (Ops.MUL, Ops.SHL) or u.src[1].op is not Ops.CONST: return [u]
  return [u.replace(src=(t, u.src[1])) for t in terms(u.src[0])]

def inside(u: UOp, ranges: frozenset[UOp]) -> frozenset[UOp]: return ranges.intersection(u.ranges)

def stripped(u: UOp) -> UOp:
  """An integer without the casts that keep all of its bits."""
  while u.op is Ops.CAST and dtypes.is_int(u.src[0].dtype) and u.dtype.itemsize >= u.src[0].dtype.itemsize: u = u.src[0]
  return u

def evaluate(u: UOp, values: dict[UOp, int|float]) -> int|float:
  """A value of constants and `values`, to which those on the way are added."""
  if u not in values:
    src = [evaluate(s, values) for s in u.src]
    if u.op is Ops.CONST: values[u] = u.val
    elif u.op is Ops.CAST: values[u] = exec_alu(Ops.ADD, u.dtype, (u.dtype.const(src[0]), 0))
    elif u.op is Ops.BITCAST: values[u] = struct.unpack(_fmt(u.dtype), struct.pack(_fmt(u.src[0].dtype), src[0]))[0]
    else: values[u] = exec_alu(u.op, u.dtype, src)
  return values[u]

def _fmt(dtype: DType) -> str: return "<" + (dtype.fmt or "")

def is_gather(x: UOp) -> bool:
  """Whether x is `value where counter == index else 0`: a comparison with what no buffer is read for."""
  while x.op in GroupOp.Movement: x = x.src[0]
  if x.op is not Ops.WHERE: return False
  compared = [u for u in x.src[0].toposort() if u.op in (Ops.CMPNE, Ops.CMPEQ)]
  cond = next((u for u in compared if u.src[1].base.op is not Ops.CONST), None)
  reads = (Ops.BUFFER, Ops.PARAM, Ops.AFTER)
  return cond is not None and any(not s.op_in_backward_slice_with_self(*reads) for s in cond.src)
