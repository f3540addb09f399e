"""
Loop-invariant code motion of sums: partial sums that are the same for all rows of a matrix are added up once.

Why: a weight d * q - m makes sum(x * d * q) - sum(x * m). The m of a group of weights multiplies the sum of the group's
  x, and that sum is the same for all rows.
How: in a summed product, the pass takes the factors that no output axis changes. It sums them over the loops that only
  they depend on, into a local array of the kernel, in a loop before the loop over the rows. The output axis of a few
  unrolled tokens may change them, too: the array then has sums for each token. So may loops around the rows, such as
  a loop over pairs of rows and experts: the array is then made in them. Sums that are stored beside activations
  (ir/byte_groups.py) are loaded. An offset that all weights of a format have becomes a start of integer dot products
  (starting_sums.py).
Rewrite:
  for row: sum a: d[row, a] * (sum c: q[row, a, c] * x[a, c]) - m[row, a] * (sum c: x[a, c])
  --> t[a] = sum c: x[a, c]; for row: sum a: d[row, a] * (sum c: q[row, a, c] * x[a, c]) - m[row, a] * t[a]
Numbers: Q4_K 8192 x 8192, one core: 6.5 -> 7.1 GB/s; Q4_1 7.7 -> 8.3 (Zen 4, medians of 15, interleaved). 2 rows by
  8192 x 2048 in Q4_K, in the cache, 2 threads, with each row's own sums: 0.27 -> 0.20 ms (Zen 4, medians). A group's
  scale goes into the array with its sum: 1, 2, 4, 8 rows in Q2_K 0.88, 0.88, 0.87, 0.81 of the time (Zen 5). Groups of
  4 and 8 rows by 8 experts of 1536 x 2048 each in Q4_K, in a loop over groups: 0.54, 0.41 (Zen 5, 2 threads)
Upstream: not sent; it needs nested sums (factor_sums) and local arrays before expansion first.
"""
from __future__ import annotations
from collections.abc import Iterable
from tinygrad import codegen
from tinygrad.dtype import AddrSpace, dtypes
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import AxisType, Ops, UOp
from tinygrad_llm.patches import hooks, places
from tinygrad_llm.patches.ir.actions import ScheduleOps, chosen
from tinygrad_llm.patches.ir.builder import Slot, next_loop
from tinygrad_llm.patches.ir.byte_groups import Group, find
from tinygrad_llm.patches.ir.indices import flat, size, steps
from tinygrad_llm.patches.ir.sums import Factors, added, has_constant, product, sum_of_products
from tinygrad_llm.patches.ir.targets import has_vectors
from tinygrad_llm.patches.loops.starting_sums import starts

SEAMS = {
  "tinygrad.codegen:devectorizer2": "566768760ee6",
  "tinygrad.codegen:reduce_ranges_to_acc": "bd8572676d59",
}

ROWS = 16       # fewer rows do not pay for the array
LARGEST = 8192  # most sums in an array

def _products(u: UOp, loops: frozenset[UOp], consts: bool) -> list[Factors]:
  """
  u as a sum of products. A factor that is a sum is multiplied out if some of its terms lack loops that others have.

  consts: multiply out sums with constant terms, too.
  """
  def is_whole(products: list[Factors]) -> bool:
    # adding a constant is cheaper than an array, unless it keeps int8 products from being summed as integers
    if not consts and has_constant(products): return True
    inside = [loops.intersection(r for f in p for r in f.ranges) for p in products]
    return len(set(inside)) <= 1 or loops not in inside
  return sum_of_products(u, is_whole)

def repeats(red: UOp, apart: Iterable[UOp] = ()) -> int:
  """How often a kernel computes a sum: the steps of its output loops, without threads and the loops `apart`."""
  return steps(r for r in red.ranges if r.arg[-1] in (AxisType.WEAK, AxisType.UPCAST) and r not in apart)

def _nests(red: UOp) -> list[frozenset[UOp]]:
  """
  The outermost output loops of a sum, first none: the array may be made inside of them, outside of the others.

  In the loop over pairs of rows and experts, each pair has its own x. The matrix depends on these loops, too: a loop
  over tokens alone is inside of the loop over rows, so that tokens share the weights.
  """
  outside = sorted((r for r in red.ranges if r.arg[-1] is AxisType.WEAK), key=lambda r: r.arg)
  return [frozenset(outside[:n]) for n in range(len(outside))]

def _unrolled_apart(p: Factors, loops: frozenset[UOp]) -> frozenset[UOp]:
  """
  The unrolled output loops, such as over a few tokens, that can be kept in the array.

  A factor that depends on other output loops does not depend on these. loops: of the sum, and around the array.
  """
  def outside(f: UOp) -> set[UOp]: return set(f.ranges) - loops
  others = {r for f in p if any(r.arg[-1] is not AxisType.UPCAST for r in outside(f)) for r in f.ranges}
  return frozenset(r for f in p for r in outside(f) - others) if others else frozenset()

def _array(value: UOp, group: Group|None, over: list[UOp], keep: list[UOp], ids: int, slot: int) -> UOp:
  """
  An array of the sums of `value` over the loops `over`, for each step of the loops `keep`.

  group: the group of activations whose stored sums are loaded; None: the sums are computed.
  """
  fresh = {r: UOp.range(size(r), ids + i, AxisType.REDUCE if r in over else AxisType.WEAK)
           for i, r in enumerate([*keep, *over])}
  if group is not None: value, over = group.summed(), [r for r in over if r not in group.loops]
  array = UOp.placeholder((steps(keep),), value.dtype, Slot.HOIST_SUMS + slot, AddrSpace.REG)
  total = value.substitute(fresh)
  if over: total = total.reduce(*[fresh[r] for r in over], arg=Ops.ADD)
  stored = array.index(flat(keep, [fresh[r] for r in keep])).store(total)
  return array.after(stored.end(*[fresh[r] for r in keep]) if keep else stored).index(flat(keep))

def _same(factors: list[UOp], free: frozenset[UOp]) -> list[UOp]:
  """
  The factors of x that are added up over the loops `free`.

  Factors that only the other loops of these change, such as a group's scale, go with them: rows need not multiply.
  """
  loops = {r for f in factors if free.intersection(f.ranges) for r in f.ranges}
  return [f for f in factors if f.ranges and loops.issuperset(f.ranges)]

def _with_starts(red: UOp, products: list[Factors], loops: frozenset[UOp], ids: int, made: dict[tuple[UOp, ...], UOp]
                 ) -> list[Factors]:
  """The products of a sum, with each pair that starting_sums.py finds as one. made: arrays, to which it adds."""
  found, joined = list(products), set[int]()
  for s in starts(products, loops):
    count = steps(s.group.loops)
    for around in _nests(red):
      if not around.issubset(s.weight.ranges): break
      apart = _unrolled_apart(products[s.second], loops | around)
      keep = sorted((r for r in s.start.ranges if r not in around), key=lambda r: r.arg)
      if not (loops | apart).issuperset(keep) or steps(keep) > LARGEST or repeats(red, apart | around) < ROWS: continue
      if (key := (s.start,)) not in made: made[key] = _array(s.start, None, [], keep, ids + 16 * len(made), len(made))
      found[s.first] = (*s.product(made[key]), UOp.const(1 / count, dtypes.float))
      joined.add(s.second)
      break
  return [p for i, p in enumerate(found) if i not in joined]

def _with_sums(red: UOp, p: Factors, around: frozenset[UOp], ids: int, made: dict[tuple[UOp, ...], UOp]
               ) -> Factors|None:
  """A product of a sum with an array, made inside of the loops `around`, in place of factors that rows share."""
  loops = frozenset(red.src[1:])
  apart = _unrolled_apart(p, loops | around)
  rows = [f for f in p if not (loops | apart | around).issuperset(f.ranges)]
  free = loops - {r for f in rows for r in f.ranges}
  same = _same([f for f in p if f not in rows], free)
  count = steps(free)
  if not rows or not all(around.issubset(f.ranges) for f in rows): return None
  if not same or count & (count - 1) or repeats(red, apart | around) < ROWS: return None
  value = product(same)
  own = (loops | apart).intersection(value.ranges) - free
  over, keep = (sorted(rs, key=lambda r: r.arg) for rs in (free, own))
  if steps(keep) > LARGEST: return None
  key = (value, *over)
  if key not in made: made[key] = _array(value, find(same, over), over, keep, ids + 16 * len(made), len(made))
  return (*[f for f in p if f not in same], made[key], value.const_like(1 / count))

def share(sink: UOp, ren: Renderer) -> UOp:
  # tiles/pack_operands.py makes its own arrays of sums
  if not has_vectors(ren) or chosen(sink.arg.applied_opts, ScheduleOps.TILES, 0): return sink
  subs: dict[UOp, UOp] = {}
  made: dict[tuple[UOp, ...], UOp] = {}
  for red in (u for u in sink.toposort() if u.op is Ops.REDUCE and u.arg == (Ops.ADD, 0) and dtypes.is_float(u.dtype)):
    loops, ids = frozenset(red.src[1:]), next_loop(sink)
    if not all(r.op is Ops.RANGE and r.src[0].op is Ops.CONST for r in loops): continue
    if repeats(red) < ROWS: continue
    products = _products(red.src[0], loops, any(u.dtype is dtypes.int8 for u in red.src[0].toposort()))
    products = _with_starts(red, products, loops, ids, made)
    found = [next((f for around in _nests(red) if (f := _with_sums(red, p, around, ids, made)) is not None), p)
             for p in products]
    if made: subs[red] = red.replace(src=(added([product(p) for p in found]), *red.src[1:]))
  return sink.substitute(subs) if made else sink

def install() -> None:
  places.rules(codegen, "devectorizer2", hooks.pm_index_arrays)
  hooks.after_opts.append(share)
