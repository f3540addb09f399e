"""
The outputs of a function that are still to be written are looked for once.

Why: tinygrad.function numbers them again at the end of each call, and walks the whole graph for every node in it to see
  which they are: a fifth of the time that a model's layers take to be traced and scheduled.
How: they are found once; where there are none, nothing is numbered.
Numbers: CPU seconds to the first token of the bundled model, caches empty, PARALLEL=0: 22.9 -> 19.7 (2-core AMD EPYC).
Upstream: not sent; the call belongs before the loop there.
"""
from dataclasses import replace
import importlib
from tinygrad.uop.ops import UOp
from tinygrad_llm.patches import places

SEAMS = {
  "tinygrad.function:renumber_invalid_outputs": "cb2c7b1bd563",
  "tinygrad.function:invalid_outputs": "d93aa10c775d",
}

function = importlib.import_module("tinygrad.function")  # tinygrad.function is the class in it

def renumber_invalid_outputs(graph: UOp) -> UOp:
  """`graph` with slots 0, 1, .. for the buffers that it only writes, in the order in which it gets to them."""
  if not (found := function.invalid_outputs(graph)): return graph
  outputs = [u for u in graph.toposort(enter_calls=False) if u in found]
  return graph.substitute({u: u.replace(arg=replace(u.arg, slot=i)) for i, u in enumerate(outputs)})

def install() -> None: places.replace(function, "renumber_invalid_outputs", renumber_invalid_outputs)
