"""
Interprets a kernel's graph in numpy before its ranges are expanded, so that tests of passes need no compiler.

Each range is an axis of every value, GPU thread ranges included. A value has the range's size along that axis, or 1 if
it does not depend on the range. A kernel-local array has an extra axis for each range in which it is filled again.
"""
import functools
import math
import operator
from collections.abc import Callable

import numpy as np
from tinygrad.dtype import DType, Invalid, _to_np_dtype, dtypes
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.ir.intrinsics import named
from tinygrad_llm.patches.ir.targets import THREADS
from tinygrad_llm.patches.isa.dot_int8_gpu import DOT4
from tinygrad_llm.patches.isa.shuffle_reduce import EXCHANGES
from tinygrad_llm.patches.isa.table_lookup_gpu import PERMUTE

BINARY: dict[Ops, Callable] = {
  Ops.ADD: operator.add, Ops.MUL: operator.mul, Ops.SUB: operator.sub, Ops.MAX: np.maximum, Ops.AND: operator.and_,
  Ops.OR: operator.or_, Ops.XOR: operator.xor, Ops.CMPLT: operator.lt, Ops.CMPNE: operator.ne, Ops.CMPEQ: operator.eq,
  Ops.FLOORDIV: operator.floordiv, Ops.FLOORMOD: operator.mod, Ops.SHL: operator.lshift, Ops.SHR: operator.rshift,
  Ops.FDIV: operator.truediv}
UNARY: dict[Ops, Callable] = {
  Ops.NEG: operator.neg, Ops.EXP2: np.exp2, Ops.SQRT: np.sqrt, Ops.RECIPROCAL: lambda x: 1 / x}
ADDED_UP = {Ops.ADD: np.sum, Ops.MAX: np.max}
NO_VALUE = {Ops.AFTER, Ops.END, Ops.SINK, Ops.GROUP, Ops.STACK, Ops.BUFFER, Ops.NOOP, Ops.STAGE, Ops.CALL, Ops.BARRIER}

def kept(dtype: DType, value) -> np.ndarray:
  """The value wrapped to its integer type's width; floats are float64 whatever their type."""
  if dtypes.is_float(dtype): return np.asarray(value, np.float64)
  if dtype is dtypes.bool or not dtypes.is_int(dtype) or dtype is dtypes.weakint: return np.asarray(value)
  return np.asarray(value).astype(np.int64).astype(_to_np_dtype(dtype)).astype(np.int64)

class Interpreter:
  """Evaluates graphs. arrays: flat contents of each PARAM by slot; stores write to them."""
  def __init__(self, arrays: dict[int, np.ndarray], *graphs: UOp):
    ops = dict.fromkeys(u for graph in graphs for u in graph.toposort())
    self.axes = {r: i for i, r in enumerate(u for u in ops if u.op is Ops.RANGE)}
    self.arrays, self.known, self.own = arrays, dict[UOp, np.ndarray](), dict[UOp, np.ndarray]()
    self.ended = dict[UOp, set[UOp]]()  # {store: ranges that its END closes}
    for end in (u for u in ops if u.op is Ops.END):
      for u in end.toposort(lambda u: u.op in (Ops.END, Ops.GROUP, Ops.STORE)):
        self.ended.setdefault(u, set()).update({r for s in end.src[1:] for r in s.ranges})

  def size(self, r: UOp) -> int: return int(r.vmax) + 1

  def value(self, u: UOp) -> np.ndarray:
    for node in u.toposort():  # no recursion
      if node not in self.known and node.op is not Ops.PARAM: self.known[node] = np.asarray(self._value(node))
    return self.known[u]

  def _full(self, value: np.ndarray) -> np.ndarray: return value.reshape(value.shape or (1,) * len(self.axes))

  def _value(self, u: UOp) -> np.ndarray | int | float | None:
    src = [self.known.get(s) for s in u.src]
    if u.op is Ops.CONST: return 0 if u.val is Invalid else u.val
    if u.op is Ops.RANGE:
      return np.arange(self.size(u)).reshape([-1 if i == self.axes[u] else 1 for i in range(len(self.axes))])
    if u.op in BINARY: return kept(u.dtype, BINARY[u.op](*src))
    if u.op in UNARY: return kept(u.dtype, UNARY[u.op](*src))
    if u.op is Ops.WHERE: return np.where(*src)
    if u.op is Ops.CAST: return kept(u.dtype, src[0])
    if u.op is Ops.BITCAST:
      before, after = _to_np_dtype(u.src[0].dtype), _to_np_dtype(u.dtype)
      return kept(u.dtype, np.ascontiguousarray(src[0].astype(before)).view(after).reshape(src[0].shape))
    if u.op is Ops.REDUCE: return self._reduced(u)
    if u.op is Ops.INDEX: return self._loaded(u)
    if u.op is Ops.LOAD: return src[0]
    if u.op is Ops.STORE: return self._stored(u, *u.src)
    if u.op in (Ops.CUSTOM, Ops.CUSTOMI): return self._custom(u, src)
    if u.op in NO_VALUE: return None
    raise NotImplementedError(str(u.op))

  def _custom(self, u: UOp, src: list[np.ndarray]) -> np.ndarray:
    if named(u.arg) is DOT4:
      a, b = (np.stack([kept(dtypes.int8, s >> 8 * i) for i in range(4)]) for s in np.broadcast_arrays(*src[:2]))
      return kept(dtypes.int, (a * b).sum(0) + src[2])
    if named(u.arg) is PERMUTE:  # nibble i selects byte i from the 8 bytes of a and b
      a, b, at = (self._full(s).astype(np.uint64) for s in src)
      both = a | b << np.uint64(32)
      codes = [at >> np.uint64(4 * i) & np.uint64(7) for i in range(4)]
      return kept(dtypes.uint32, sum((both >> code * np.uint64(8) & np.uint64(255)) << np.uint64(8 * i)
                                     for i, code in enumerate(codes)))
    for bit, exchange in EXCHANGES.items():  # a thread's number counts the thread ranges, the first one fastest
      if named(u.arg) is not exchange: continue
      step, value = 1, self._full(src[0])
      for r in sorted((r for r in self.axes if r.arg[-1] in THREADS), key=lambda r: r.arg[:-1]):
        if step <= bit < step * self.size(r) and value.shape[self.axes[r]] > 1:
          return value.take(np.arange(self.size(r)) ^ bit // step, self.axes[r])
        step *= self.size(r)
      return value
    assert "continue" in u.arg or "break" in u.arg, u.arg
    return src[1]  # _stored looks the condition up

  def _reduced(self, u: UOp) -> np.ndarray:
    value, loops = self._full(self.known[u.src[0]]), {r for s in u.src[1:] for r in s.ranges}
    axes = tuple(self.axes[r] for r in loops)
    steps = math.prod(self.size(r) for r in loops if value.shape[self.axes[r]] == 1)
    value = ADDED_UP[u.arg[0]](value, axis=axes, keepdims=True)
    return kept(u.dtype, value * steps if u.arg[0] is Ops.ADD else value)

  def _memory(self, u: UOp) -> tuple[np.ndarray, bool]:
    """The elements of an array, and whether it is kernel-local: then they have an axis for each range, too."""
    while u.op is Ops.AFTER: u = u.src[0]
    if u.op is Ops.PARAM: return self.arrays[u.arg.slot], False
    assert u.op is Ops.BUFFER, u.op
    if u not in self.own:  # filled so that a read of an element never stored shows
      nothing = np.nan if dtypes.is_float(u.dtype) else 1 << 40
      self.own[u] = np.full((math.prod(u.shape), *[1] * len(self.axes)), nothing)
    return self.own[u], True

  def _steps(self, memory: np.ndarray) -> list[np.ndarray]:
    """Indices along the range axes of a kernel-local array."""
    return [np.arange(n).reshape([-1 if i == axis else 1 for i in range(len(self.axes))])
            for axis, n in enumerate(memory.shape[1:])]

  def _loaded(self, u: UOp) -> np.ndarray:
    place, *rest = u.src[1:]
    if u.src[0].op is Ops.STAGE: return self._staged(u.src[0], u.src[1:])
    assert not rest
    at, valid = self.value(place.get_idx()), self.value(place.get_valid())
    memory, own = self._memory(u.src[0])
    at = np.where(valid, at, 0)
    found = memory[(self._full(at), *self._steps(memory))] if own else memory[at]
    return np.where(valid, found, 0)

  def _staged(self, stage: UOp, places: tuple[UOp, ...]) -> np.ndarray:
    """An element of a STAGE, which materialises a value over its own ranges. No other value uses those ranges."""
    value, loops = self._full(self.known[stage.src[0]]), [r for r in stage.src[1:] if r.op is Ops.RANGE]
    value = np.broadcast_to(value, [self.size(r) if r in loops else 1 for r in self.axes])
    at = [self.known[p] for p, r in zip(places, stage.src[1:]) if r.op is Ops.RANGE]
    return value.transpose([self.axes[r] for r in loops] + [i for r, i in self.axes.items() if r not in loops]).reshape(
      [self.size(r) for r in loops])[tuple(at)]

  def _stored(self, store: UOp, target: UOp, value: UOp) -> None:
    place, valid = target.src[1].get_idx(), [self.value(target.src[1].get_valid())]
    valid += [self.known[u.src[0]] for u in store.toposort() if u.op is Ops.CUSTOM and "if (!" in u.arg]
    memory, own = self._memory(target.src[0])
    at, number, *conditions = map(self._full, np.broadcast_arrays(self.value(place), self.known[value], *valid))
    wanted = np.logical_and.reduce(conditions)
    if own:
      again = [self.size(r) if at.shape[i] > 1 and r not in self.ended.get(store, ()) else 1
               for r, i in self.axes.items()]
      shape = np.broadcast_shapes(memory.shape, (len(memory), *again))
      memory = self.own[target.src[0].buf_uop] = np.broadcast_to(memory, shape).copy()
      at = [at, *[np.broadcast_to(step, at.shape) for step in self._steps(memory)]]
      memory[tuple(a[wanted] for a in at)] = number[wanted]
    else: memory[at[wanted]] = number[wanted]

def results(graph: UOp, arrays: dict[int, np.ndarray]) -> list[np.ndarray]:
  """The contents of a kernel's arguments after it ran, or the value of an expression."""
  arrays = {slot: array.copy() for slot, array in arrays.items()}
  value = Interpreter(arrays, graph).value(graph)
  return [*arrays.values()] if graph.op is Ops.SINK else [value]

def same(before: UOp, after: UOp, error: float = 0, arrays: dict[int, np.ndarray] | None = None) -> bool:
  """Whether two kernels, or two expressions, agree on random inputs. error: relative and absolute tolerance."""
  arrays = arrays_for(before, after) if arrays is None else arrays
  if before.op is Ops.SINK: pairs = zip(results(before, arrays), results(after, arrays))
  else:
    both = Interpreter(arrays, before, after)
    pairs = [np.broadcast_arrays(both.value(before), both.value(after))]
  return all(np.allclose(a, b, error, error, equal_nan=True) for a, b in pairs)

def steps(graph: UOp) -> int:
  """The work of a graph: the number of terms of its reductions, over all iterations of the enclosing ranges."""
  def of(r: UOp) -> int: return int(r.vmax) + 1
  return sum(functools.reduce(operator.mul, map(of, u.src[1:] + tuple(u.ranges)), 1)
             for u in graph.toposort() if u.op is Ops.REDUCE)

def arrays_for(*graphs: UOp, seed: int = 0) -> dict[int, np.ndarray]:
  """Random inputs of the graphs: small integers, whose sums are exact in any order; random bits for unsigned words."""
  rng = np.random.default_rng(seed)
  def filled(dtype: DType, n: int) -> np.ndarray:
    if dtypes.is_unsigned(dtype): return rng.integers(0, 1 << 8 * dtype.itemsize, n)
    return rng.integers(-3, 4, n).astype(np.float64 if dtypes.is_float(dtype) else int)
  found = {p.arg.slot: p for graph in graphs for p in graph.toposort() if p.op is Ops.PARAM}
  return {slot: filled(p.dtype, math.prod(p.shape)) for slot, p in sorted(found.items())}
