"""
Pass pipeline: places for passes before and after the optimiser, and before the linearizer.

Why: tinygrad has no hook where a kernel's schedule is fixed (loops are split, unrolled, threaded) and its arithmetic is
  still a graph over loops. BEAM's candidates and kernels with given opts pass there, too.
How: the optimiser and the pass before it are looked up in tinygrad.codegen at call time. Other passes append to
  `before_opts`, `after_opts` and `before_linearize`; what applies an action of a schedule is in `actions`. A kernel's
  SINK has a tag: who chose its loops, and how large its graph was before these were expanded, and after. places.py
  records who is where.
Numbers: none, it does nothing by itself.
Upstream: not sent; there, a pass is a line in full_rewrite_to_sink.
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

PARTS = "parts of positions"  # the tag of what becomes a kernel of attention: no other rule on graphs looks into it

Pass = Callable[[UOp, Renderer], UOp]
# the loops are split where an index divides them, none is unrolled or shared yet
before_opts: list[Pass] = places.Functions(__name__, "before_opts")
# the loops are those that will run, their bodies are not expanded yet
after_opts: list[Pass] = places.Functions(__name__, "after_opts")
# everything is lowered
before_linearize: list[Pass] = places.Functions(__name__, "before_linearize")

Action = Callable[[Scheduler, Opt], bool]
# True: it is applied; False: it is for tinygrad's own; KernelOptError
actions: dict[OptOps|ScheduleOps, Action] = places.Named(__name__, "actions")
ALONE = (ScheduleOps.BLOCK, ScheduleOps.AMX)    # each is all of a schedule, but for what changes no loops

_apply_opts: Callable[..., UOp]
_full_rewrite_to_sink: Callable[..., UOp]
_apply_opt: Callable[..., Any]

T = TypeVar("T")

@dataclass
class _Kernel:
  """
  One that is being lowered. ren: until before_linearize ran; shares: whether threads may share memory; nodes: of its
  graph, at the places that it passed; schedule: who chose its loops: a patch's module, "stock" for tinygrad,
  "beam", or "none".
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
  """The renderer of the kernel that is being lowered; None if there is none."""
  return None if (kernel := _kernel.get()) is None else kernel.ren

def shares_memory() -> bool:
  """Whether threads of the kernel that is being lowered may share memory."""
  return (kernel := _kernel.get()) is None or kernel.shares

def scheduled_by(module: str) -> None:
  """Says who chose the loops of the kernel that is being lowered."""
  if (kernel := _kernel.get()) is not None: kernel.schedule = module

@contextmanager
def _set(variable: ContextVar[T], value: T) -> Iterator[T]:
  token = variable.set(value)
  try: yield value
  finally: variable.reset(token)

def stages() -> AbstractContextManager[bool]:
  """Kernels that are lowered in here are stages of one kernel."""
  return _set(_stages, True)

def is_stage() -> bool:
  """Whether the kernel that is being lowered is a stage of one."""
  return _stages.get()

class _Chosen(Exception):
  """Ends a lowering. sink: the kernel with its loops."""
  def __init__(self, sink: UOp):
    super().__init__()
    self.sink = sink

def chosen(lower: Callable[[], UOp]) -> UOp:
  """What lower() lowers, as it is once its loops are chosen. What comes after that, most of a lowering, is not done."""
  with _set(_choosing, True):
    try: lower()
    except _Chosen as ended: return ended.sink
  raise AssertionError("no loops were chosen")

@contextmanager
def recording() -> Iterator[set[str]]:
  """The modules whose passes change the kernels that are lowered in here."""
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
  """One action of a schedule: that of a pass, or tinygrad's."""
  if opt.op in ALONE or opt.op not in actions:
    for known in self.applied_opts: check(known.op not in ALONE, f"{known.op.name} is all of a schedule")
  if (apply := actions.get(opt.op)) is None or not apply(self, opt): return _apply_opt(self, opt, append_opt)
  if append_opt: self.applied_opts.append(opt)

def full_rewrite_to_sink(ast: UOp, ren: Renderer, optimize: bool = True) -> UOp:
  with _set(_kernel, kernel := _Kernel(ren, ren.has_local)):
    sink = _full_rewrite_to_sink(ast if optimize else _run_after_opts(ast, ren), ren, optimize)
    if isinstance(ren, ISARenderer): return sink  # there tags are registers
    return labels.labelled(sink, kernel.schedule, kernel.nodes)

def _run_before_linearize(sink: UOp) -> UOp|None:
  if (kernel := _kernel.get()) is None or (ren := kernel.ren) is None: return None
  kernel.ren = None  # what it returns is matched again
  kernel.nodes += (len(sink.toposort()),)
  return _run(before_linearize, sink, ren)

pm_before_linearize = PatternMatcher([(UPat(Ops.SINK, name="sink"), _run_before_linearize)])

# of those that fill arrays: one that was filled before, indexed by unrolled loops
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
