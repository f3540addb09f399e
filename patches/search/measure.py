"""Answers to a search from the device, by way of the sandbox; what they cost and refused is kept for the next time."""
from __future__ import annotations
import math, time
from collections.abc import Callable, Sequence
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.opts import Opts
from tinygrad_llm.patches.search.sandbox import Failed, Process, Sandbox

LOWER, COMPILE = 60.0, 60.0  # seconds that one may take
SLOW, FIRST = 3.0, 5.0       # times the best that is timed exactly; seconds of first launches, their data made before
PREPARE = 120.0              # seconds for data, and for the unoptimised kernel on it
NO_TIME = "no time is left"  # of a candidate, which another search may look at
ROUNDS, TURNS = 5, 15        # of timing, of the comparison at the end

def memory_of(ast: UOp, cold: int) -> int:
  """Bytes that a kernel's copies and references take."""
  size = sum(u.max_numel() * u.dtype.itemsize for u in ast.toposort() if u.op is Ops.PARAM and u.arg.slot >= 0)
  return max(cold, 2 * size) + 4 * size

class OnDevice:
  """
  A Measure of the sandbox's kernel. known: seconds of candidates, or why they are none, from a search that did not end;
  running, done: told which candidate runs for the first time, and what came of it.
  """
  def __init__(self, sandbox: Sandbox, deadline: float, known: dict[Opts|None, float|str],
               running: Callable[[Opts|None], None], done: Callable[[Opts|None, float|str], None], seed: int = 0):
    self.sandbox, self.deadline, self.known, self.running, self.done = sandbox, deadline, known, running, done
    self.compiled, self.seed, self._programs, self._added = 0, seed, dict[Opts|None, bytes](), set[Opts|None]()
    self._process = sandbox.runner._process
    self._present = seconds if isinstance(seconds := known.get(None), float) else None

  def over(self) -> bool: return time.monotonic() >= self.deadline

  def estimate(self, many: Sequence[Opts|None]) -> list[tuple[float, str]|str]:
    def lower(process: Process, opts: Opts|None) -> tuple[float, str]:
      if self.over() and opts is not None: raise Failed(NO_TIME)
      return process.ask("lower", opts, seconds=LOWER)  # type: ignore[no-any-return]
    return [str(found) if isinstance(found, Failed) else found for found in self.sandbox.each(many, lower)]

  def time(self, many: Sequence[Opts|None], best: float) -> list[float|str]:
    new = [opts for opts in many if opts not in self.known]
    found = self.sandbox.each(new, lambda process, opts: process.ask("compile", opts, seconds=COMPILE))
    for opts, program in zip(new, found):
      if isinstance(program, Failed): self._done(opts, str(program))
      else: self._programs[opts] = program
    self.compiled += len(new)
    for opts in new:
      if opts in self._programs and (opts is None or not self.over()): best = min(best, self._first(opts, best))
    return [self.known.get(opts, NO_TIME) for opts in many]

  def _first(self, opts: Opts|None, best: float) -> float:
    self.running(opts)
    try:
      self._add(opts)
      limit = FIRST + 80 * ROUNDS * (best if best < math.inf else 1.0)
      if self._present is None or opts is None:
        times, = self._ask("time", [opts], ROUNDS, SLOW * best, seconds=limit)
        seconds = min(times)  # what disturbs a round only makes it longer
        if opts is None: self._present = seconds
      else:  # beside the present schedule: the machine is faster and slower by the minute
        self._add(None)
        ours, times = self._ask("time", [None, opts], ROUNDS, SLOW * best, seconds=limit)
        seconds = min(times) / min(ours) * self._present
      self._done(opts, seconds)
      return seconds
    except Failed as e:
      self._done(opts, str(e))
      return math.inf

  def _done(self, opts: Opts|None, what: float|str) -> None:
    self.known[opts] = what
    self.done(opts, what)

  def _ask(self, name: str, *args: object, seconds: float) -> list[list[float]]:
    return self.sandbox.runner.ask(name, *args, seconds=seconds)  # type: ignore[no-any-return]

  def _add(self, opts: Opts|None) -> None:
    """Gives the runner a program, and its data if it is a new process."""
    runner = self.sandbox.runner
    if runner._process is None or runner._process is not self._process: self._added.clear()
    if opts in self._added: return
    if opts not in self._programs:
      self._programs[opts] = runner.ask("compile", opts, seconds=COMPILE)
      self.compiled += 1
    if not self._added: runner.ask("prepare", seconds=PREPARE)
    runner.ask("add", opts, self._programs[opts], seconds=COMPILE)
    self._added.add(opts)
    self._process = runner._process

  def compare(self, many: Sequence[Opts|None]) -> list[list[float]]:
    try:
      for opts in many: self._add(opts)
      return self._ask("time", list(many), TURNS, seconds=FIRST + 60)
    except Failed:  # which of them it was shows one by one
      return [self._alone(opts) for opts in many]

  def _alone(self, opts: Opts|None) -> list[float]:
    try:
      self._add(opts)
      return self._ask("time", [opts], TURNS, seconds=FIRST + 60)[0]
    except Failed: return []

  def check(self, opts: Opts|None) -> str|None:
    self.seed += 1
    try:
      self._add(opts)
      self.sandbox.runner.ask("check", opts, self.seed, seconds=PREPARE)
    except Failed as e:
      self.done(opts, str(e))
      return str(e)
    return None
