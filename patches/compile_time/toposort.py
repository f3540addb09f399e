"""
Toposort: depth-first walks of a graph take fewer steps of Python.

Why: a model's first start asks 75,000 times for all nodes of a graph, sources first. For each source of each node
  tinygrad's walk puts a pair on its stack: a tenth of the time of a lowering.
How: the stack holds nodes. None on it says that the sources of the node under it are done.
Numbers: microseconds a node, 5,000 nodes, the fastest of 15: 0.56, 0.58, 0.55 -> 0.35, 0.44, 0.39 (2-core AMD EPYC)
Upstream: could be sent as it is.
"""
from __future__ import annotations
from collections.abc import Callable
from tinygrad.uop.ops import UOp
from tinygrad_llm.patches import places
from tinygrad_llm.patches.compile_time.graph_rewrite import CALLS

SEAMS = {
  "tinygrad.uop.ops:UOp.toposort": "3f1bcf4e29e3",
}

def toposort(self: UOp, gate: Callable[[UOp], bool]|None = None, enter_calls: bool = True) -> dict[UOp, None]:
  """
  The nodes of a graph, sources first. gate: whether a node belongs to the graph; enter_calls: whether calls' bodies do.
  """
  done: dict[UOp, None] = {}
  todo: list[UOp|None] = [self]
  pop, push = todo.pop, todo.append
  while todo:
    if (node := pop()) is None: done[pop()] = None  # type: ignore[index]
    elif node not in done and (gate is None or gate(node)):
      push(node)
      push(None)
      todo += (node.src if enter_calls or node.op not in CALLS else node.src[1:])[::-1]
  return done

def install() -> None: places.replace(UOp, "toposort", toposort)
