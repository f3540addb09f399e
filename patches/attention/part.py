"""
The kernel of a part of the positions, as split_kv.py makes it: its loops, and its values where these loops are others.
A part of online_softmax.py.
"""
from __future__ import annotations
import functools, operator
from dataclasses import dataclass
from functools import cached_property
from tinygrad.helpers import partition, prod
from tinygrad.uop.ops import Ops, UOp

def size(r: UOp) -> int: return int(r.vmax) + 1
def sizes(ranges: list[UOp]) -> int: return prod(map(size, ranges))

def apart(at: UOp, ranges: list[UOp]) -> dict[UOp, UOp]:
  """The loops that `at` counts all steps of, the last is the fastest."""
  ret: dict[UOp, UOp] = {}
  for i, r in reversed(list(enumerate(ranges))):
    ret[r] = at % size(r) if i else at
    at = at // size(r)
  return ret

def _product(factors: list[UOp]) -> UOp: return functools.reduce(operator.mul, factors)

@dataclass(frozen=True)
class Part:
  """
  out[.., part, column]: columns 0.. sums of exp2(slope * (score - top)) * values, then top, then the sum of exp2 alone.

  ends: the loops of all outputs; top: the maximum of all scores, or a number where all are masked; weighted: the sum
  """
  store: UOp
  ends: tuple[UOp, ...]
  column: UOp
  width: int
  top: UOp
  weighted: UOp

  @classmethod
  def of(cls, ast: UOp) -> Part|None:
    """None if it is another kernel."""
    if len(ast.src) != 1 or (end := ast.src[0]).op is not Ops.END: return None
    if (store := end.src[0]).op is not Ops.STORE: return None
    if (value := store.src[1]).op is not Ops.WHERE or value.src[2].op is not Ops.WHERE: return None
    (is_column, weighted, (_, top, total)) = (*value.src[:2], value.src[2].src)
    if is_column.op is not Ops.CMPLT or (column := is_column.src[0]).op is not Ops.RANGE: return None
    if is_column.src[1].op is not Ops.CONST or top.op is not Ops.MAX: return None
    if any(u.op is not Ops.REDUCE or len(u.src) != 2 for u in (weighted, total, top.src[0])): return None
    ret = cls(store, end.src[1:], column, int(is_column.src[1].val), top, weighted)
    exps = [f for f in ret._factors if f.op is Ops.EXP2 and top in f.backward_slice]
    return ret if len(exps) == 1 and len(ret.dots) == 1 and len(ret._symbolic) <= 1 else None

  @property
  def _factors(self) -> list[UOp]: return list(self.weighted.src[0].split_uop(Ops.MUL))
  @cached_property
  def exponential(self) -> UOp:
    return next(f for f in self._factors if f.op is Ops.EXP2 and self.top in f.backward_slice)
  @property
  def slope(self) -> float: return self.exponential.src[0].src[1].val
  @cached_property
  def score(self) -> UOp: return self.exponential.src[0].src[0].src[0]
  @property
  def position(self) -> UOp: return self.weighted.src[1]
  @property
  def positions(self) -> int: return size(self.position)
  @cached_property
  def dots(self) -> list[UOp]: return [u for u in self.score.toposort() if u.op is Ops.REDUCE]
  @property
  def dot(self) -> UOp: return self.dots[0]
  @property
  def depth(self) -> int: return sizes(list(self.dot.src[1:]))
  @property
  def _symbolic(self) -> list[UOp]: return [r for r in self.ends if r.src[0].op is not Ops.CONST]
  @cached_property
  def _sides(self) -> tuple[list[UOp], list[UOp]]:
    keys, queries = partition(self.dot.src[0].split_uop(Ops.MUL), lambda f: self.position in f.ranges)
    return list(keys), list(queries)
  @cached_property
  def heads(self) -> list[UOp]:
    """The loops of outputs that keys differ in, and that of the parts."""
    kept = (*self._sides[0], self._values)
    return [r for r in self.ends if r is not self.column and any(r in k.ranges for k in kept)]
  @cached_property
  def group(self) -> list[UOp]:
    """Those of queries that share keys."""
    return [r for r in self.ends if r is not self.column and r not in self.heads]
  @cached_property
  def _values(self) -> UOp: return _product([f for f in self._factors if f is not self.exponential])

  def _at(self, u: UOp, at: dict[UOp, UOp]) -> UOp: return u.substitute(at, walk=True)
  def query(self, of: UOp, depth: UOp) -> UOp:
    """Element `depth` of the query of a group."""
    return self._at(_product(self._sides[1]), apart(of, self.group) | apart(depth, list(self.dot.src[1:])))
  def key(self, position: UOp, depth: UOp) -> UOp:
    return self._at(_product(self._sides[0]), {self.position: position} | apart(depth, list(self.dot.src[1:])))
  def masked(self, dot: UOp, of: UOp, position: UOp) -> UOp:
    """The score of a query and a position whose product is `dot`."""
    return self._at(self.score, {self.dot: dot, self.position: position} | apart(of, self.group))
  def value(self, position: UOp, column: UOp) -> UOp:
    return self._at(self._values, {self.position: position, self.column: column})
  def out(self, of: UOp, column: UOp) -> UOp:
    """Where a number of the part is stored."""
    return self._at(self.store.src[0], {self.column: column} | apart(of, self.group))
