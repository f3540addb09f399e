"""Stop strings in text that arrives in pieces."""
from __future__ import annotations
from collections.abc import Sequence
from tinygrad_llm.errors import InputError

class StopStrings:
  """
  Cuts a stream of text at the first stop string, and holds back text that may turn out to be the beginning of one.
  The outcome does not depend on how the text is cut into pieces: the stop string that is complete first counts, of
  several that end there the longest.
  """
  def __init__(self, stops: Sequence[str]):
    if isinstance(stops, str) or not all(isinstance(s, str) and s for s in stops):
      raise InputError(f"stop: {stops!r} is not a list of texts; leave out what is empty")
    self._stops, self._held = tuple(stops), ""
    self._longest = max(map(len, self._stops), default=0)

  def push(self, text: str) -> tuple[str, bool]:
    """The text that can be shown now, and whether a stop string came: then nothing more will be shown."""
    self._held += text
    if ends := [(at + len(s), at) for s in self._stops if (at := self._held.find(s)) >= 0]:
      shown, self._held = self._held[:min(ends)[1]], ""
      return shown, True
    for n in range(min(self._longest - 1, len(self._held)), 0, -1):
      if any(s.startswith(self._held[-n:]) for s in self._stops): break
    else: n = 0
    cut = len(self._held) - n
    shown, self._held = self._held[:cut], self._held[cut:]
    return shown, False

  def flush(self) -> str:
    """What was held back, once there is no more text."""
    held, self._held = self._held, ""
    return held
