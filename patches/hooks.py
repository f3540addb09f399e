"""
Pass hooks: lists of passes that run before and after the optimiser, and before the linearizer.

Why: tinygrad has no hook at the point where a kernel's schedule is fixed (loops are split, unrolled, threaded) and its
  arithmetic is still a graph over loops. BEAM's candidates and kernels with given opts pass this point, too.
How: tinygrad.codegen looks up the optimiser (apply_opts) and the last rules before the linearizer
  (pm_implicit_barriers) at call time; this module hooks into both. Other passes append to `before_opts`, `after_opts`
  and `before_linearize`. `actions` holds the functions that apply an action of a schedule. The SINK of a lowered kernel
  has a tag: who chose its loops, and the size of its graph before and after these were expanded. The lists are
  collections of places.py, which records their passes.
Numbers: none, it does nothing by itself.
Upstream: not sent; in tinygrad, a pass is a line in full_rewrite_to_sink.
"""
from __future__ import annotations
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar
from tinygrad import codegen
from tinygrad.codegen.opt import Opt, OptOps, check
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.codegen.simplify import pm_flatten_range
from tinygrad.renderer import Renderer
from tinygrad.renderer.isa import ISARenderer
from tinygrad.uop.ops import AxisType, Ops, PatternMatcher, UOp, UPat, graph_rewrite
from tinygrad.uop.symbolic import sym
from tinygrad_llm.patches import places
from tinygrad_llm.patches.ir import labels
from tinygrad_llm.patches.ir.actions import ScheduleOps
from tinygrad_llm.patches.ir.loop_ends import split_loops

SEAMS = {
  "tinygrad.codegen:full_rewrite_to_sink": "a1124f83af03",
  "tinygrad.codegen:pm_implicit_barriers": "3ed2b0d8660e",
  "tinygrad.codegen.opt.postrange:apply_opts": "1b0c406434ce",
  "tinygrad.codegen.opt.postrange:Scheduler": "35256edac7fb",
}

PARTS = "parts of positions"  # tag of a STAGE that becomes an attention kernel: other graph rules leave it alone

Pass = Callable[[UOp, Renderer], UOp]
# loops are split where an index divides them; none is unrolled or spread over threads yet
before_opts: list[Pass] = places.Functions(__name__, "before_opts")
# the loops are final; their bodies are not expanded yet
after_opts: list[Pass] = places.Functions(__name__, "after_opts")
# everything is lowered
before_linearize: list[Pass] = places.Functions(__name__, "before_linearize")

Action = Callable[[Scheduler, Opt], bool]
# True: the action was applied; False: tinygrad applies it; KernelOptError: it does not fit the kernel
actions: dict[OptOps|ScheduleOps, Action] = places.Named(__name__, "actions")
ALONE = (ScheduleOps.BLOCK, ScheduleOps.AMX)    # each is a whole schedule: only actions that change no loops may follow

_apply_opts: Callable[..., UOp]
_full_rewrite_to_sink: Callable[..., UOp]
_apply_opt: Callable[..., Any]

T = TypeVar("T")

@dataclass
class _Kernel:
  """
  The kernel being lowered. `ren`: its renderer, None once before_linearize has run. `shares`: whether its threads may
  share memory. `nodes`: the sizes of its graph at the points that it has passed. `schedule`: who chose its loops, as a
  patch's module, "stock" for tinygrad, "beam", or "none".
  """
  ren: Renderer|None
  shares: bool = True
  nodes: tuple[int, ...] = ()
  schedule: str = "none"

_kernel: ContextVar[_Kernel|None] = ContextVar("the kernel that is being lowered", default=None)
_stages: ContextVar[bool] = ContextVar("whether it is a stage of one", default=False)
_choosing: ContextVar[bool] = ContextVar("whether it is lowered until its loops are chosen", default=False)
_recorded: ContextVar[set[str]|None] = ContextVar("the modules whose passes changed kernels", default=None)

def lowering() -> Renderer|None:
  """The renderer of the kernel being lowered; None if there is none, or once before_linearize has run."""
  return None if (kernel := _kernel.get()) is None else kernel.ren

def shares_memory() -> bool:
  """Whether threads of the kernel being lowered may share memory; True if there is none."""
  return (kernel := _kernel.get()) is None or kernel.shares

def scheduled_by(module: str) -> None:
  """Records who chose the loops of the kernel being lowered."""
  if (kernel := _kernel.get()) is not None: kernel.schedule = module

@contextmanager
def _set(variable: ContextVar[T], value: T) -> Iterator[T]:
  token = variable.set(value)
  try: yield value
  finally: variable.reset(token)

def stages() -> AbstractContextManager[bool]:
  """A context: kernels lowered in it are stages of one kernel."""
  return _set(_stages, True)

def is_stage() -> bool:
  """Whether the kernel being lowered is a stage of a larger one."""
  return _stages.get()

class _Chosen(Exception):
  """Ends a lowering early. sink: the kernel with its loops chosen."""
  def __init__(self, sink: UOp):
    super().__init__()
    self.sink = sink

def chosen(lower: Callable[[], UOp]) -> UOp:
  """The kernel that lower() lowers, as it is once its loops are chosen. The rest, most of a lowering, is skipped."""
  with _set(_choosing, True):
    try: lower()
    except _Chosen as ended: return ended.sink
  raise AssertionError("no loops were chosen")

@contextmanager
def recording() -> Iterator[set[str]]:
  """A context that gives the set of modules whose passes change the kernels lowered in it."""
  found = set[str]()
  with _set(_recorded, found): yield found

def _run(passes: list[Pass], sink: UOp, ren: Renderer) -> UOp:
  for run in passes:
    if (made := run(sink, ren)) is not sink and (found := _recorded.get()) is not None: found.add(run.__module__)
    sink = made
  return sink

def _is_unrolled(u: UOp) -> bool: return u.op is Ops.RANGE and u.arg[-1] is AxisType.UPCAST

def _run_after_opts(sink: UOp, ren: Renderer) -> UOp:
  if after_opts and any(u.op is Ops.REDUCE or _is_unrolled(u) for u in sink.toposort()):
    sink = graph_rewrite(sink, sym + pm_flatten_range, name="symbolic after opts")  # drops loops of one step
    sink = split_loops(_run(after_opts, sink, ren))
  if (kernel := _kernel.get()) is not None: kernel.nodes = (len(sink.toposort()),)
  return sink

def apply_opts(ast: UOp, ren: Renderer, beam: int = 0) -> UOp:
  ast = _run(before_opts, ast, ren)
  sink = _apply_opts(ast, ren, beam=beam)
  if _choosing.get(): raise _Chosen(sink)
  if sink.arg.applied_opts and (beam or (kernel := _kernel.get()) is not None and kernel.schedule == "none"):
    scheduled_by("beam" if beam else "stock")
  return _run_after_opts(sink, ren)

def apply_opt(self: Scheduler, opt: Opt, append_opt: bool = True) -> Any:
  """Applies one action of a schedule: by its function in `actions`, or by tinygrad's."""
  if opt.op in ALONE or opt.op not in actions:
    for known in self.applied_opts: check(known.op not in ALONE, f"{known.op.name} is all of a schedule")
  if (apply := actions.get(opt.op)) is None or not apply(self, opt): return _apply_opt(self, opt, append_opt)
  if append_opt: self.applied_opts.append(opt)

def full_rewrite_to_sink(ast: UOp, ren: Renderer, optimize: bool = True) -> UOp:
  with _set(_kernel, kernel := _Kernel(ren, ren.has_local)):
    sink = _full_rewrite_to_sink(ast if optimize else _run_after_opts(ast, ren), ren, optimize)
    if isinstance(ren, ISARenderer): return sink  # its kernels' tags are registers
    return labels.labelled(sink, kernel.schedule, kernel.nodes)

def _run_before_linearize(sink: UOp) -> UOp|None:
  if (kernel := _kernel.get()) is None or (ren := kernel.ren) is None: return None
  kernel.ren = None  # the rule matches its own result again
  kernel.nodes += (len(sink.toposort()),)
  return _run(before_linearize, sink, ren)

pm_before_linearize = PatternMatcher([(UPat(Ops.SINK, name="sink"), _run_before_linearize)])

# for passes that fill arrays: unrolled loops that index a filled array become an index for each element
pm_index_arrays = PatternMatcher([
  (UPat(Ops.INDEX, src=(UPat(Ops.AFTER, name="b"), UPat(Ops.STACK, name="s")), name="x"),
   lambda b, s, x: UOp.stack(*[x.replace(src=(b, u)) for u in s.src])),
  (UPat(Ops.INDEX, src=(UPat(Ops.AFTER, name="b"), UPat(Ops.RESHAPE, name="s"))),
   lambda b, s: b.index(s.src[0]).reshape(s.shape)),
])

def install() -> None:
  global _apply_opts, _full_rewrite_to_sink, _apply_opt
  _apply_opts = places.wrap(codegen, "apply_opts", apply_opts)
  _full_rewrite_to_sink = places.wrap(codegen, "full_rewrite_to_sink", full_rewrite_to_sink)
  _apply_opt = places.wrap(Scheduler, "apply_opt", apply_opt)
  places.rules(codegen, "pm_implicit_barriers", pm_before_linearize, first=True)
