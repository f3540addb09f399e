"""
Loop merging: tinygrad's merge of two loops is not tried where an index shows that it must fail.

Why: to merge two loops tinygrad rewrites the kernel with one loop, n // s and n % s in the place of the two, and then
  counts divisions. In 50 of 58 kernels of Gemma 3 270M nothing came of it.
How: an index a * r0 + b * r1, whose other terms do not depend on the two loops, keeps a division unless a = s * b.
  Where no division has r0 or r1 in it yet, one such index is enough to know the answer.
Rewrite: none; kernels are the same
Numbers: CPU seconds of merging, a prompt and a decode step of Gemma 3 270M: 1.7 -> 0.2 of 25 (2-core AMD EPYC)
Upstream: could be sent as it is.
"""
from __future__ import annotations
import itertools
from collections.abc import Iterable
from tinygrad import codegen
from tinygrad.codegen import simplify
from tinygrad.codegen.simplify import pm_flatten_range
from tinygrad.uop import ops
from tinygrad.uop.ops import Ops, PatternMatcher, UOp, UPat, graph_rewrite
from tinygrad.uop.symbolic import symbolic
from tinygrad_llm.patches import places
from tinygrad_llm.patches.ir.indices import strides

SEAMS = {
  "tinygrad.codegen.simplify:simplify_merge_adjacent": "638925ab3dd7",
  "tinygrad.codegen.simplify:pm_simplify_ranges": "cf6ab7afe6d6",
}

DIVISIONS = frozenset({Ops.FLOORDIV, Ops.FLOORMOD})
pm_merge = ops._substitute + symbolic + pm_flatten_range

def _divisions(nodes: Iterable[UOp]) -> list[UOp]: return [n for n in nodes if n.op in DIVISIONS]
def _indices(nodes: Iterable[UOp]) -> list[UOp]:
  return [n.src[1] for n in nodes if n.op is Ops.INDEX and len(n.src) == 2]

def is_hopeless(r0: UOp, r1: UOp, indices: list[UOp], divisions: list[UOp]) -> bool:
  """
  Whether merging loops r0 and r1 must leave a division in some memory index, so the merge need not be tried.

  indices, divisions: the memory indices and all divisions of the graph that holds both loops.
  """
  if r1.src[0].op is not Ops.CONST or any(r0 in d.ranges or r1 in d.ranges for d in divisions): return False
  for index in indices:
    found = strides(index)
    if (found.get(r0, 0) != found.get(r1, 0) * r1.src[0].val and
        not any(r in term.ranges for term in index.split_uop(Ops.ADD) if term not in found and
                not (term.op is Ops.MUL and term.src[0] in found) for r in (r0, r1))): return True
  return False

def merge_adjacent(u: UOp) -> UOp|None:
  """
  An END or REDUCE with fewer loops, where that adds no division; None if it has fewer than two. END: neighbours are
  tried; REDUCE: any two, as their order is free.
  """
  loops = u.ended_ranges
  if len(loops) < 2 or not all(r.op is Ops.RANGE for r in loops): return None
  nodes = u.toposort()
  sums, indices, divisions = [n.ranges for n in nodes if n.op is Ops.REDUCE], _indices(nodes), _divisions(nodes)
  for r0, r1 in itertools.pairwise(loops) if u.op is Ops.END else itertools.permutations(loops, 2):
    if r0.arg[-1] != r1.arg[-1] or any((r0 in ranges) != (r1 in ranges) for ranges in sums): continue
    if is_hopeless(r0, r1, indices, divisions): continue
    one = r0.replace(src=(r0.src[0] * r1.src[0],))
    made = graph_rewrite(u, pm_merge, ctx={r0: one // r1.src[0], r1: one % r1.src[0]}, name="merge loops")
    if len(found := _divisions(nodes := made.toposort())) <= len(divisions):
      u, indices, divisions = made, _indices(nodes), found
  return u

_rest = [rule for rule in simplify.pm_simplify_ranges.patterns if Ops.END not in (rule[0].op or ())]
pm_simplify_ranges = PatternMatcher([(UPat((Ops.END, Ops.REDUCE), name="u"), merge_adjacent), *_rest])

def install() -> None: places.replace(codegen, "pm_simplify_ranges", pm_simplify_ranges)
