"""
Graph dependencies: a kernel of a CUDA graph waits for those whose memory it shares, not for all of an allocation.

Why: the memory planner puts a step's intermediate buffers into one allocation, and CUDAGraph records that a kernel uses
  all of it. So each kernel waits for the one before, even where it reads nothing of it.
How: a node is tracked by the parts of an allocation that its arguments are, which tinygrad's tracker supports. An input
  is tracked as its whole buffer, since it is another one at each replay. An edge that other edges imply is left out.
  Graphs over several devices are left alone.
Numbers: the bundled model's steps for sm_90, nodes, edges and the longest chain: greedy 39, 38, 39 -> 39, 40, 37; with
  sampling 45, 44, 45 -> 45, 47, 41: a decode step is nearly a chain by its data. On an H100 decode takes as long
  without it.
Upstream: not sent; in tinygrad, CUDAGraph.new_node without `.base`.
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
  """The buffers that a call's arguments are; for an input, the whole buffer that it is a part of."""
  args, buffers = get_call_arg_uops(graph.linear.src[j]), graph.calls[j][2]
  is_input = [any(u.op is Ops.PARAM for u in arg.toposort()) for arg in args]
  return [b.base if of_input else b for b, of_input in zip(buffers, is_input, strict=True)]

def access_resources(self: GraphRunner, bufs: list[Buffer], write: list[int], new_dependency: Any) -> list[Any]:
  nodes = getattr(self, "nodes", None)  # only a CUDAGraph has them: one for each call so far
  if nodes is None or len(self.calls) != len(self.linear.src):
    return list(_stock(self, bufs, write, new_dependency))
  found = _stock(self, used(self, len(nodes)), write, new_dependency)
  before: dict[int, set[int]] = self.__dict__.setdefault("nodes_before", {})  # nodes that are done when a node begins
  before[id(new_dependency)] = {id(node) for node in found}.union(*(before[id(node)] for node in found))
  implied = set[int]().union(*(before[id(node)] for node in found))
  return [node for node in found if id(node) not in implied]

def install() -> None: places.replace(GraphRunner, "_access_resources", access_resources)
