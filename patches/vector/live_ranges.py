"""
Short live ranges: loaded weights are multiplied and added up before the next load. A part of ordered_loads.py.

Volatile loads are scheduling barriers for clang: what stands between two of them stays there. This module sinks
activation loads, and loads of their sums, below the weight load that they meet. It finishes the sums that a load
completes before the next load, and adds terms in the order in which they are complete. Otherwise all partial products
of a block stay live until the last load, and spill.

The order of a sum, and which of its products an instruction adds, depend on the sum alone. A row of x then has the same
numbers, to the bit, whatever number of rows shares the weights.
"""
from __future__ import annotations
import functools
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import Ops, UOp, axis_to_pos
from tinygrad_llm.patches.ir.indices import users_of

EFFECTS = (Ops.STORE, Ops.AFTER, Ops.END, Ops.GROUP, Ops.SINK, Ops.RANGE)
SUMS = (dtypes.int, dtypes.float)
SHORT = 2  # a sum whose terms wait for at most so many loads keeps its order
LATENCY = 8  # instructions that a core executes during the latency of an addition
EACH = 4   # registers that each token needs at least, for sums to be complete before the next load

def innermost(u: UOp) -> UOp|None:
  """The innermost loop that a value is computed in; None: outside of all loops."""
  loops = [r for r in u.ranges if r.op is Ops.RANGE]
  return max(loops, key=lambda r: (axis_to_pos[r.arg[-1]], r.arg[:-1])) if loops else None

def shortened(sink: UOp, chains: list[list[UOp]], tag: tuple[str, int], tokens: int, registers: int) -> UOp:
  """
  The kernel with the loads of each chain in their order, tagged with `tag`.

  tokens: how many tokens the loaded weights are multiplied by. registers: vectors of 16 floats that the target's
  registers hold.
  """
  sink = sorted_sums(sink, [u for loads in chains for u in loads])
  return LiveRanges(sink, chains, tokens > 1).placed(tag, EACH * tokens <= registers)

def _is_read(u: UOp) -> bool:
  """Whether it is a scalar load from memory or a filled array: an activation, or a sum of activations."""
  return u.op is Ops.LOAD and len(u.src) == 1 and u.src[0].op is Ops.INDEX and (
    u.src[0].src[0].op in (Ops.PARAM, Ops.AFTER))

def _is_sum(u: UOp) -> bool:
  """Whether it accumulates products: a float addition, or an instruction for dot products."""
  return _is_add(u) or u.op is Ops.CUSTOMI and u.dtype in SUMS

def _is_add(u: UOp) -> bool: return u.op is Ops.ADD and u.dtype == dtypes.float

class Uses:
  """`users`: each value's users. `last`: {value that depends on the loads: the number of the last such load}."""
  def __init__(self, sink: UOp, loads: list[UOp]):
    self.ops, self.last = sink.toposort(), {u: i for i, u in enumerate(loads)}
    self.users = users_of(self.ops)
    for u in self.ops:
      of = [self.last[s] for s in u.src if s in self.last]
      if of and u.op not in EFFECTS: self.last[u] = max([self.last.get(u, 0), *of])

def sorted_sums(sink: UOp, loads: list[UOp]) -> UOp:
  """Reorders float sums: their terms are added in the order of each term's last load."""
  uses, subs = Uses(sink, loads), dict[UOp, UOp]()
  def is_term(u: UOp) -> bool: return not _is_add(u) or len(uses.users[u]) > 1
  for u in uses.last:
    if not _is_add(u) or not is_term(u) and _is_add(uses.users[u][0]): continue
    terms, left = list[UOp](), list(u.src[::-1])
    while left:
      if is_term(t := left.pop()): terms.append(t)
      else: left += t.src[::-1]
    if len({uses.last[t] for t in terms if t in uses.last}) <= SHORT: continue
    # the accumulator's value comes first, because instructions add products to it; last, if they would wait for it
    waits = LATENCY * len(terms) > sum(v in uses.last for v in u.backward_slice)
    terms.sort(key=lambda t: uses.last.get(t, len(loads) if waits else -1))
    # clang fuses the left one of two products with their addition: it leaves the first term alone, as it would be if a
    # loop added the terms to zero
    if all(t.op is Ops.MUL for t in terms[:2]): terms[:2] = terms[1::-1]
    subs[u] = functools.reduce(lambda a, b: a.alu(Ops.ADD, b), terms)
  return sink.substitute(subs) if subs else sink

class LiveRanges(Uses):
  """
  Places computations between ordered loads of the same loop.

  together: a scalar load is placed by the end of its chain of byte dot products, not by the first of them.
  """
  def __init__(self, sink: UOp, chains: list[list[UOp]], together: bool):
    self.loads = loads = [u for loads in chains for u in loads]
    super().__init__(sink, loads)
    self.sink, self.first, self.new = sink, {loads[0] for loads in chains}, dict[UOp, UOp]()
    self.loops = [innermost(u.src[0].src[1]) for u in loads]
    def where(u: UOp) -> int:
      while together and u.op is Ops.CUSTOMI and len(by := self.users[u]) == 1 and by[0].op is Ops.CUSTOMI: u = by[0]
      return self.last[u]
    places = {s for u in loads for s in u.src[0].backward_slice}
    # {scalar load: number of the load that it is placed after}
    self.before = {x: at for x, us in self._met().items() if x not in places and
                   innermost(x.src[0].src[1]) is self.loops[at := min(map(where, us))]}
    # {value: number of the last load that precedes it, also in earlier loops; -1: none does}
    self.after, number = dict[UOp, int](), {u: i for i, u in enumerate(loads)}
    for u in self.ops:
      self.after[u] = max(number.get(u, -1), self.before.get(u, -1), *[self.after[s] for s in u.src], -1)

  def _met(self) -> dict[UOp, list[UOp]]:
    """{scalar load: the values in which it first meets an ordered load}."""
    numbers, met = dict[UOp, set[UOp]](), dict[UOp, list[UOp]]()  # {value: scalar loads in it}
    for u in self.ops:
      if u.op in EFFECTS: continue
      of = set().union(*[numbers.get(s, set()) for s in u.src])
      if u not in self.last: numbers[u] = {u} if _is_read(u) else of
      elif u.op is not Ops.LOAD:
        for x in of: met.setdefault(x, []).append(u)
    return met

  def _is_fused(self, u: UOp) -> bool:
    """Whether clang makes one instruction of a product and its addition. If the product had a name, it would not."""
    return u.op is Ops.MUL and u.dtype == dtypes.float and all(_is_add(by) for by in self.users[u])

  def completed(self) -> dict[int, list[UOp]]:
    """{number of a load: the sums that it completes, to which later loads' products are added}."""
    found, sums = dict[int, list[UOp]](), set[UOp]()
    for u in self.ops:
      if u not in self.last or not _is_sum(u) and sums.isdisjoint(u.src): continue
      sums.add(u)
      if any(by.op is Ops.CUSTOMI for by in self.users[u]): continue  # an instruction accumulates onto it
      at = self.last[u]
      if self.after[u] > at: continue  # it depends on a loop whose loads have later numbers
      if any(self.last.get(by, -1) > at for by in self.users[u]) and innermost(u) is self.loops[at]:
        found.setdefault(at, []).extend([s for s in u.src if s in sums] if self._is_fused(u) else [u])
    return found

  def placed(self, tag: tuple[str, int], complete: bool) -> UOp:
    """The kernel with the computations between its loads. complete: finishes sums before the next load, too."""
    completed = self.completed() if complete else {}
    for i, u in enumerate(self.loads):
      buf, *index = u.src[0].src
      if u not in self.first:
        buf = buf.after(self.new[self.loads[i - 1]], *map(self._built, completed.get(i - 1, [])))
      self.new[u] = u.replace(src=(u.src[0].replace(src=(buf, *map(self._built, index))),), tag=tag)
    return self._built(self.sink)

  def _built(self, root: UOp) -> UOp:
    for u in root.toposort(lambda u: u not in self.new):
      src = tuple(self.new[s] for s in u.src)
      if (at := self.before.get(u)) is not None:
        buf, *index = src[0].src
        src = (src[0].replace(src=(buf.after(self.new[self.loads[at]]), *index)),)
      self.new[u] = u if src == u.src else u.replace(src=src)
    return self.new[root]
