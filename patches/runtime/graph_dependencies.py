"""
Graph dependencies: a kernel of a CUDA graph waits for those whose memory it shares, not for all of an allocation.

Why: the memory planner puts what a step computes into one allocation, and CUDAGraph says of a kernel that it uses all
  of that: each waits for the one before, also where it reads nothing of it.
How: what is tracked for a node is the part of an allocation that its arguments are, as tinygrad's tracker can; of an
  input, which is another buffer at each replay, it is all. What a node waits for by way of another is no edge of its
  own. Graphs over several devices are left alone.
Numbers: the bundled model's steps for sm_90, nodes, edges and the longest chain: greedy 39, 38, 39 -> 39, 40, 37; with
  sampling 45, 44, 45 -> 45, 47, 41: a decode step is nearly a chain by what it computes. On an H100 decode takes as
  long without it.
Upstream: not sent; there, CUDAGraph.new_node without `.base`.
"""
from __future__ import annotations
from typing import Any
from tinygrad.device import Buffer
from tinygrad.engine.jit import GraphRunner
from tinygrad.engine.realize import get_call_arg_uops
from tinygrad.uop.ops import Ops
from tinygrad_llm.patches import places

SEAMS = {
  "tinygrad.device:DepsTracker": "ec88676efe03",
  "tinygrad.engine.jit:GraphRunner": "22848ebda068",
  "tinygrad.engine.realize:get_call_arg_uops": "38ced58e9a60",
  "tinygrad.runtime.graph.cuda:CUDAGraph": "8664bea08b5b",
}

_stock = GraphRunner._access_resources

def used(graph: GraphRunner, j: int) -> list[Buffer]:
  """What the arguments of a graph's call are, of an input all that it is a part of."""
  args, buffers = get_call_arg_uops(graph.linear.src[j]), graph.calls[j][2]
  is_input = [any(u.op is Ops.PARAM for u in arg.toposort()) for arg in args]
  return [b.base if of_input else b for b, of_input in zip(buffers, is_input, strict=True)]

def access_resources(self: GraphRunner, bufs: list[Buffer], write: list[int], new_dependency: Any) -> list[Any]:
  nodes = getattr(self, "nodes", None)  # a CUDAGraph has them: one for each call so far
  if nodes is None or len(self.calls) != len(self.linear.src):
    return list(_stock(self, bufs, write, new_dependency))
  found = _stock(self, used(self, len(nodes)), write, new_dependency)
  before: dict[int, set[int]] = self.__dict__.setdefault("nodes_before", {})  # all that is done when a node begins
  before[id(new_dependency)] = {id(node) for node in found}.union(*(before[id(node)] for node in found))
  implied = set[int]().union(*(before[id(node)] for node in found))
  return [node for node in found if id(node) not in implied]

def install() -> None: places.replace(GraphRunner, "_access_resources", access_resources)
