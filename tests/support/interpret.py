"""
What a kernel's graph computes before its loops are expanded, by numpy: tests of passes need no compiler then.

Each loop is an axis of its own; a value has as many steps along it as the loop has, or one if it does not depend on it.
"""
import functools
import math
import operator
from collections.abc import Callable

import numpy as np
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import Ops, UOp

BINARY: dict[Ops, Callable] = {
  Ops.ADD: operator.add, Ops.MUL: operator.mul, Ops.SUB: operator.sub, Ops.MAX: np.maximum, Ops.AND: operator.and_,
  Ops.OR: operator.or_, Ops.XOR: operator.xor, Ops.CMPLT: operator.lt, Ops.CMPNE: operator.ne, Ops.CMPEQ: operator.eq,
  Ops.FLOORDIV: operator.floordiv, Ops.FLOORMOD: operator.mod, Ops.SHL: operator.lshift, Ops.SHR: operator.rshift}
ADDED_UP = {Ops.ADD: np.sum, Ops.MAX: np.max}

class Interpreter:
  """arrays: what each PARAM holds, by slot, flat; a store to one is seen there."""
  def __init__(self, arrays: dict[int, np.ndarray], *graphs: UOp):
    loops = dict.fromkeys(u for graph in graphs for u in graph.toposort() if u.op is Ops.RANGE)
    self.axes = {r: i for i, r in enumerate(loops)}
    self.arrays, self.known = arrays, dict[UOp, np.ndarray]()

  def size(self, r: UOp) -> int: return int(r.vmax) + 1

  def value(self, u: UOp) -> np.ndarray:
    for node in u.toposort():  # no recursion
      if node not in self.known and node.op is not Ops.PARAM: self.known[node] = np.asarray(self._value(node))
    return self.known[u]

  def _value(self, u: UOp) -> np.ndarray | int | float | None:
    if u.op is Ops.CONST: return u.val
    if u.op is Ops.RANGE:
      return np.arange(self.size(u)).reshape([-1 if i == self.axes[u] else 1 for i in range(len(self.axes))])
    if u.op in BINARY: return BINARY[u.op](*(self.known[s] for s in u.src))
    if u.op is Ops.WHERE: return np.where(*(self.known[s] for s in u.src))
    if u.op is Ops.CAST: return self.known[u.src[0]]
    if u.op is Ops.REDUCE: return self._reduced(u)
    if u.op is Ops.INDEX: return self._loaded(u)
    if u.op is Ops.STORE: return self._stored(*u.src)
    if u.op in (Ops.AFTER, Ops.END, Ops.SINK, Ops.STACK, Ops.BUFFER, Ops.NOOP, Ops.STAGE): return None
    raise NotImplementedError(str(u.op))

  def _reduced(self, u: UOp) -> np.ndarray:
    value, loops = self.known[u.src[0]], u.src[1:]
    value = value.reshape(value.shape or (1,) * len(self.axes))
    axes = tuple(self.axes[r] for r in loops)
    steps = math.prod(self.size(r) for r in loops if value.shape[self.axes[r]] == 1)
    value = ADDED_UP[u.arg[0]](value, axis=axes, keepdims=True)
    return value * steps if u.arg[0] is Ops.ADD else value

  def _memory(self, u: UOp) -> np.ndarray:
    while u.op is Ops.AFTER: u = u.src[0]
    if u.op is Ops.PARAM: return self.arrays[u.arg.slot]
    assert u.op is Ops.BUFFER, u.op
    return self.arrays.setdefault(u.arg.slot, np.full(math.prod(u.shape), np.nan))  # what nobody stored is seen

  def _loaded(self, u: UOp) -> np.ndarray:
    place, *rest = u.src[1:]
    if u.src[0].op is Ops.STAGE: return self._staged(u.src[0], u.src[1:])
    assert not rest
    return self._memory(u.src[0])[self.known[place]]

  def _staged(self, stage: UOp, places: tuple[UOp, ...]) -> np.ndarray:
    """An element of a value that is stored for all steps of its loops, which no other value of the graph has."""
    value, loops = self.known[stage.src[0]], stage.src[1:]
    value = np.broadcast_to(value.reshape(value.shape or (1,) * len(self.axes)),
                            [self.size(r) if r in loops else 1 for r in self.axes])
    at = [self.known[p] for p in places]
    return value.transpose([self.axes[r] for r in loops] + [i for r, i in self.axes.items() if r not in loops]).reshape(
      [self.size(r) for r in loops])[tuple(at)]

  def _stored(self, target: UOp, value: UOp) -> None:
    place, value = np.broadcast_arrays(self.known[target.src[1]], self.known[value])
    self._memory(target.src[0])[place] = value

def steps(graph: UOp) -> int:
  """How many terms the sums of a graph have, all steps of their loops counted: what it takes to compute it."""
  def of(r: UOp) -> int: return int(r.vmax) + 1
  return sum(functools.reduce(operator.mul, map(of, u.src[1:] + tuple(u.ranges)), 1)
             for u in graph.toposort() if u.op is Ops.REDUCE)

def arrays_for(graph: UOp, seed: int = 0) -> dict[int, np.ndarray]:
  """Small whole numbers for all that a graph loads, so that sums are exact in any order."""
  rng = np.random.default_rng(seed)
  return {p.arg.slot: rng.integers(-3, 4, math.prod(p.shape)).astype(np.float64 if dtypes.is_float(p.dtype) else int)
          for p in graph.toposort() if p.op is Ops.PARAM}
