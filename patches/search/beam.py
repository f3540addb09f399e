"""
Beam search for a kernel's schedule over its space (space.py), from the present schedule and others known to be good.

The cost model ranks the neighbours of the fastest schedules. The best-ranked neighbours are compiled and timed, and the
next generation starts from the fastest. A winner must be faster than the present schedule when both are timed in turns,
and must compute the same numbers.

The search sees the clock and the device only through a Measure: the same answers lead to the same winner.
"""
from __future__ import annotations
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from tinygrad.codegen.opt import KernelOptError
from tinygrad_llm.patches.ir.actions import Opts
from tinygrad_llm.patches.search.space import Attention, Loops

WIDTH = 2        # beam width: schedules from which a generation starts
LOWERED = 32     # neighbours per batch: a batch is lowered and timed before the next one
KEPT = 4         # neighbours of a batch that are compiled and timed
BETTER = 0.02    # gain, as a share of the time, at which the next generation starts without the remaining batches
WORSE = 1.6      # neighbours whose estimate is above this many times the least of their parents' are not compiled
GAIN = 0.005     # gain, as a share of the time, below which the search ends
FINALISTS = 4    # schedules that are timed in turns with the present one at the end
CLEAR = 0.99     # the winner's time in turns must be below this share of the present schedule's
Before = None    # the schedule that the kernel has without any search

class Measure(Protocol):
  """Answers a search's questions. A string instead of a number says why the candidate is invalid."""
  def estimate(self, many: Sequence[Opts|None]) -> list[tuple[float, str]|str]:
    """Microseconds of each by the cost model, 0 if unknown, and a digest that is the same for equal code."""
  def time(self, many: Sequence[Opts|None], best: float) -> list[float|str]:
    """Seconds of each, compiled and run cold. best: the best so far; several times that need not be exact."""
  def compare(self, many: Sequence[Opts|None]) -> list[list[float]]:
    """Seconds of each in every round, timed in turns. The list of one that does not run is empty."""
  def check(self, opts: Opts|None) -> str|None:
    """Why its results differ from the unoptimised kernel's on fresh random inputs; None if they agree."""
  def over(self) -> bool:
    """Whether the time budget is spent."""

@dataclass
class Result:
  """
  The outcome of a search.

  - opts: the winner, None if the present schedule stays.
  - ratio: the winner's time over the present schedule's, timed in turns.
  - before, after: seconds of the present schedule and of the winner; NaN if the present schedule does not run.
  - timed, lowered: numbers of candidates.
  - refused: the invalid candidates, with the reason.
  - complete: False if the time budget ended the search.
  """
  opts: Opts|None
  ratio: float
  before: float
  after: float
  timed: int
  lowered: int
  refused: dict[Opts|None, str] = field(default_factory=dict)
  complete: bool = True

def quartile(times: Sequence[float]) -> float:
  """The lower quartile: other load only makes times longer, and it may do so half of the time."""
  return sorted(times)[len(times) // 4]

class Search:
  """The search for one kernel. starts: schedules to start from beside the present one; enough: seconds that end it."""
  def __init__(self, space: Loops|Attention, present: Opts, starts: Iterable[Opts], measure: Measure,
               enough: float = 0.0, width: int = WIDTH, generations: int = 16):
    self.space, self.measure, self.enough, self.width, self.generations = space, measure, enough, width, generations
    self.starts = dict.fromkeys([Before, present, *starts])
    self.estimates: dict[Opts|None, float] = {}
    self.seconds: dict[Opts|None, float] = {}
    self.refused: dict[Opts|None, str] = {}
    self._codes: set[str] = set()
    self._seen: set[Opts|None] = set()
    self._present = present

  def run(self) -> Result:
    """Searches until no step is faster, `enough` is reached, or the budget or the generations are spent."""
    self._time(self._new(self.starts))
    complete = self._walk()
    return self._decide(complete)

  def _walk(self) -> bool:
    for _ in range(self.generations):
      best = min(self.seconds.values(), default=math.inf)
      if best <= self.enough or not self.seconds: return True
      if self.measure.over(): return False
      from_ = sorted(self.seconds, key=lambda opts: self.seconds[opts])[:self.width]
      near = [*dict.fromkeys(opts for parent in from_ for opts in self._neighbours(parent) if opts not in self._seen)]
      least = min(self.estimates[parent] for parent in from_)
      for first in range(0, len(near), LOWERED):
        found = self._new(near[first:first + LOWERED])
        if self.measure.over(): return False
        self._time([opts for opts in found if self.estimates[opts] <= WORSE * least][:KEPT])
        if min(self.seconds.values()) < best * (1 - BETTER): break
      if min(self.seconds.values()) > best * (1 - GAIN): return True
    return True

  def _neighbours(self, opts: Opts|None) -> Iterable[Opts]:
    try: steps = self.space.steps(self._present if opts is None else opts)
    except KernelOptError: return []
    return [made for near in self.space.neighbours(steps) if (made := self.space.opts(near)) is not None]

  def _new(self, many: Iterable[Opts|None]) -> list[Opts|None]:
    """Lowers candidates and returns those whose code is new, the most promising first."""
    asked = [opts for opts in many if opts not in self._seen]
    self._seen.update(asked)
    found = list[Opts|None]()
    for opts, answer in zip(asked, self.measure.estimate(asked)):
      if isinstance(answer, str): self.refused[opts] = answer
      elif answer[1] not in self._codes:
        self._codes.add(answer[1])
        self.estimates[opts] = answer[0]
        found.append(opts)
    return sorted(found, key=lambda opts: self.estimates[opts])

  def _time(self, many: Sequence[Opts|None]) -> None:
    best = min(self.seconds.values(), default=math.inf)
    for opts, answer in zip(many, self.measure.time(many, best)):
      if isinstance(answer, str): self.refused[opts] = answer
      else: self.seconds[opts] = answer
    while self.seconds and (first := min(self.seconds, key=lambda opts: self.seconds[opts])) is not Before:
      if self.seconds[first] >= best or (why := self.measure.check(first)) is None: return
      self.refused[first] = why  # a wrong schedule is no parent
      del self.seconds[first]

  def _decide(self, complete: bool) -> Result:
    def result(opts: Opts|None, ratio: float, before: float, after: float) -> Result:
      return Result(opts, ratio, before, after, len(self.seconds), len(self.estimates), self.refused, complete)
    if Before not in self.seconds: return result(None, 1.0, math.nan, math.nan)
    before = self.seconds[Before]
    while True:
      faster = [opts for opts in sorted(self.seconds, key=lambda opts: self.seconds[opts]) if opts is not Before]
      if not (finalists := [opts for opts in faster if opts not in self.refused][:FINALISTS]): break
      turns = self.measure.compare([Before, *finalists])
      if any(not times for times in turns): # one of them no longer runs
        for opts, times in zip(finalists, turns[1:]):
          if not times: self.refused[opts] = "it ran, and then did not"
        if not turns[0]: break
        continue
      before = quartile(turns[0])
      ratios = {opts: quartile(times) / before for opts, times in zip(finalists, turns[1:])}
      winner = min(ratios, key=lambda opts: ratios[opts])
      if ratios[winner] >= CLEAR: break
      if (why := self.measure.check(winner)) is None:
        return result(winner, ratios[winner], before, before * ratios[winner])
      self.refused[winner] = why
    return result(None, 1.0, before, before)
