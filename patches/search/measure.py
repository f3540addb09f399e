"""A search's measurements on the device, through the sandbox. Times and refusals are kept for a resumed search."""
from __future__ import annotations
import math, time
from collections.abc import Callable, Sequence
from typing import TypeVar
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.ir.actions import Opts
from tinygrad_llm.patches.search.sandbox import Broken, Failed, Process, Sandbox, Unready

T = TypeVar("T")
LOWER, COMPILE = 60.0, 60.0  # seconds that lowering, and compiling, a candidate may take
SLOW, FIRST = 3.0, 5.0       # multiple of the best that is still timed exactly; seconds for first launches on made data
PREPARE = 120.0              # seconds to make the data, and to run the unoptimised kernel on it
NO_TIME = "no time is left"  # a candidate that is refused for this may be tried by another search
ROUNDS, TURNS = 5, 15        # rounds of timing, and of the comparison at the end

def memory_of(ast: UOp, cold: int) -> int:
  """Bytes of the copies of a kernel's arguments and of its reference results."""
  size = sum(u.max_numel() * u.dtype.itemsize for u in ast.toposort() if u.op is Ops.PARAM and u.arg.slot >= 0)
  return max(cold, 2 * size) + 4 * size

class OnDevice:
  """
  A Measure of the sandbox's kernel.

  - known: seconds of candidates, or why they are invalid, from an interrupted search.
  - running: called with a candidate before its first run.
  - done: called with a candidate and its seconds, or why it is invalid.
  - idle: called when a run was interrupted and no candidate runs any more.

  Unready: nothing can be measured, and no candidate is to blame.
  """
  def __init__(self, sandbox: Sandbox, deadline: float, known: dict[Opts|None, float|str],
               running: Callable[[Opts|None], None], done: Callable[[Opts|None, float|str], None], seed: int = 0,
               idle: Callable[[], None] = lambda: None):
    self.sandbox, self.deadline, self.known, self.running, self.done = sandbox, deadline, known, running, done
    self.idle = idle
    self.compiled, self.seed, self._programs, self._added = 0, seed, dict[Opts|None, bytes](), set[Opts|None]()
    self._process: object = None  # the runner process that has the data
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
    if not ours or self._present is None: return min(times)  # other load only makes a round longer
    return min(times) / min(ours[0]) * self._present  # the machine's speed changes by the minute

  def _blaming(self, opts: Opts|None, ask: Callable[[], T]) -> T:
    """
    The runner's answer about a candidate. Failed: the candidate is invalid.

    A failure that is not the candidate's is retried once in a new process, then it is Unready. Examples: the process
    broke while another candidate ran, or it had no memory for its data.
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
    """Makes the data if the runner is a new process. Unready: that failed."""
    runner = self.sandbox.runner
    if self._process is not None and runner._process is self._process: return
    self._added.clear()
    try: runner.ask("prepare", seconds=PREPARE)
    except Failed as e: raise Unready(str(e)) from e
    self._process = runner._process

  def _add(self, opts: Opts|None) -> None:
    """Sends a candidate's program to the runner, unless it has it; compiles it first if needed."""
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
    except Failed:  # timed one by one, the one that fails is found
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
