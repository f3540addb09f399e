"""
Profile of a step: the time of each kernel, and of the host around them.

On the CPU, kernels are timed in the step itself, by a clock that is read between them. The rest of the step's time is
the host's: Python between steps and batches, threads that wake up, the token in, the logits out. Other devices time
each kernel alone, in order. The host then has the rest of the step as measured, or nothing if the kernels alone take
longer.

All times are means over the middle half of the steps, sorted by duration, of all repetitions. Means add up, as medians
would not, and the middle half leaves out steps that other programs disturbed.
"""
from __future__ import annotations
import statistics, time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any
import numpy as np
from tinygrad import UOp
from tinygrad.engine.realize import estimate_uop
from tinygrad.helpers import JIT, NUM_CPU_THREADS, ansistrip, getenv
from tinygrad.uop.ops import sym_infer
from tinygrad_llm.analysis.programs import Reads, Rows
from tinygrad_llm.analysis.roles import groups, order
from tinygrad_llm.device.bandwidth import ReadBandwidth, copy_bandwidth
from tinygrad_llm.engine.llm import LLM
from tinygrad_llm.errors import InputError
from tinygrad_llm.patches.runtime.timed_replay import Launch, Replay, timed_replays

HOST = "host"

@dataclass(frozen=True)
class Kernel:
  """
  A launch in a step.

  - group: the name of its row, by analysis/roles.py.
  - role: as in `kernels`.
  - bytes: by tinygrad's estimate, in the middle one of the steps.
  - call: the call of the compiled kernel.
  """
  group: str
  role: str
  us: float
  bytes: int
  global_size: Sequence[int]
  local_size: Sequence[int] | None
  call: UOp

  @property
  def name(self) -> str: return ansistrip(self.call.src[0].arg.name)
  @property
  def opts(self) -> list[str]:
    return [f"{o.op.name}:{o.axis}:{o.arg}" for o in self.call.src[0].src[0].arg.applied_opts]
  @property
  def source(self) -> str: return str(self.call.src[0].src[2].arg)

@dataclass(frozen=True)
class Row:
  """A part of a step: its kernels (none for the host), with us and bytes per step."""
  name: str
  kernels: list[Kernel]
  us: float

  @cached_property
  def bytes(self) -> int: return sum(kernel.bytes for kernel in self.kernels)
  @property
  def gbs(self) -> float | None: return self.bytes / self.us / 1e3 if self.bytes and self.us else None

@dataclass(frozen=True)
class Moment:
  """A span of one step's time, in us from its start. kernel: its index in the step, or None for the host."""
  start: float
  us: float
  kernel: int | None

@dataclass(frozen=True)
class Profile:
  """
  The profile of a step.

  - in_step: whether kernels were timed in the step itself, not alone.
  - rows: in the order of the model, the host last.
  - kernels: in the order of the step.
  - measured: us of a step that is not profiled.
  - peak: bandwidth in GB/s, of reading in_step, else of copying.
  - timeline: the spans of the step of median duration; kernels that were timed alone lie end to end.
  - samples: ns of each repetition, not profiled.
  - gap: us of a step before its first kernel and after its last one.
  """
  in_step: bool
  rows: list[Row]
  kernels: list[Kernel]
  measured: float
  peak: float
  timeline: list[Moment]
  samples: list[int]
  gap: float

  @property
  def total(self) -> float:
    """The sum of the rows, in us."""
    return sum(row.us for row in self.rows)

@dataclass(frozen=True)
class _Step:
  """A step that ran: its begin and end in ns of time.monotonic_ns(), and its replays if kernels were timed."""
  begin: int
  end: int
  replays: list[Replay]

  @cached_property
  def launches(self) -> list[Launch]: return [launch for replay in self.replays for launch in replay.launches]
  @cached_property
  def ns(self) -> np.ndarray: return np.array([launch.ns for launch in self.launches], np.float64)
  @property
  def wall(self) -> int: return self.end - self.begin
  @property
  def gap(self) -> int:
    """ns before the step's first kernel and after its last one."""
    first, last = self.launches[0], self.launches[-1]
    return first.start - self.begin + self.end - last.start - (last.ns or 0)

  @classmethod
  def run(cls, step: Callable[[], Any], timed: bool) -> _Step:
    replaying: AbstractContextManager[list[Replay]] = timed_replays() if timed else nullcontext([])
    with replaying as replays:
      begin = time.monotonic_ns()
      step()
      return cls(begin, time.monotonic_ns(), replays)

def profile(llm: LLM, test: Sequence[Callable[[], Any]], repetitions: int, each: Callable[[], Any] = lambda: None,
            before: Callable[[int], Any] = lambda i: None) -> Profile:
  """
  The profile of a test, given as its steps. They have run before, so nothing is compiled.

  Each step runs twice in a row, with and without timed kernels, so that both meet the same machine. After each
  repetition the CPU's read bandwidth is measured, and each() is called. before(i) comes before each run of step i, and
  is not timed. InputError if the device cannot time kernels.
  """
  check_device(llm.device)
  in_step = llm.device.split(":")[0] == "CPU"
  bandwidth = ReadBandwidth(NUM_CPU_THREADS.value) if in_step else None
  peaks = [] if bandwidth is not None else [copy_bandwidth(256 << 20)]
  before(0)
  _check_timed(_Step.run(test[0], timed=True), llm.device)  # compiles the code that reads the clock
  plain, steps = list[_Step](), list[_Step]()
  for i in range(repetitions):
    for j, step in enumerate(test):
      for timed in (False, True) if (i + j) % 2 else (True, False):
        before(j)
        (steps if timed else plain).append(_Step.run(step, timed))
    if bandwidth is not None: peaks.append(bandwidth.measure())
    each()
  measured = float(np.mean([step.wall for step in _middle(plain)])) / 1e3
  middle = _middle(steps)
  us = np.mean([step.ns for step in middle], axis=0) / 1e3
  kernels = _kernels(llm, steps[len(test) // 2], us.tolist())
  places = {name: [k for k, kernel in enumerate(kernels) if kernel.group == name]
            for name in order([kernel.group for kernel in kernels])}
  rows = [Row(name, [kernels[k] for k in at], float(us[at].sum())) for name, at in places.items()]
  wall = float(np.mean([step.wall for step in middle])) / 1e3 if in_step else measured
  host = max(0.0, wall - float(us.sum()))
  timeline = _moments(steps) if in_step else _end_to_end(kernels, host)
  return Profile(in_step, [*rows, Row(HOST, [], host)], kernels, measured, statistics.median(peaks), timeline,
                 [sum(step.wall for step in plain[i:i + len(test)]) for i in range(0, len(plain), len(test))],
                 float(np.mean([step.gap for step in middle])) / 1e3 if in_step else host)

def _middle(steps: Sequence[_Step]) -> list[_Step]:
  """The steps without the fastest and the slowest quarter."""
  return sorted(steps, key=lambda step: step.wall)[len(steps) // 4:len(steps) - len(steps) // 4]

def check_device(device: str) -> None:
  """InputError for a device, or a setting of tinygrad, that is known not to time kernels."""
  if not JIT: raise InputError("JIT=0: there is no captured step to profile; unset it")
  if getenv("HCQ2"): raise InputError("HCQ2=1: its queues do not time kernels of a captured step; unset it")
  if device.split(":")[0] in ("NULL", "PYTHON"): raise InputError(f"DEV={device}: it does not time kernels; use CPU")

def _check_timed(step: _Step, device: str) -> None:
  if not step.launches or any(launch.ns is None for launch in step.launches):
    raise InputError(f"DEV={device}: it does not time kernels; use another device")

def _kernels(llm: LLM, step: _Step, us: Sequence[float]) -> list[Kernel]:
  """The launches of a step. us: the time of each, in order."""
  weights = {w.stored.uop.base: Rows(w.qtype.name, names) for names, w in llm.weights.items()}
  caches = {pool.uop.base for pool in llm.engine.steps.pools}
  found: list[Kernel] = []
  for replay in step.replays:
    calls = [launch.call for launch in replay.launches]
    found += [_kernel(call, group, took, replay.variables, weights, caches)
              for call, group, took in zip(calls, groups(calls, weights, caches), us[len(found):])]
  return found

def _kernel(call: UOp, group: str, us: float, variables: dict[str, int], weights: Mapping[UOp, Rows], caches: set[UOp]
            ) -> Kernel:
  info = call.src[0].arg
  sizes = info.launch_dims(variables)
  return Kernel(group, Reads.of(call, weights, caches, (*info.ins, *info.outs)).role, us,
                int(sym_infer(estimate_uop(call).mem, variables)), sizes[0], sizes[1], call)

def _moments(steps: Sequence[_Step]) -> list[Moment]:
  """The spans of the step of median duration, as it ran."""
  step = sorted(steps, key=lambda step: step.wall)[len(steps) // 2]
  at, begin, found = step.begin, step.begin, list[Moment]()
  for k, launch in enumerate(step.launches):
    if launch.start > at: found.append(Moment((at - begin) / 1e3, (launch.start - at) / 1e3, None))
    found.append(Moment((launch.start - begin) / 1e3, (ns := launch.ns or 0) / 1e3, k))
    at = launch.start + ns
  return [*found, Moment((at - begin) / 1e3, (step.end - at) / 1e3, None)]

def _end_to_end(kernels: Sequence[Kernel], host: float) -> list[Moment]:
  """Spans of kernels that were timed alone, laid end to end, and of the host after them."""
  starts = np.cumsum([0.0, *(kernel.us for kernel in kernels)])
  return [*(Moment(start, kernel.us, k) for k, (start, kernel) in enumerate(zip(starts.tolist(), kernels))),
          Moment(float(starts[-1]), host, None)]
