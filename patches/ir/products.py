"""
The sum of a kernel, as dot products of a matrix's rows and x, told apart by what the loads depend on.

`x` is a load that every step of the sum reads. `w` is a load that also depends on an output axis. x may have several
rows, one for each of a few sequences, which the matrix lacks. Loads below casts, sums and products are included. A load
that only gives a matrix's place, such as an expert's number, is neither.
"""
from __future__ import annotations
from dataclasses import dataclass
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.ir.indices import steps, strides

SHORTER = 16  # a sum this many times shorter than the main one is left as it is: a token's expert biases, for example

@dataclass(frozen=True)
class Sum:
  """
  A sum of products, or several sums over the same loops.

  xs: the loads that do not depend on the output axis `rows`; ws: the loads that do. A sum of x alone over these loops,
  as in a norm, is not listed: it shares the loops. tokens: short output axes that only xs depend on.
  """
  reds: tuple[UOp, ...]
  loops: tuple[UOp, ...]
  xs: tuple[UOp, ...]
  ws: tuple[UOp, ...]
  rows: UOp|None  # an output axis that only ws depend on
  tokens: tuple[UOp, ...] = ()

  @property
  def packed(self) -> bool:
    """Whether one load of a weight serves several steps of the sum."""
    return any(not set(self.loops) <= set(u.ranges) for u in self.ws)

  def strides(self, of: tuple[UOp, ...]) -> dict[UOp, int]:
    """{loop: its stride}, ascending, in the load of `of` with the most loops of constant stride."""
    best: dict[UOp, int] = {}
    for u in of:
      found = {r: s for r, s in strides(u.src[1].get_idx()).items() if r in self.loops}
      if len(found) > len(best): best = found
    return dict(sorted(best.items(), key=lambda item: item[1]))

def _steps(red: UOp) -> int: return steps(red.src[1:])

def _main(reds: list[UOp]) -> list[UOp]|str:
  """The longest sum of a kernel, and sums over the same loops (several matrices by one x); or why there is none."""
  if not reds or any(red.arg[0] is not Ops.ADD for red in reds): return "not one sum"
  if not all(r.op is Ops.RANGE and r.src[0].op is Ops.CONST for red in reds for r in red.src[1:]):
    return "a loop of symbolic length"
  main = [red for red in reds if red.src[1:] == max(reds, key=_steps).src[1:]]
  rest = [red for red in reds if red not in main]
  if any(_steps(red) * SHORTER > _steps(main[0]) for red in rest): return "not one sum"
  if any(set(reds) & red.backward_slice.keys() for red in reds): return "a sum inside of another"
  return main

def find_sum(k: Scheduler, tokens: int = 1) -> Sum|str:
  """The kernel's sum, of at most so many rows of x; or why there is none to schedule."""
  if isinstance(reds := _main(k.reduceops), str): return reds
  if not all(dtypes.is_float(red.dtype) for red in reds): return "not a sum of floats"
  loops = reds[0].src[1:]
  ops = dict.fromkeys(u for red in reds for u in red.src[0].toposort())
  loads = [u for u in ops if u.op is Ops.INDEX and u.src[0].op is Ops.PARAM]
  places = {v for u in loads for v in u.src[1].backward_slice}
  for row in sorted({r for red in reds for r in red.ranges}, key=lambda r: -r.vmax):
    ws = tuple(u for u in loads if row in u.ranges)
    xs = tuple(u for u in loads if row not in u.ranges and u not in places)
    of_x, of_w = ({r for u in loads for r in u.ranges} for loads in (xs, ws))
    own = tuple(r for r in k.rngs if r in of_x - of_w - set(loops))
    if not all(r.src[0].op is Ops.CONST for r in own) or steps(own) > tokens: continue
    # numbers that differ by another output axis, too, and are no weights: a head's state, for example
    if own and all(u.dtype is dtypes.float for u in ws) and of_w - {row, *loops}: continue
    # loops without a load: fields of a word
    if ws and set(loops) & (of_x | of_w) <= of_x and of_x < of_w | {*loops, *own}:
      return Sum(tuple(red for red in reds if row in red.ranges), loops, xs, ws, row, own)
  return Sum(tuple(reds), loops, tuple(loads), (), None)
