"""
BEAM and JITBEAM search the space of these patches, in processes of their own, and keep what they find.

Why: tinygrad's beam search starts from nothing, its actions do not reach the loops of packed weights, candidates run
  in the user's process on its data, winners are not compared with anything, and what was found is replayed under other
  patches. Its users report hangs, wrong numbers, and searches of hours that end behind the heuristic.
How: a kernel with BEAM=n is searched by tuner.py with a beam of n schedules, unless that was done before, by BEAM or by
  `python -m tinygrad_llm.tune`; then it is lowered as stored_schedules.py does. BEAM_SECONDS bounds the search of a
  kernel. Kernels that cannot be searched get the heuristic's schedule. Where there are no such processes (Windows), and
  without this patch or stored_schedules, BEAM is tinygrad's.
Numbers: see README, Tuning.
Upstream: not sent; of its parts, the start from the heuristic and the check of the winner would do there as they are.
"""
from __future__ import annotations
import atexit, dataclasses, functools, os, sys
from collections.abc import Callable
from typing import TYPE_CHECKING
from tinygrad import codegen
from tinygrad.helpers import DEBUG, IGNORE_BEAM_CACHE, Context
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import KernelInfo, UOp
from tinygrad_llm.patches import is_on, places
from tinygrad_llm.patches.graph.horizontal_fusion import kernels_of
from tinygrad_llm.patches.search.space import NotScheduled
from tinygrad_llm.patches.search.stored_schedules import COMPILE_ONLY

if TYPE_CHECKING: from tinygrad_llm.patches.search.sandbox import Sandbox

SEAMS = {
  "tinygrad.codegen:full_rewrite_to_sink": "a1124f83af03",
  "tinygrad.codegen.opt.search:beam_search": "eb7e87ae833b",
}

SECONDS = 60.0  # of the search of a kernel

_full_rewrite_to_sink: Callable[..., UOp]

@functools.cache
def sandbox(device: str) -> Sandbox:
  """The processes of this one's searches; they end with it."""
  from tinygrad_llm.patches.search.sandbox import Sandbox, processes
  made = Sandbox(processes(device))
  atexit.register(made.__exit__)
  return made

def is_possible() -> bool: return os.name == "posix" and is_on("beam_search")

def find(ast: UOp, ren: Renderer, width: int) -> None:
  """Searches a kernel if that was not done before; what is found is kept."""
  from tinygrad_llm.patches.search import tuner  # a start without BEAM needs none of it
  from tinygrad_llm.patches.search.sandbox import Failed
  device = ren.target.device
  kernel = tuner.kernel_of(ast, device, search_variables(ast))
  if tuner.known_for(kernel) is not None and not IGNORE_BEAM_CACHE: return
  try: result = tuner.search(kernel, sandbox(device), SECONDS, width=width)
  except (NotScheduled, Failed) as e:
    if DEBUG >= 2: print(f"BEAM: a kernel keeps its schedule: {e}", file=sys.stderr)
    return
  if DEBUG >= 2:
    print(f"BEAM: {result.before * 1e6:.1f} -> {result.after * 1e6:.1f} us, {result.timed} of {result.lowered} timed",
          file=sys.stderr)

def search_variables(ast: UOp) -> dict[str, int]:
  """The values that a search takes for a kernel's variables: in the middle, as tinygrad's does."""
  return {v.expr: int(v.vmax + v.vmin) // 2 for v in ast.variables()}

def full_rewrite_to_sink(ast: UOp, ren: Renderer, optimize: bool = True) -> UOp:
  info = ast.arg
  if not optimize or not isinstance(info, KernelInfo) or not info.beam or not is_possible():
    return _full_rewrite_to_sink(ast, ren, optimize)
  free = ast.replace(arg=dataclasses.replace(info, beam=0))
  if ren.target.device not in COMPILE_ONLY and info.opts_to_apply is None:
    with Context(ALLOW_DEVICE_USAGE=1):
      for kernel in kernels_of(free): find(kernel, ren, info.beam)
  return _full_rewrite_to_sink(free, ren, optimize)

def install() -> None:
  global _full_rewrite_to_sink
  _full_rewrite_to_sink = places.wrap(codegen, "full_rewrite_to_sink", full_rewrite_to_sink)

