"""
Choice of a schedule: one dispatcher asks the scheduling passes in a fixed order and takes the first answer.

Why: tinygrad has one function of heuristics for all kernels and devices. Passes that wrapped it one around another were
  asked in the reverse order of installation, and nothing recorded which of them had answered.
How: each pass registers a function in `choosers` under its name. The function returns a copy of the kernel with its
  loops chosen, or None. The pass that pipeline.py lists last is asked first; tinygrad's own heuristics come last.
Numbers: none; the kernels are the same as with nested wrappers.
Upstream: not sent. tinygrad's hand_coded_optimizations is one function; it would become a list of choosers.
"""
from __future__ import annotations
from collections.abc import Callable
from tinygrad.codegen.opt import heuristic
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad_llm.patches import places

SEAMS = {
  "tinygrad.codegen.opt.heuristic:hand_coded_optimizations": "0fe425ff3d3b",
  "tinygrad.codegen.opt.postrange:Scheduler": "35256edac7fb",
}

Chooser = Callable[[Scheduler], Scheduler|None]
choosers: dict[str, Chooser] = places.Named(__name__, "choosers")

_stock = heuristic.hand_coded_optimizations

def choose(k: Scheduler, without: str = "") -> Scheduler:
  """Returns the kernel with its loops chosen. without: the name of a pass that is not asked."""
  for name, chooser in reversed(choosers.items()):
    if name != without and (made := chooser(k)) is not None: return made
  return _stock(k)

def hand_coded_optimizations(k: Scheduler) -> Scheduler: return choose(k)

def install() -> None: places.replace(heuristic, "hand_coded_optimizations", hand_coded_optimizations)
