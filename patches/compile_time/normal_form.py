"""
Normal form: kernels that compute the same are written the same, so they are lowered once.

Why: layers of a model differ in the data that lies beside their inputs. Where V has another type than Q and K, their
  product has 1,280 columns instead of 1,536, and every kernel that reads its first 1,024 was another kernel. A view of
  a buffer that a precompiled layer gets, and the buffer itself, gave two kernels as well.
How: once kernels are known, movement operations on buffers are folded into their indices. A parameter becomes as large
  as its largest index, unless it is used otherwise. Kernels of GPUs stay as they are: there a prompt's rows have other
  strides in such layers, too (weights/linear.py).
Rewrite:
  INDEX(RESHAPE(PARAM of 1536), 0, i), i < 1024
  --> INDEX(PARAM of 1024, i)
Numbers: programs of a prompt and a decode step: Gemma 3 270M (5 weight types) 56 -> 45, SmolLM2 135M 32 -> 28, the
  bundled model 42 -> 36 (with heads stored apart: weights/linear.py)
Upstream: could be sent as it is; tinygrad folds the views later, after it has looked for kernels that it knows.
"""
from __future__ import annotations
import functools
from collections.abc import Callable
from tinygrad import Device, schedule
from tinygrad.schedule.rangeify import pm_mops
from tinygrad.uop.ops import KernelInfo, Ops, UOp, graph_rewrite
from tinygrad_llm.patches import places
from tinygrad_llm.patches.ir.indices import flat_uses, last_use
from tinygrad_llm.patches.ir.targets import has_vectors

SEAMS = {
  "tinygrad.schedule:create_schedule": "6d62571e1f8d",
}

_create_schedule: Callable[[UOp], UOp]  # the function before this patch

def _one_node_a_loop(ast: UOp) -> UOp:
  """Makes equal loops one node: simplification may write a length start + length as length + start, another node."""
  loops, same = dict[tuple, UOp](), dict[UOp, UOp]()
  for u in ast.toposort():
    if u.op is Ops.RANGE and (one := loops.setdefault((u.arg, u.src[0].simplify()), u)) is not u: same[u] = one
  return ast.substitute(same, walk=True) if same else ast

@functools.lru_cache(1024)
def normal(ast: UOp) -> UOp:
  """The normal form of a kernel (SINK). ast: the kernel as the scheduler made it."""
  ast = _one_node_a_loop(graph_rewrite(ast, pm_mops, name="views into indices", bottom_up=True))
  new = {p: p.replace(src=(p.src[0].const_like(n),)) for p, nodes in flat_uses(ast).items()
         if (n := last_use(nodes) + 1) < p.max_numel()}
  return ast.substitute(new, walk=True) if new else ast

def _normal(call: UOp) -> UOp:
  ast, buffers = call.src[0], call.src[1:]
  if ast.op is not Ops.SINK or not isinstance(ast.arg, KernelInfo) or not buffers: return call
  if not isinstance(device := buffers[0].device, str) or not has_vectors(Device[device].renderer): return call
  return call.replace(src=(normal(ast), *buffers))

def create_schedule(sink: UOp) -> UOp:
  linear = _create_schedule(sink)
  return linear.replace(src=tuple(map(_normal, linear.src)))

def install() -> None:
  global _create_schedule
  _create_schedule = places.wrap(schedule, "create_schedule", create_schedule)
