"""
Factoring of reductions: a flat sum of products becomes nested sums, with loop-invariant factors (scales) outside.

Why: a quantised weight is scale * (quant - min), with one scale for a group of weights and another for a block. One
  flat sum over all weights of a row unpacks and multiplies both scales again for every weight.
How: after the schedule's opts are applied, a sum over ranges S is written as a sum of products. In each product, the
  factors that depend on the fewest ranges move outside: sum_S a*b*x = sum_A a * sum_(S-A) b*x. The rule looks at
  structure alone: it names no format, and a norm's factor leaves a matmul in the same way.
Rewrite:
  sum a, b, c: d[a] * s[a, b] * q[a, b, c] * x[a, b, c]
  --> sum a: d[a] * (sum b: s[a, b] * (sum c: q[a, b, c] * x[a, b, c]))
Numbers: matvec 8192 x 2048, one core, GB/s: Q4_K 4.1 -> 8.9, MXFP4 2.9 -> 8.5, Q8_0 13.5 -> 17, Q6_K 7.8 -> 8.2
  (Zen 4, AVX-512, medians, all other patches on)
Upstream: not sent; it needs a cost model there, because it changes rounding.
"""
from __future__ import annotations
from tinygrad import codegen
from tinygrad.codegen.simplify import mark_range_mod
from tinygrad.dtype import dtypes
from tinygrad.helpers import partition, prod
from tinygrad.uop.ops import AxisType, Ops, PatternMatcher, UOp, UPat, graph_rewrite
from tinygrad_llm.patches import hooks, places
from tinygrad_llm.patches.ir.indices import inside
from tinygrad_llm.patches.ir.loop_ends import NO_LOOPS, split_loops
from tinygrad_llm.patches.ir.sums import Factors, added, frees_a_factor, product

SEAMS = {
  "tinygrad.codegen:full_rewrite_to_sink": "a1124f83af03",
  "tinygrad.codegen:pm_reduce_local": "ec93369153b7",
  "tinygrad.codegen:reduce_ranges_to_acc": "bd8572676d59",
  "tinygrad.codegen.simplify:pm_split_ranges": "67f8ab61cd77",
}

Ranges = frozenset[UOp]

def _nest(products: list[Factors], ranges: Ranges) -> UOp:
  """The sum of `products` over `ranges`, as nested sums."""
  if not ranges: return added(map(product, products))
  levels: dict[Ranges, list[UOp]] = {}
  for p in products:
    of = {f: inside(f, ranges) for f in p}
    level = min((r for f, r in of.items() if f.op is not Ops.CONST), key=len, default=Ranges())
    outer = [f for f in p if of[f] <= level]
    inner, rest = tuple(f for f in p if not of[f] <= level), ranges - level
    if inner: outer.append(_nest([inner], rest))
    elif rest: outer.append(outer[0].const_like(prod(r.vmax + 1 for r in rest)))  # the term is the same in each step
    levels.setdefault(level, []).append(product(outer))
  sums = [added(terms) for terms in levels.values()]
  order = lambda level: sorted(level, key=lambda r: r.arg)
  return added([s.reduce(*order(level), arg=Ops.ADD) if level else s
                                         for level, s in zip(levels, sums)])

def nest(red: UOp) -> UOp|None:
  if not dtypes.is_float(red.dtype): return None
  if not all(r.op is Ops.RANGE and r.src[0].op is Ops.CONST for r in red.src[1:]): return None
  # the loop that a workgroup's threads share stays outermost
  group, ranges = partition(red.src[1:], lambda r: r.arg[-1] is AxisType.GROUP_REDUCE)
  products = frees_a_factor(red.src[0], frozenset(ranges))
  if all(inside(f, frozenset(ranges)) == frozenset(ranges) for p in products for f in p): return None
  ret = _nest(products, frozenset(ranges))
  return ret.reduce(*group, arg=Ops.ADD) if group else ret

pm_nest = PatternMatcher([(UPat(Ops.REDUCE, arg=(Ops.ADD, 0), name="red"), nest)])

# *** sums over the same loops

def join_ends(sink: UOp) -> UOp|None:
  """Merges sums over the same loops into one loop, also where only some of them depend on a GPU thread's number."""
  alike: dict[tuple[tuple[UOp, ...], frozenset[UOp]], list[UOp]] = {}
  for u in sink.toposort():
    if u.op is not Ops.END or u.tag != "mergeable": continue
    around = frozenset(r for r in u.ranges if r.arg[-1] not in NO_LOOPS)
    if all(e not in u.backward_slice for e in alike.setdefault((u.src[1:], around), [])):
      alike[u.src[1:], around].append(u)
  subs: dict[UOp, UOp] = {}
  for (loops, _), ends in alike.items():
    if len({frozenset(e.ranges) for e in ends}) < 2: continue
    subs |= dict.fromkeys(ends, UOp.group(*[e.src[0] for e in ends]).end(*loops))
  return sink.substitute(subs) if subs else None

pm_join_ends = PatternMatcher([(UPat(Ops.SINK, name="sink"), join_ends)])

# *** a loop r may run over several groups of weights: where an index has r // c, that becomes a loop of its own

def _split_at(ctx: dict[UOp, UOp|None], r: UOp, c: UOp) -> None:
  if r.arg[-1] is AxisType.REDUCE: mark_range_mod(ctx, r, c)

pm_split_div = PatternMatcher([(UPat(Ops.RANGE, name="r") // UPat.cvar("c"), _split_at)])

def install() -> None:
  places.rules(codegen, "pm_split_ranges", pm_split_div)
  places.rules(codegen, "pm_reduce_local", pm_join_ends, first=True)
  hooks.after_opts.append(lambda sink, ren: split_loops(graph_rewrite(sink, pm_nest, name="nest reduces")))
