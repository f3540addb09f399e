"""Captured functions of tensors: traced, scheduled and compiled once, and loaded from disk by a later process."""
from __future__ import annotations
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar
from tinygrad import Tensor, TinyJit, UOp
from tinygrad.engine.jit import _TinyJit
from tinygrad.engine.realize import capturing, pm_beam
from tinygrad.helpers import BEAM, JIT, flatten, getenv
from tinygrad.nn.state import get_parameters
from tinygrad.uop.ops import Ops, graph_rewrite
from tinygrad_llm.patches.host.thread_safety import is_replayed

T = TypeVar("T")

def captured(function: Callable[..., T], *state: Any) -> _TinyJit[T]:
  """
  A TinyJit that captures on its first call. All that it reads is realised, so an eager first call would be wasted.

  state: the function's first arguments. The function reads nothing else, so that its capture may come from disk.
  """
  jit: _TinyJit[T] = TinyJit(partial(function, *state))
  jit.cnt = 1
  return jit

def replay(jit: _TinyJit[T], values: Mapping[UOp, int]) -> T:
  """
  The captured step with these values of its variables, which are all that it takes: its tensors are bound.

  A step that was replayed before in this process needs no TinyJit, which would look at all inputs again. The variables
  are bound to nothing: their values go straight into the launches. AssertionError for a value out of range.
  """
  captured = jit.captured
  if not JIT or captured is None or not is_replayed(captured): return jit(*(v.bind(n) for v, n in values.items()))
  for v, n in values.items(): assert v.vmin <= n <= v.vmax, f"{v.expr}: {n} is not from {v.vmin} to {v.vmax}"
  found: T = captured([], {v.expr: n for v, n in values.items()})
  return found

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
