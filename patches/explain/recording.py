"""
Records what each patch, and tinygrad around it, did while a kernel was made. Without a recording nothing is wrapped.
"""
from __future__ import annotations
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
import functools, inspect, types
from typing import Any, cast
from tinygrad import codegen
from tinygrad.codegen.opt import Opt
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.uop.ops import Ops, PatternMatcher, UOp
from tinygrad_llm.patches import places
from tinygrad_llm.patches.explain.pipeline import (
  AROUND, OPTS, SCHEDULER, Place, all_places, only_makes_it_sooner, owner)
from tinygrad_llm.patches.schedule import choose

PASS, RULE, ANSWER = "pass", "rule", "answer"

@dataclass
class Step:
  """
  A change, at its place in the pipeline.

  `before` and `after`, by kind:
  - PASS: the kernel's graph before and after the pass
  - RULE: the node of the rule's first match, and the rule's result
  - ANSWER: the first answer, without the patch and with it

  `count`: the number of matches or answers. `patch`: "" is tinygrad itself. `opts`: the chosen ones.
  """
  kind: str
  stage: str
  place: str
  patch: str
  name: str
  before: Any
  after: Any
  count: int = 1
  opts: tuple[Opt, ...]|None = None
  instead: tuple[Opt, ...]|None = None  # opts that would have been chosen without the patch

@dataclass
class _Frame:
  """A call of a recorded function. below: the answer of the function that it wraps; called: whether it called that."""
  function: Callable
  place: Place
  patch: str
  below: Any = None
  called: bool = False

class Recorder:
  """
  The results of a recording. steps: in order. reached: the places that were called, in the order of their first call.
  idle: patches whose passes changed nothing.
  """
  def __init__(self) -> None:
    self.steps: list[Step] = []
    self.reached: dict[str, None] = {}
    self.idle: dict[str, None] = {}
    self.graph: UOp|None = None  # the kernel's graph, as it was seen last
    self.frames: list[_Frame] = []
    self.asking = False          # True: a call for comparison, which is not recorded
    self.answers: dict[tuple[str, str, str], Step] = {}
    self.chooser = ""            # the pass whose answer choose.choose() takes
    self.decided: tuple[str, tuple[Opt, ...]] = ("", ())  # who chose the opts, and the opts without it

  def begun(self, place: Place, graph: UOp) -> int:
    """A pass begins. A change of the graph since the last pass is the work of the function that is running."""
    if self.graph is not None and self.graph is not graph:
      place, patch = (self.frames[-1].place, self.frames[-1].patch) if self.frames else (place, "")
      self.steps.append(Step(PASS, place.stage, place.name, patch, "", self.graph, graph))
    self.graph = graph
    return len(self.steps)

  def passed(self, at: int, place: Place, patch: str, name: str, graph: UOp) -> None:
    """A pass ended that began at a step. It comes before the rules that it used, after the passes that it ran."""
    before, self.graph = self.graph, graph
    if any(step.kind is PASS for step in self.steps[at:]): at = len(self.steps)
    if before is not graph: self.steps.insert(at, Step(PASS, place.stage, place.name, patch, name, before, graph))
    elif patch: self.idle[patch] = None

  def answered(self, kind: str, place: Place, patch: str, name: str, before: Any, after: Any) -> None:
    """A rule matched, or a function's answer differs by its patch. The first one is a step, later ones are counted."""
    key = (place.name, patch, name)
    if key in self.answers: self.answers[key].count += 1
    else:
      if kind is RULE: before = max(before, key=lambda u: len(u.toposort()))  # the other nodes are parts of it
      self.answers[key] = Step(kind, place.stage, place.name, patch, name, before, after)
      self.steps.append(self.answers[key])

  def spy(self, place: Place, function: Callable, of_rule: bool) -> Callable:
    """A pass or a rule, wrapped so that its calls are recorded."""
    patch, name = owner(function), _name(function)
    @functools.wraps(function)
    def spied(*args: Any, **kwargs: Any) -> Any:
      if self.asking: return function(*args, **kwargs)
      given = [x for x in (*args, *kwargs.values()) if isinstance(x, UOp)]
      if of_rule:
        ret = function(*args, **kwargs)
        if ret is None or any(ret is u for u in given) or patch == "hooks": return ret  # it runs other patches' passes
        self.answered(RULE, place, patch, name, given, ret)
      else:
        at = self.begun(place, given[0])
        self.passed(at, place, patch, name, ret := function(*args, **kwargs))
      return ret
    return self._reaching(place, spied)

  def link(self, place: Place, function: Callable, below: Callable|None) -> Callable:
    """
    A function that wraps another, or tinygrad's own at the end of the chain, wrapped so that its calls are recorded.
    """
    patch = owner(function)
    @functools.wraps(function)
    def linked(*args: Any, **kwargs: Any) -> Any:
      if self.asking: return function(*args, **kwargs)
      if any(frame.function is function for frame in self.frames): return self._ask(function, *args, **kwargs)  # BEAM
      self.frames.append(frame := _Frame(function, place, patch))
      try: ret = function(*args, **kwargs)
      finally:
        self.frames.pop()
        wrapped = bool(self.frames) and self.frames[-1].place is place  # else a patch of another place has called it
        if wrapped: self.frames[-1].called = True
      if not frame.called and patch and below is not None: frame.below = self._ask(below, *args, **kwargs)
      if isinstance(ret, UOp) and ret.op is Ops.SINK and place.stage != SCHEDULER: self._lowered(frame, args[0], ret)
      elif isinstance(ret, Scheduler) and self.chooser:
        self.decided = self.chooser, tuple(self._ask(choose.choose, *args, without=self.chooser).applied_opts)
      elif patch and not _same(ret, frame.below): self.answered(ANSWER, place, patch, _name(function), frame.below, ret)
      if wrapped: self.frames[-1].below = ret
      return ret
    return self._reaching(place, linked)

  def answering(self, name: str, chooser: choose.Chooser) -> choose.Chooser:
    """A pass that is asked for a schedule, wrapped so that its answer is recorded."""
    @functools.wraps(chooser)
    def answer(k: Scheduler) -> Scheduler|None:
      made = chooser(k)
      if not self.asking: self.chooser = name if made is not None else ""
      return made
    return answer

  def _reaching(self, place: Place, function: Callable) -> Callable:
    @functools.wraps(function)
    def reaching(*args: Any, **kwargs: Any) -> Any:
      if not self.asking: self.reached.setdefault(place.name)
      return function(*args, **kwargs)
    return reaching

  def _ask(self, function: Callable, *args: Any, **kwargs: Any) -> Any:
    """A function's answer, without a record of the call."""
    self.asking = True
    try: return function(*args, **kwargs)
    finally: self.asking = False

  def _lowered(self, frame: _Frame, before: UOp, after: UOp) -> None:
    """
    Called when tinygrad's optimiser, or a pass that wraps it, has returned a kernel's graph.

    Records the schedule and the change.
    """
    if (place := frame.place).stage != OPTS: return
    if frame.patch:
      self.frames.append(frame)
      self.begun(place, after)
      self.frames.pop()
    elif before is not after:
      (patch, instead), chosen = self.decided, tuple(after.arg.applied_opts)
      self.steps.append(Step(PASS, place.stage, place.name, patch, "opts", before, after, 1, chosen, instead))
    self.graph, self.decided = after, ("", ())

def _same(a: Any, b: Any) -> bool: return a is b or not isinstance(a, UOp) and not isinstance(b, UOp) and bool(a == b)

def _name(function: Callable) -> str:
  """The name of a function; for a lambda, the file and line where it is written."""
  if function.__name__ != "<lambda>": return function.__name__.strip("_")
  code = function.__code__
  return f"{code.co_filename.rsplit('/', 1)[-1]}:{code.co_firstlineno}"

@contextmanager
def recording() -> Iterator[Recorder]:
  """A context: kernels lowered in it are recorded, if this process lowers them and no cache has them."""
  recorder = Recorder()
  with ExitStack() as undo:
    def replace(put: Callable[[Any], None], old: Any, new: Any) -> None:
      undo.callback(put, old)
      put(new)
    # an action changes the kernel that it is given, so its function must not be asked twice; choosers are below
    for place in all_places():
      if place.stage == AROUND or place.name.endswith(".apply_opt") or isinstance(place.value, dict): continue
      if (seat := place.seat) is None:
        of_rule = place.name.split(":")[1] not in ("before_opts", "after_opts", "before_linearize")
        spies = [recorder.spy(place, f, of_rule) for f in place.value]
        replace(functools.partial(list.__setitem__, place.value, slice(None)), place.value[:], spies)
      elif isinstance(place.value, PatternMatcher):
        matcher = PatternMatcher([(pattern, _watched(recorder, place, f)) for pattern, f in place.value.patterns])
        replace(functools.partial(setattr, seat.holder, seat.key), place.value, matcher)
      else:
        links = seat.links
        watched = [recorder.link(place, f, below) for f, below in zip(links, (None, *links))]
        put = functools.partial(setattr, seat.holder, seat.key)
        if place.value is links[-1]: replace(put, place.value, watched[-1])
        replace(functools.partial(list.__setitem__, links, slice(None)), links[:], watched)
    for name, chooser in choose.choosers.items():
      put = functools.partial(dict.__setitem__, choose.choosers, name)
      replace(put, chooser, recorder.answering(name, chooser))
    replace(functools.partial(setattr, codegen, "graph_rewrite"), codegen.graph_rewrite, _named(recorder))
    yield recorder

def _watched(recorder: Recorder, place: Place, function: Callable) -> Callable:
  """A rule of a matcher, recorded if its patch may change a kernel."""
  if not (patch := owner(function)) or only_makes_it_sooner(patch): return function
  if (own := places.stock.get(function)) is None: return _rule(recorder.spy(place, function, True))
  return _rule(recorder.link(place, function, own))

def _rule(function: Callable) -> Callable:
  """
  A function in the form of a matcher's rule: it closes over nothing, and its signature says whether it wants the
  context.
  """
  like = _with_context if "ctx" in inspect.signature(function).parameters else _without
  return types.FunctionType(like.__code__, {"function": function}, function.__name__)

def function(**found: Any) -> Any: """_with_context and _without call this name: each rule has its own there."""
def _with_context(ctx: Any, **found: Any) -> Any: return function(ctx=ctx, **found)
def _without(**found: Any) -> Any: return function(**found)

def _named(recorder: Recorder) -> Callable:
  """tinygrad's graph_rewrite, recorded by the names that tinygrad gives its passes."""
  stock, place = codegen.graph_rewrite, Place("tinygrad.codegen:graph_rewrite", "", 0, (), codegen.graph_rewrite)
  @functools.wraps(stock)
  def graph_rewrite(sink: UOp, *args: Any, name: str|None = None, **kwargs: Any) -> UOp:
    if recorder.asking or sink.op is not Ops.SINK: return cast(UOp, stock(sink, *args, name=name, **kwargs))
    at = recorder.begun(place, sink)
    recorder.passed(at, place, "", name or "", ret := stock(sink, *args, name=name, **kwargs))
    return cast(UOp, ret)
  return graph_rewrite
