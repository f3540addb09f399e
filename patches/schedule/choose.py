"""
Choice of a schedule: one dispatcher asks the passes that choose loops, in a fixed order, and takes the first answer.

Why: tinygrad has one function of rules for all kernels and devices. Passes that wrapped it one around the other were
  asked in the reverse order of their installation, and which of them answered was known to nobody.
How: each pass puts a function into `choosers`, under its name: a copy of the kernel with its loops chosen, or None.
  The pass that pipeline.py lists last is asked first, tinygrad's own rules come last.
Numbers: none, kernels are the same as with nested wrappers.
Upstream: not sent; there, hand_coded_optimizations is one function.
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
  """A kernel with its loops chosen. without: a pass that is not asked."""
  for name, chooser in reversed(choosers.items()):
    if name != without and (made := chooser(k)) is not None: return made
  return _stock(k)

def hand_coded_optimizations(k: Scheduler) -> Scheduler: return choose(k)

def install() -> None: places.replace(heuristic, "hand_coded_optimizations", hand_coded_optimizations)
