"""
The kernel of a part of the positions, as flash_decoding.py makes it: its loops, and its values at other loops' indices.
Used by online_softmax.py.
"""
from __future__ import annotations
from dataclasses import dataclass
from functools import cached_property
from tinygrad.helpers import partition
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.attention.bounds import visible
from tinygrad_llm.patches.ir.indices import apart, size, steps
from tinygrad_llm.patches.ir.sums import product

@dataclass(frozen=True)
class Part:
  """
  A part: out[.., part, column] holds `width` sums, then the maximum score, then the sum of exponentials.

  The sums, over positions, are of exp2(slope * (score - top)) * values. The sum of exponentials has no values in it.

  ends: the loops of all outputs; top: the maximum of all scores, or a constant if all are masked; weighted: the sum
  with values.
  """
  store: UOp
  ends: tuple[UOp, ...]
  column: UOp
  width: int
  top: UOp
  weighted: UOp

  @classmethod
  def of(cls, ast: UOp) -> Part|None:
    """The part that a kernel computes; None for any other kernel."""
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
  def slope(self) -> float: return float(self.exponential.src[0].src[1].val)
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
  def depth(self) -> int: return steps(self.dot.src[1:])
  @property
  def _symbolic(self) -> list[UOp]: return [r for r in self.ends if r.src[0].op is not Ops.CONST]
  @cached_property
  def _sides(self) -> tuple[list[UOp], list[UOp]]:
    keys, queries = partition(self.dot.src[0].split_uop(Ops.MUL), lambda f: self.position in f.ranges)
    return list(keys), list(queries)
  @cached_property
  def heads(self) -> list[UOp]:
    """The output loops that keys or values depend on: heads, and the loop over parts."""
    kept = (*self._sides[0], self._values)
    return [r for r in self.ends if r is not self.column and any(r in k.ranges for k in kept)]
  @cached_property
  def group(self) -> list[UOp]:
    """The output loops of the queries that share keys."""
    return [r for r in self.ends if r is not self.column and r not in self.heads]
  @property
  def tokens(self) -> UOp|None:
    """The loop of the group over a prompt's tokens, of symbolic length; None if there is none."""
    return next((r for r in self.group if r.src[0].op is not Ops.CONST), None)
  def some_tokens(self, at: UOp, some: UOp) -> Part:
    """The part for some of the tokens. some: the loop over these; at: the number of the token in each of its steps."""
    tokens = self.tokens
    assert tokens is not None
    store, top, weighted = (u.substitute({tokens: at}, walk=True) for u in (self.store, self.top, self.weighted))
    return Part(store, tuple(some if r is tokens else r for r in self.ends), self.column, self.width, top, weighted)
  def bounds(self, first: dict[UOp, UOp], last: dict[UOp, UOp]) -> tuple[UOp|None, UOp|None]:
    """
    The first and the last position that a causal mask and a window leave to some queries; None: no bound.

    first, last: {loop of the group: its step} of the first and the last query in time.
    """
    begin, end = visible(self.score, self.position)
    return (None if begin is None else begin.substitute(first, walk=True),
            None if end is None else end.substitute(last, walk=True))
  @cached_property
  def _values(self) -> UOp: return product([f for f in self._factors if f is not self.exponential])

  def _at(self, u: UOp, at: dict[UOp, UOp]) -> UOp: return u.substitute(at, walk=True)
  def query(self, of: UOp, depth: UOp) -> UOp:
    """Element `depth` of query `of` of a group."""
    return self._at(product(self._sides[1]), apart(of, self.group) | apart(depth, list(self.dot.src[1:])))
  @property
  def paged(self) -> bool:
    """Whether keys lie where a table of blocks says: their index has a load that depends on the position."""
    indices = [at for key in self._sides[0] for u in key.toposort() if u.op is Ops.INDEX for at in u.src[1:]]
    return any(u.op is Ops.INDEX and self.position in u.ranges for at in indices for u in at.toposort())
  def key(self, position: UOp, depth: UOp) -> UOp:
    return self._at(product(self._sides[0]), {self.position: position} | apart(depth, list(self.dot.src[1:])))
  def masked(self, dot: UOp, of: UOp, position: UOp) -> UOp:
    """The score of query `of` and a position whose product is `dot`."""
    return self._at(self.score, {self.dot: dot, self.position: position} | apart(of, self.group))
  def value(self, position: UOp, column: UOp) -> UOp:
    return self._at(self._values, {self.position: position, self.column: column})
  def out(self, of: UOp, column: UOp) -> UOp:
    """The place in memory of a number of the part."""
    return self._at(self.store.src[0], {self.column: column} | apart(of, self.group))
