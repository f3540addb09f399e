"""
Tuned schedules: a kernel is lowered with the faster schedule that an earlier search found, without any flag.

Why: a search costs minutes. Its result should serve every later start, and other users of the same device.
How: before a kernel is lowered, its entry is looked up (cache/schedules.py): the user's own, or one that the package
  ships for measured devices. The entry's Opts replace the heuristic's. If they do not apply, the kernel is lowered as
  usual. Each stage of a fused launch (graph/horizontal_fusion.py) has its own entry. Nothing is looked up where the
  user has set MV_THREADS_PER_ROW, MV_BLOCKSIZE or MV_ROWS_PER_THREAD, with NOOPT, or without caches (CCACHE=0), nor for
  devices that only compile.
Numbers: docs/tuning.md; `make beam`.
Upstream: not sent; tinygrad replays BEAM's results only where BEAM is asked for again.
"""
from __future__ import annotations
import os
from collections.abc import Callable
from tinygrad import codegen
from tinygrad.codegen.opt import KernelOptError
from tinygrad.helpers import NOOPT
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import KernelInfo, Ops, UOp
from tinygrad_llm.patches import hooks, places
from tinygrad_llm.patches.cache import disk_cache, programs, schedules
from tinygrad_llm.patches.graph.horizontal_fusion import kernels_of
from tinygrad_llm.patches.ir import labels
from tinygrad_llm.patches.ir.actions import Opts
from tinygrad_llm.patches.schedule.gemv_gpu import MV_NAMES
from tinygrad_llm.patches.search.space import with_opts

SEAMS = {
  "tinygrad.codegen:full_rewrite_to_sink": "a1124f83af03",
}

COMPILE_ONLY = ("NULL", "PYTHON")

_full_rewrite_to_sink: Callable[..., UOp]

def is_free(ast: UOp) -> bool:
  """Whether the kernel's schedule is still open: no Opts are given or applied."""
  info = ast.arg
  return (isinstance(info, KernelInfo) and ast.tag is None and info.opts_to_apply is None and
          not info.applied_opts)

def in_use(ren: Renderer) -> bool:
  """Whether schedules are looked up at all."""
  return (disk_cache.caching() and not NOOPT and ren.target.device not in COMPILE_ONLY and
          not any(os.environ.get(name) for name in MV_NAMES) and not hooks.is_stage())

def opts_of(ast: UOp, ren: Renderer) -> list[Opts|None]:
  """The stored Opts of a kernel, or of each stage of a fused launch; None for one without an entry."""
  if not in_use(ren) or ast.op is not Ops.SINK: return []
  entries = [schedules.lookup(schedules.key_of(k), ren.target.device, ren) if is_free(k) else None
             for k in kernels_of(ast)]
  return [None if entry is None else entry.opts for entry in entries]

def full_rewrite_to_sink(ast: UOp, ren: Renderer, optimize: bool = True) -> UOp:
  found = opts_of(ast, ren) if optimize else []
  if not any(opts is not None for opts in found): return _full_rewrite_to_sink(ast, ren, optimize)
  kernels = kernels_of(ast)
  new = tuple(k if opts is None else with_opts(k, opts) for k, opts in zip(kernels, found))
  try: sink = _full_rewrite_to_sink(new[0] if kernels == (ast,) else ast.replace(src=new), ren, optimize)
  except KernelOptError: return _full_rewrite_to_sink(ast, ren, optimize)
  return labels.renamed(sink, "tuned")

def install() -> None:
  global _full_rewrite_to_sink
  _full_rewrite_to_sink = places.wrap(codegen, "full_rewrite_to_sink", full_rewrite_to_sink)
  programs.searched_opts.append(opts_of)
  disk_cache.searched.append(schedules.stamp)
