"""The longest dependency chain of a thread's instructions, read off a kernel's linear program."""
from __future__ import annotations
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from tinygrad.dtype import AddrSpace, dtypes
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.ir.indices import users_of
from tinygrad_llm.patches.search.cost.instructions import UNROLLED, pipe, side_by_side
from tinygrad_llm.patches.search.cost.memory_access import length

@dataclass(frozen=True)
class Chain:
  """
  Cycles of the longest chain.

  - in_order: of a thread that executes in order and waits for each operand.
  - sums: of the accumulations alone. An out-of-order CPU executes the loads and arithmetic of later steps ahead.
  """
  in_order: float
  sums: float

@dataclass
class _Block:
  """
  The body of a loop, or the kernel. Times are in cycles.

  - trips: iterations of the loop. together: how many of them the compiler unrolls.
  - ready: when each value is ready, from the block's start.
  - carried: the same from the previous iteration's sum, for values that depend on it.
  - needs: values from outside of the block.
  - longest: time until all values are ready.
  - sums: time from one iteration's sum to the next.
  - inner: `sums` of the loops inside, over all of their iterations.
  """
  loop: UOp|None = None
  trips: int = 1
  together: int = 1
  ready: dict[UOp, float] = field(default_factory=dict)
  carried: dict[UOp, float] = field(default_factory=dict)
  needs: set[UOp] = field(default_factory=set)
  longest: float = 0.0
  sums: float = 0.0
  inner: float = 0.0

def chain(uops: Sequence[UOp], latency: Mapping[str, float], variables: Mapping[str, int] | None = None) -> Chain:
  """The longest chain of a linear program. latency: cycles of an instruction, by its pipe."""
  blocks, side, terms = [_Block()], side_by_side(uops, variables or {}), _terms(uops)
  for u in uops:
    if u.op is Ops.RANGE: blocks.append(_Block(u, length(u, variables or {}), min(side[u], UNROLLED)))
    elif u.op is Ops.END: _close(blocks, u)
    else: _put(blocks[-1], u, latency.get(pipe(u) or "", 0.0), terms.get(u))
  return Chain(blocks[0].longest, blocks[0].inner)

def _terms(uops: Sequence[UOp]) -> dict[UOp, list[UOp]]:
  """The terms of each sum of floats, in order: renderers print no parentheses, so terms are added one by one."""
  users, found = users_of(uops), dict[UOp, list[UOp]]()
  for u in uops:
    if u.op is Ops.ADD and dtypes.is_float(u.dtype): found[u] = [t for s in u.src for t in found.get(s, [s])]
  return {u: terms for u, terms in found.items() if [x.op for x in users.get(u, [])] != [Ops.ADD]}

def _put(block: _Block, u: UOp, took: float, terms: list[UOp]|None) -> None:
  block.needs.update(s for s in u.src if s not in block.ready)
  done, since = 0.0, -math.inf
  for i, t in enumerate(terms or u.src):
    done, since = max(done, block.ready.get(t, 0.0)), max(since, block.carried.get(t, -math.inf))
    if terms and i: done, since = done + took, since + took
  if not terms: done, since = done + took, since + took
  register = u.op in (Ops.LOAD, Ops.STORE) and u.src[0].addrspace is AddrSpace.REG
  if register and u.op is Ops.LOAD and _is_sum(u.src[0], block.loop): since = max(since, 0.0)
  block.ready[u], block.longest = done, max(block.longest, done)
  if since > -math.inf:
    block.carried[u] = since
    if register and u.op is Ops.STORE: block.sums = max(block.sums, since)

def _is_sum(place: UOp, loop: UOp|None) -> bool:
  """Whether a register holds a value that the loop's previous iteration stored."""
  while place.op in (Ops.INDEX, Ops.SHRINK): place = place.src[0]
  return place.op is Ops.AFTER and loop in place.src

def _close(blocks: list[_Block], end: UOp) -> None:
  block, outer = blocks.pop(), blocks[-1]
  took = math.ceil(block.trips / block.together) * (block.longest + (block.together - 1) * block.sums)
  begins = max((outer.ready.get(s, 0.0) for s in block.needs), default=0.0)
  outer.needs.update(s for s in block.needs if s not in outer.ready)
  outer.ready[end] = begins + took
  outer.longest = max(outer.longest, begins + took)
  outer.inner += block.trips * max(block.sums, block.inner)
