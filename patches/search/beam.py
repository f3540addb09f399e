"""
Search for a kernel's schedule: beam search over its space (space.py), from the schedule that it has and others known to
be good. The cost model orders what is one step away, the best of that are compiled and timed, the fastest are where the
next steps go from. What is faster in turns with the present schedule, and computes the same, wins.

It sees no clock and no device but through a Measure: the same answers lead to the same winner.
"""
from __future__ import annotations
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from tinygrad.codegen.opt import KernelOptError
from tinygrad_llm.patches.ir.actions import Opts
from tinygrad_llm.patches.search.space import Attention, Loops

WIDTH = 2        # schedules that are gone on from
LOWERED = 32     # neighbours that are lowered at a time, and looked at before others are
KEPT = 4         # of those, that are compiled
BETTER = 0.02    # of the time: so much is gone on from at once
WORSE = 1.6      # times the estimate of the schedule that it is a step from: not compiled
GAIN = 0.005     # of the time: less is no reason to go on
FINALISTS = 4    # that are timed in turns with the present schedule at the end
CLEAR = 0.99     # of the present schedule's time in turns: what is not below is not kept
Before = None    # the schedule that the kernel has without any search

class Measure(Protocol):
  """Answers to what a search asks. A reason instead of a number: the candidate is none."""
  def estimate(self, many: Sequence[Opts|None]) -> list[tuple[float, str]|str]:
    """Microseconds by the cost model, 0 if unknown, and what tells equal code."""
  def time(self, many: Sequence[Opts|None], best: float) -> list[float|str]:
    """Seconds of each, compiled and run cold. best: of what is known; several times that need not be exact."""
  def compare(self, many: Sequence[Opts|None]) -> list[list[float]]:
    """Seconds of each in turns, the rounds' of one beside the others'."""
  def check(self, opts: Opts|None) -> str|None:
    """Why its numbers are not those of the unoptimised kernel, on fresh random inputs; None: they are."""
  def over(self) -> bool:
    """Whether the budget is spent."""

@dataclass
class Result:
  """
  opts: the winner, None if that is the present schedule; ratio: of its time to that one's, in turns; before, after:
  seconds; timed, lowered: how many candidates were; refused: why some were none; complete: it did not end for its
  budget.
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
  """A quarter of them is below: what else the machine does makes them longer, and it may do so half of the time."""
  return sorted(times)[len(times) // 4]

class Search:
  """A kernel's. starts: schedules to begin with beside the present one; enough: seconds that are as good as can be."""
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
    """Until no step is faster, or the budget is spent."""
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
    """Those whose code was not met before, the most promising first."""
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
      self.refused[first] = why  # no step goes from what is wrong
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
      if any(not times for times in turns): # one of them does not run any more
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
