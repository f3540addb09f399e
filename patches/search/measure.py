"""Answers to a search from the device, by way of the sandbox; what they cost and refused is kept for the next time."""
from __future__ import annotations
import math, time
from collections.abc import Callable, Sequence
from typing import TypeVar
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.ir.actions import Opts
from tinygrad_llm.patches.search.sandbox import Broken, Failed, Process, Sandbox, Unready

T = TypeVar("T")
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
  running, done: told which candidate runs for the first time, and what came of it; idle: that none does any more.

  Unready: nothing can be measured, and no candidate is to blame.
  """
  def __init__(self, sandbox: Sandbox, deadline: float, known: dict[Opts|None, float|str],
               running: Callable[[Opts|None], None], done: Callable[[Opts|None, float|str], None], seed: int = 0,
               idle: Callable[[], None] = lambda: None):
    self.sandbox, self.deadline, self.known, self.running, self.done = sandbox, deadline, known, running, done
    self.idle = idle
    self.compiled, self.seed, self._programs, self._added = 0, seed, dict[Opts|None, bytes](), set[Opts|None]()
    self._process: object = None  # the one that has data
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
      if isinstance(program, Unready): continue
      if isinstance(program, Failed): self._done(opts, str(program))
      else: self._programs[opts] = program
    self.compiled += len(new)
    for opts in new:
      if opts in self._programs and (opts is None or not self.over()): best = min(best, self._first(opts, best))
    return [self.known.get(opts, NO_TIME) for opts in many]

  def _first(self, opts: Opts|None, best: float) -> float:
    try: seconds = self._blaming(opts, lambda: self._timed(opts, best))
    except Unready: raise
    except Failed as e:
      self._done(opts, str(e))
      return math.inf
    if opts is None: self._present = seconds
    self._done(opts, seconds)
    return seconds

  def _timed(self, opts: Opts|None, best: float) -> float:
    beside = [None] if self._present is not None and opts is not None else []
    for other in beside: self._add(other)
    self._prepare()
    self.running(opts)
    try:
      self._add(opts)
      limit = FIRST + 80 * ROUNDS * (best if best < math.inf else 1.0)
      *ours, times = self._ask("time", [*beside, opts], ROUNDS, SLOW * best, seconds=limit)
    except BaseException:
      self.idle()
      raise
    if not ours or self._present is None: return min(times)  # what disturbs a round only makes it longer
    return min(times) / min(ours[0]) * self._present  # the machine is faster and slower by the minute

  def _blaming(self, opts: Opts|None, ask: Callable[[], T]) -> T:
    """
    What the runner says of a candidate. Failed: that is none. What was not its doing is asked once more, in a new
    process: that ended while other kernels ran, or had no memory for its data.
    """
    for again in (True, False):
      try: return ask()
      except Failed as e:
        if not isinstance(e, Unready) and (not isinstance(e, Broken) or e.at_work == opts): raise
        if not again or self.over(): raise Unready(str(e)) from e
        self.sandbox.runner.stop()
    raise AssertionError

  def _done(self, opts: Opts|None, what: float|str) -> None:
    self.known[opts] = what
    self.done(opts, what)

  def _ask(self, name: str, *args: object, seconds: float) -> list[list[float]]:
    return self.sandbox.runner.ask(name, *args, seconds=seconds)  # type: ignore[no-any-return]

  def _prepare(self) -> None:
    """Makes the runner's data if it is a new process. Unready: it cannot."""
    runner = self.sandbox.runner
    if self._process is not None and runner._process is self._process: return
    self._added.clear()
    try: runner.ask("prepare", seconds=PREPARE)
    except Failed as e: raise Unready(str(e)) from e
    self._process = runner._process

  def _add(self, opts: Opts|None) -> None:
    """Gives the runner a program."""
    self._prepare()
    if opts in self._added: return
    runner = self.sandbox.runner
    if opts not in self._programs:
      self._programs[opts] = runner.ask("compile", opts, seconds=COMPILE)
      self.compiled += 1
    runner.ask("add", opts, self._programs[opts], seconds=COMPILE)
    self._added.add(opts)

  def compare(self, many: Sequence[Opts|None]) -> list[list[float]]:
    try:
      for opts in many: self._add(opts)
      return self._ask("time", list(many), TURNS, seconds=FIRST + 60)
    except Failed:  # which of them it was shows one by one
      return [self._alone(opts) for opts in many]

  def _alone(self, opts: Opts|None) -> list[float]:
    def alone() -> list[float]:
      self._add(opts)
      return self._ask("time", [opts], TURNS, seconds=FIRST + 60)[0]
    try: return self._blaming(opts, alone)
    except Unready: raise
    except Failed as e:
      if opts is not None: self.done(opts, str(e))
      return []

  def check(self, opts: Opts|None) -> str|None:
    self.seed += 1
    def check() -> None:
      self._add(opts)
      self.sandbox.runner.ask("check", opts, self.seed, seconds=PREPARE)
    try: self._blaming(opts, check)
    except Unready: raise
    except Failed as e:
      self.done(opts, str(e))
      return str(e)
    return None
