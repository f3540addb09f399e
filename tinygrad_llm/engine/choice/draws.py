"""The random numbers of one answer, by the positions whose choices they make."""
from __future__ import annotations
from tinygrad_llm.engine.sampling import Sampler

KEPT = 4  # numbers; a step that is launched again is at most two positions back

class Draws:
  """
  Numbers of a sampler, each drawn when it is asked for first.

  A position that is asked for again, as its choice was dropped, gets the same number. So does the host, if it makes
  that choice then.
  """
  def __init__(self, sampler: Sampler):
    self._sampler, self._drawn = sampler, dict[int, float]()

  def known(self, position: int) -> float | None:
    """The number that was drawn for a position; None: none was, and the sampler's next one is for it."""
    return self._drawn.get(position)

  def random32(self, position: int) -> int:
    """The number for a position in units of 2**-32, as a whole number."""
    if position not in self._drawn:
      if len(self._drawn) == KEPT: del self._drawn[min(self._drawn)]
      self._drawn[position] = self._sampler.random()
    return int(self._drawn[position] * 2**32)
