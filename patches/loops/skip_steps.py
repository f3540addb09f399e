"""
Skipped steps: a loop does not compute the steps whose results are not stored.

Why: tinygrad makes a conditional store an IF around the store alone; the stored value is computed before it. Blocks of
  (token, expert) pairs are allocated for the largest possible number, and a prompt fills only some of them.
How: if the single store of a kernel has a condition that depends on one output loop alone, the loop continues with its
  next step where the condition is false. Only on CPUs, whose loops are C loops.
Rewrite:
  for i: y = ..; if c(i): store y
  --> for i: if not c(i): continue; y = ..; store y
Numbers: see weights/expert_blocks.py
Upstream: not sent; there, a rule of its linearizer, for kernels with one store under a condition.
"""
from __future__ import annotations
import functools, operator
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import AxisType, Ops, UOp
from tinygrad_llm.patches import hooks
from tinygrad_llm.patches.ir.indices import while_true
from tinygrad_llm.patches.ir.targets import has_vectors

SEAMS = {
  "tinygrad.codegen:full_rewrite_to_sink": "a1124f83af03",
}

def simplified(condition: UOp) -> UOp:
  """
  The condition without clauses that follow from others: a & (b | a) is a.

  An elementwise function of a value that is not stored everywhere leaves such clauses where it compares the value.
  """
  clauses = dict.fromkeys(condition.split_uop(Ops.AND))
  kept = [c for c in clauses if not any(other in clauses for other in c.split_uop(Ops.OR) if other is not c)]
  return functools.reduce(operator.and_, kept)

def run(sink: UOp, ren: Renderer) -> UOp:
  ops = sink.toposort()
  stores = [u for u in ops if u.op is Ops.STORE and u.src[0].op is Ops.INDEX and u.src[0].src[0].op is Ops.PARAM]
  if not has_vectors(ren) or len(stores) != 1: return sink
  store, (memory, place) = stores[0], stores[0].src[0].src
  if len((condition := simplified(place.get_valid())).ranges) != 1: return sink
  loop = next(iter(condition.ranges))
  end = next((u for u in ops if u.op is Ops.END and loop in u.src and store in u.backward_slice), None)
  if end is None or loop.arg[-1] is not AxisType.WEAK: return sink
  plain = store.replace(src=(store.src[0].replace(src=(memory, place.get_idx())), *store.src[1:]))
  body = end.src[0].substitute({store: plain}).substitute({loop: while_true(condition, loop, "continue")}, walk=True)
  return sink.substitute({end: end.replace(src=(body, *end.src[1:]))})

def install() -> None: hooks.after_opts.append(run)
