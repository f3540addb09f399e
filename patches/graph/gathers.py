"""
Gather fusion: an embedding or look-up of rows is fused into the kernel that uses the rows, for any number of rows.

Why: x[ids] is a sum over all rows of (row == id) * x[row], which tinygrad turns into a load when it compiles a kernel.
  Two rules of its scheduler come before that. One splits a sum of 32,768 steps or more into two kernels; the other
  stores a sum that is expanded again. So an embedding with a large vocabulary reads 256 rows, and a look-up in the
  grid of an IQ type writes all its rows as float32.
How: the scheduler applies tinygrad's load-collapse rules itself, so the sum becomes a load at once. A sum of
  (i == id) * .. is not split.
Rewrite:
  rows = sum i: (i == id) * x[i, ..]; store rows; y = f(load rows)
  --> y = f(x[id, ..])
Numbers: embedding row of 128,256 x 2048 Q6_K, a token: 2 kernels -> 1, 0.54 -> 0.06 ms with its launch
Upstream: not sent; the first half is one line there (pm_reduce_simplify + pm_load_collapse).
"""
from __future__ import annotations
from tinygrad.codegen import simplify
from tinygrad.schedule import rangeify
from tinygrad.uop.ops import Ops, PatternMatcher, UOp, UPat
from tinygrad_llm.patches import places
from tinygrad_llm.patches.ir.indices import is_gather

SEAMS = {
  "tinygrad.schedule.rangeify:earliest_rewrites": "e1dba6cfa6c6",
  "tinygrad.schedule.rangeify:split_reduceop": "b45e468d2f20",
  "tinygrad.schedule.rangeify:get_kernel_graph": "410b0e3486ef",
  "tinygrad.codegen.simplify:pm_load_collapse": "61f512212d8c",
}

_split_reduceop = rangeify.split_reduceop

def split_reduceop(reduce: UOp, x: UOp) -> UOp|None:
  return None if reduce.arg[0] is Ops.ADD and is_gather(x) else _split_reduceop(reduce, x)

def of_any_length(red: UOp, u: UOp) -> UOp|None:
  """
  tinygrad's load-collapse rule for a loop whose length is an expression.

  That rule loses the expression, so a variable takes its place until the sum is collapsed.
  """
  if (loop := red.src[1]).op is not Ops.RANGE or (length := loop.src[0]).op in (Ops.CONST, Ops.PARAM): return None
  known = UOp.variable("rows", length.vmin, length.vmax, length.dtype, param=True)
  value = u.substitute(to := {loop: loop.replace(src=(known,))})
  made = simplify.reduce_load_collapse(value.reduce(*to.values(), arg=Ops.ADD), value)
  return None if made is None else made.substitute({known: length})

pm_of_any_length = PatternMatcher([(UPat(Ops.REDUCE, arg=(Ops.ADD, 0), src=(UPat.var("u"), UPat()), name="red"),
                                    of_any_length)])

def install() -> None:
  rules = [(p, split_reduceop if f is _split_reduceop else f) for p, f in rangeify.earliest_rewrites.patterns]
  places.replace(rangeify, "earliest_rewrites", PatternMatcher(rules))
  places.stock[split_reduceop] = _split_reduceop
  of_loads = simplify.pm_reduce_simplify + pm_of_any_length + simplify.pm_load_collapse
  places.replace(rangeify, "pm_reduce_simplify", of_loads)
