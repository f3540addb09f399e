"""How long a prompt piece and a decode step take, from the times measured last; a rare long one does not count."""
from __future__ import annotations
import math, statistics
from collections import deque
from collections.abc import Iterable
from itertools import chain

LAST = 5        # measured times that are kept of a kind of step; the lower median of them counts
LONGER = 16     # measured pieces of a group that tell how much a position before a token costs
APART = 256     # positions between two of these, at least
FADE = 0.97     # weight of a group of piece sizes, for each piece since its last one
ORIGIN = 0.1    # weight of the point (0 tokens, 0 s), which keeps noise from turning the line
TOO_LONG = 1.5  # times what another group allows: such a group does not count
UNSURE = 1.2    # times the line's value at sizes that were not measured twice
SURE = 3        # times of a group from which on it always counts
Point = tuple[int, float]  # tokens, seconds

class PieceTimes:
  """
  Seconds of a prompt piece by its tokens T and the positions P before their middle: a + b T + c T P, none negative.

  c is the median over pairs of pieces of about the same size, at different positions. The rest is for P = 0. Pieces
  are grouped by the power of two below T. The line goes through the groups' medians, so a compiling call or a
  moment without the processor moves nothing once its group has two times. Before, it does not count if it is too long
  beside another group: a shorter piece takes no longer, and twice the tokens take at most twice as long. A group with
  SURE times always counts: the others may be old. One with two also corrects the line at its own sizes, because a
  kernel's time is only roughly a line.

  One group alone does not tell a from b: a longer piece is expected as if a were 0. A piece shorter than all measured
  ones is expected as if a were at least `step`, a decode step's time. Without any, a token takes a decode step.
  """
  def __init__(self) -> None:
    self.step = 0.0
    self._groups: dict[int, deque[tuple[int, int, float]]] = {}  # tokens, positions, seconds
    self._slopes: dict[int, list[float]] = {}  # of the pairs of a group
    self._each = 0.0  # seconds of a token for each position before it: their median
    self._medians: dict[int, Point] = {}
    self._weights: dict[int, float] = {}
    self._used: dict[int, Point] = {}  # medians that make the line
    self._a = self._b = 0.0

  def add(self, tokens: int, seconds: float, first: int = 0) -> None:
    """Counts a measured piece, whose first token is at position `first`."""
    group = tokens.bit_length()
    points = self._groups.setdefault(group, deque(maxlen=LONGER))
    points.append((tokens, _middle(first, tokens), seconds))
    self._slopes[group] = _slopes([*points])
    if len(found := [*chain.from_iterable(self._slopes.values())]) >= SURE:
      self._each = max(0.0, statistics.median_low(found))
    self._medians = {g: _median([(n, self._at_begin(n, at, s)) for n, at, s in [*points][-LAST:]])
                     for g, points in self._groups.items()}
    self._weights = {g: FADE * weight for g, weight in self._weights.items()} | {group: 1.0}
    self._used = {g: (n, s) for g, (n, s) in self._medians.items()
                  if len(self._groups[g]) >= SURE or s <= TOO_LONG * self._most(n)}
    self._a, self._b = _line([(*point, self._weights[g]) for g, point in self._used.items()])

  def seconds(self, tokens: int, first: int = 0) -> float:
    """Expected seconds of a piece of `tokens` from position `first` on; infinite before any measured step."""
    group, later = tokens.bit_length(), self._each * tokens * _middle(first, tokens)
    if group not in self._used or len(self._groups[group]) < 2: return self._at(tokens) + later
    size, median = self._used[group]
    return self._at(tokens) * median / max(self._at(size), 1e-9) + later

  def sure(self, tokens: int, first: int = 0) -> float:
    """seconds(), and UNSURE times as much until two pieces of about that size were measured: noise bends the line."""
    known = len(self._groups.get(tokens.bit_length(), ())) > 1
    return self.seconds(tokens, first) * (1 if known else UNSURE)

  def most(self, seconds: float, first: int = 0) -> int:
    """Tokens of the longest piece that is expected within `seconds`, by the line alone."""
    if not self._used: return int(seconds / (self.step or math.inf))
    later = self._each * first
    tokens = (seconds - self._a) / max(self._b + later, 1e-9)
    size, a, b = self._shorter()
    return max(0, int(tokens if tokens >= size else min(tokens, (seconds - a) / max(b + later, 1e-9))))

  def _at_begin(self, tokens: int, at: int, seconds: float) -> float:
    """The seconds of a measured piece, had there been no positions before it."""
    return max(seconds - self._each * tokens * at, seconds / 8)

  def _at(self, tokens: int) -> float:
    if not self._used: return tokens * (self.step or math.inf)
    expected = self._a + self._b * tokens
    size, a, b = self._shorter()
    return expected if tokens >= size else max(expected, a + b * tokens)

  def _shorter(self) -> tuple[int, float, float]:
    """The smallest measured size, and a and b for pieces below it."""
    size, median = min(self._used.values())
    a = min(self.step, median)
    return size, a, (median - a) / size

  def _most(self, tokens: int) -> float:
    """The most that a piece can take by the groups' medians."""
    return min(median * max(1, tokens / size) for size, median in self._medians.values())

class DecodeTimes:
  """Seconds of a decode step by its rows, which a step rounds up to a power of two."""
  def __init__(self) -> None:
    self._last: dict[int, deque[float]] = {}

  def add(self, rows: int, seconds: float) -> None:
    """Counts a measured step."""
    if (last := self._last.get(places := _places(rows))) is None: last = self._last[places] = deque(maxlen=LAST)
    last.append(seconds)

  def seconds(self, rows: int) -> float:
    """Expected seconds of a step; 0 where no step of so many rows or fewer was measured twice."""
    known = [n for n in self._measured() if n <= _places(rows)]
    return self._median(max(known)) if known else 0.0

  @property
  def least(self) -> float:
    """Seconds of the step with the fewest rows that was measured twice; 0 before."""
    return self._median(min(known)) if (known := self._measured()) else 0.0

  def _measured(self) -> list[int]: return [n for n, last in self._last.items() if len(last) > 1]
  def _median(self, places: int) -> float: return sorted(last := self._last[places])[(len(last) - 1) // 2]

def _slopes(points: list[tuple[int, int, float]]) -> list[float]:
  """Seconds of a token for each position before it, by each pair of pieces (tokens, positions, seconds)."""
  return [(s / n - t / m) / (p - q) for i, (n, p, s) in enumerate(points) for m, q, t in points[:i]
          if abs(p - q) >= APART]

def _middle(first: int, tokens: int) -> int: return first + tokens // 2

def _places(rows: int) -> int: return 1 << (rows - 1).bit_length()

def _median(points: Iterable[Point]) -> Point:
  """The point with the lower median of seconds a token."""
  ordered = sorted(points, key=lambda point: point[1] / point[0])
  return ordered[(len(ordered) - 1) // 2]

def _line(points: list[tuple[int, float, float]]) -> tuple[float, float]:
  """Least squares of y = a + b x over (x, y, weight), ORIGIN included; through 0 where a or b would be negative."""
  weight = ORIGIN + sum(w for *_, w in points)
  x, y = (sum(p[i] * p[2] for p in points) / weight for i in range(2))
  xx, xy = (sum(p[0] * p[i] * p[2] for p in points) for i in range(2))
  b = (xy - weight * x * y) / max(xx - weight * x * x, 1e-9)
  return (y - b * x, b) if b >= 0 and y >= b * x else (0.0, xy / xx)
