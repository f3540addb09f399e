"""
Replays of captured steps with a time for each kernel.

On the CPU a batch of dispatch.py runs as usual, with the clock read between its commands. So the times are the step's
own, with its caches and threads. A kernel of the CPU outside of a batch, and every kernel of another device, is
launched alone, in order, and waited for.
"""
from __future__ import annotations
import ctypes, functools, time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from tinygrad.engine import jit
from tinygrad.engine.realize import (
  ExecContext, get_graph_runtime, perf_counter_us, pm_exec, track_stats)
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.host import thread_pool
from tinygrad_llm.patches.runtime.dispatch import CPUGraph

@dataclass
class Launch:
  """A kernel of a replay. start: in ns of time.monotonic_ns(); ns: its duration, None if the device cannot say."""
  call: UOp
  start: int
  ns: int | None

class Replay:
  """A captured schedule that ran, with the values of its variables."""
  def __init__(self, linear: UOp, variables: dict[str, int]):
    self.linear, self.variables = linear, variables
    self._read: list[Callable[[], list[Launch]]] = []  # read a clock's stamps once nothing is timed any more

  @functools.cached_property
  def launches(self) -> list[Launch]: return [launch for read in self._read for launch in read()]

  def run(self, inputs: tuple[UOp, ...]) -> None:
    context = ExecContext(self.variables, inputs, jit=True, wait=True)
    for call in self.linear.src:
      start, function = perf_counter_us(), call.src[0]
      if function.op is not Ops.CUSTOM_FUNCTION or function.arg != "graph": self._alone(context, call)
      elif isinstance(graph := get_graph_runtime(function, inputs), CPUGraph):
        stamps = graph.run_stamped(inputs, self.variables)
        self._read.append(functools.partial(_stamped, function.src[0].src, stamps))
      else:
        for inner in function.src[0].src: self._alone(context, inner)
      track_stats(context, call, start, [])

  def _alone(self, context: ExecContext, call: UOp) -> None:
    start = time.monotonic_ns()
    seconds = pm_exec.rewrite(call, context)
    if call.src[0].op is not Ops.PROGRAM: return
    ns = None if not seconds or None in seconds else round(max(seconds) * 1e9)
    self._read.append(lambda: [Launch(call, start, ns)])

def _stamped(calls: Sequence[UOp], stamps: ctypes.Array[ctypes.c_uint64]) -> list[Launch]:
  seconds, rest = stamps[::thread_pool.STAMP], stamps[1::thread_pool.STAMP]
  at = [s * 10**9 + ns for s, ns in zip(seconds, rest)]
  return [Launch(call, start, end - start) for call, start, end in zip(calls, at, at[1:])]

@contextmanager
def timed_replays() -> Iterator[list[Replay]]:
  """A context in which every replay of a TinyJit is timed; gives the list of these replays."""
  replays: list[Replay] = []
  def run_linear(linear: UOp, var_vals: dict[str, int], input_uops: Sequence[UOp] = (), **_: bool) -> None:
    replays.append(Replay(linear, dict(var_vals)))
    replays[-1].run(tuple(input_uops))
  stock, jit.run_linear = jit.run_linear, run_linear  # type: ignore[assignment]
  try: yield replays
  finally: jit.run_linear = stock
