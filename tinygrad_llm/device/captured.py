"""Captured functions of tensors: traced, scheduled and compiled once, and loaded from disk by a later process."""
from __future__ import annotations
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter, le
from typing import Any, Generic, TypeVar
from tinygrad import Tensor, TinyJit, UOp
from tinygrad.engine import jit as engine_jit
from tinygrad.engine import realize
from tinygrad.engine.jit import CapturedJit, _TinyJit
from tinygrad.engine.realize import capturing, pm_beam
from tinygrad.helpers import BEAM, DEBUG, JIT, PROFILE, flatten, getenv
from tinygrad.nn.state import get_parameters
from tinygrad.uop.ops import Ops, graph_rewrite
from tinygrad_llm.patches.cache.captures import restore
from tinygrad_llm.patches.host.thread_safety import is_replayed
from tinygrad_llm.patches.runtime.dispatch import CPUGraph

T = TypeVar("T")

def captured(function: Callable[..., T], *state: Any) -> _TinyJit[T]:
  """
  A TinyJit that captures on its first call. All that it reads is realised, so an eager first call would be wasted.

  state: the function's first arguments. The function reads nothing else, so that its capture may come from disk.
  """
  jit: _TinyJit[T] = TinyJit(partial(function, *state))
  jit.cnt = 1
  return jit

class Replay(Generic[T]):
  """
  A captured step that is called again and again with the same tensors and with other values of its variables.

  The first call in a process captures it, or loads its capture from disk. Later ones need no TinyJit, which would look
  at all inputs again, and bind no variables: the values go straight into the launches. On the CPU, a step that is one
  graph is launched without tinygrad's statistics, too; they are kept where DEBUG, PROFILE or timed replays want them.

  tensors: the step's first arguments, which it does not write. variables: the others, in order.
  """
  def __init__(self, jit: _TinyJit[T], tensors: Sequence[Tensor], variables: Sequence[UOp]):
    self.jit, self._tensors, self._variables = jit, tensors, variables
    self._bounds = [(v.expr, int(v.vmin), int(v.vmax)) for v in variables]
    self._least, self._most = ([bound[i] for bound in self._bounds] for i in (1, 2))
    self._made_for: CapturedJit[T] | None = None
    self._inputs: tuple[UOp, ...] = ()
    self._graph: CPUGraph | None = None
    self._in_order: Callable[[tuple[int, ...]], Sequence[int]] = list  # values as the graph names them

  def __call__(self, *values: int) -> T:
    """The step's results, for one value a variable. AssertionError for a value out of range."""
    captured = self.jit.captured
    if captured is None or not JIT.value or not is_replayed(captured):
      return self.jit(*self._tensors, *(v.bind(n) for v, n in zip(self._variables, values, strict=True)))
    if not (len(values) == len(self._most) and all(map(le, self._least, values)) and all(map(le, values, self._most))):
      self._refuse(values)
    if self._made_for is not captured: self._make(captured)
    if self._graph is None or PROFILE.value or DEBUG.value >= 2 or engine_jit.run_linear is not realize.run_linear:
      found: T = captured([*self._inputs], {name: n for (name, *_), n in zip(self._bounds, values)})
      return found
    self._graph.run(self._inputs, self._in_order(values))
    found = captured.ret
    return found

  def restore(self) -> bool:
    """Whether the step is captured, in this process or an earlier one."""
    return restore(self.jit, *self._tensors, *(v.bind(int(v.vmin)) for v in self._variables))

  def _refuse(self, values: Sequence[int]) -> None:
    for (name, least, most), n in zip(self._bounds, values, strict=True):
      assert least <= n <= most, f"{name}: {n} is not from {least} to {most}"

  def _make(self, captured: CapturedJit[T]) -> None:
    """Finds what a replay needs: the inputs' buffers, and the only graph."""
    self._inputs = tuple(tensor.uop.base for tensor in self._tensors)
    assert not captured._written_uops.intersection(self._inputs)
    steps = [call.src[0] for call in captured.linear.src]
    is_graph = len(steps) == 1 and steps[0].op is Ops.CUSTOM_FUNCTION and steps[0].arg == "graph"
    graph = realize.get_graph_runtime(steps[0], self._inputs) if is_graph else None
    self._graph, names = graph if isinstance(graph, CPUGraph) else None, [name for name, *_ in self._bounds]
    if self._graph is not None: self._in_order = _picker([names.index(name) for name in self._graph.names])
    self._made_for = captured

def _picker(places: Sequence[int]) -> Callable[[tuple[int, ...]], Sequence[int]]:
  """A function that takes the items at these places."""
  return itemgetter(*places) if len(places) > 1 else lambda items: [items[i] for i in places]

class _Schedules:
  """Collects the schedules that tinygrad would run."""
  def __init__(self) -> None:
    self.linears: list[UOp] = []
    self.variables: dict[str, int] = {}

  def add_linear(self, linear: UOp, var_vals: dict[str, int]) -> None:
    self.linears.append(linear)
    self.variables |= var_vals

def scheduled(function: Callable[..., Any], *inputs: Tensor | UOp) -> tuple[UOp, dict[str, int]]:
  """
  The linear schedule of function(*inputs)'s result, and the values of its variables. Nothing is compiled.

  A TinyJit of the function has the same kernels. Here memory is not planned, and calls are not joined to graphs.
  """
  capturing.append(schedules := _Schedules())
  try: Tensor.realize(*get_parameters(function(*inputs)))
  finally: capturing.clear()
  linear = UOp(Ops.LINEAR, src=tuple(flatten(x.src for x in schedules.linears)))
  if beam := getenv("JITBEAM", BEAM.value): linear = graph_rewrite(linear, pm_beam, ctx=beam, walk=True)
  return linear, schedules.variables
