"""
Sandboxed beam search: BEAM and JITBEAM search our schedule space in processes of their own, and store the winners.

Why: tinygrad's beam search starts from the unscheduled kernel, and its actions do not reach the loops of packed
  weights. Candidates run in the user's process on its data. Winners are not compared with any other schedule, and
  stored results are replayed under other patches. Its users report hangs, wrong numbers, and searches of hours that end
  behind the heuristic.
How: with BEAM=n, tuner.py searches each kernel with a beam of n schedules, unless BEAM or
  `python -m tinygrad_llm.tune` has searched it before. The kernel is then lowered as stored_schedules.py does. The
  search of a kernel may take SECONDS. Kernels that cannot be searched get the heuristic's schedule. On Windows, which
  lacks the worker processes, and without this patch or stored_schedules, BEAM is tinygrad's.
Numbers: docs/tuning.md; `make beam`.
Upstream: not sent; two parts would work there as they are: the start from the heuristic, and the check of the winner.
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

SECONDS = 60.0  # budget of one kernel's search

_full_rewrite_to_sink: Callable[..., UOp]

@functools.cache
def sandbox(device: str) -> Sandbox:
  """The worker processes for this process's searches; they end with it."""
  from tinygrad_llm.patches.search.sandbox import Sandbox, processes
  made = Sandbox(processes(device))
  atexit.register(made.__exit__)
  return made

def is_possible() -> bool: return os.name == "posix" and is_on("beam_search")

def find(ast: UOp, ren: Renderer, width: int) -> None:
  """Searches a kernel that was not searched before, and stores the result."""
  from tinygrad_llm.patches.search import tuner  # imported here: a start without BEAM needs none of it
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
  """The values of a kernel's variables in a search: the middle of their range, as in tinygrad's search."""
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

