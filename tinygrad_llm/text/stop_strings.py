"""Stop strings in streamed text."""
from __future__ import annotations
from collections.abc import Iterable, Sequence
from tinygrad_llm.errors import InputError

def checked(stops: Sequence[str]) -> tuple[str, ...]:
  """The stop strings as a tuple. InputError unless they are a list of texts, none of them empty."""
  found = tuple(stops) if isinstance(stops, Iterable) and not isinstance(stops, (str, bytes)) else ("",)
  if all(isinstance(s, str) and s for s in found): return found
  raise InputError(f"stop: {stops!r:.60} is not a list of texts; leave out what is empty")

class StopStrings:
  """
  Cuts a stream of text at the first stop string, and holds back text that may be the beginning of one.

  The outcome does not depend on how the text is cut into pieces. The stop string that is complete first counts; if
  several end there, the longest.

  left: how many of the pushed characters, names aside, are held back or cut off.
  """
  def __init__(self, stops: Sequence[str]):
    self._stops, self._held, self._names = checked(stops), "", ""  # _names: "n" for each character of a name in _held
    self._longest, self.left = max(map(len, self._stops), default=0), 0

  def push(self, text: str, name: bool = False) -> tuple[str, bool]:
    """
    The text that can be shown now, and whether a stop string came. After a stop string nothing more is shown.

    name: the text is the vocabulary's name of a token that has no text. It may be part of a stop string, but is never
    shown.
    """
    self._held, self._names = self._held + text, self._names + (" n"[name] * len(text))
    if ends := [(at + len(s), at) for s in self._stops if (at := self._held.find(s)) >= 0]:
      shown = self._take(min(ends)[1])
      self._held = self._names = ""
      return shown, True
    for n in range(min(self._longest - 1, len(self._held)), 0, -1):
      if any(s.startswith(self._held[-n:]) for s in self._stops): break
    else: n = 0
    return self._take(len(self._held) - n), False

  def flush(self) -> str:
    """The text that was held back. Call it after the last text."""
    return self._take(len(self._held))

  def mentions(self, name: str) -> bool:
    """Whether a token's name is part of a stop string."""
    return any(name in s for s in self._stops)

  def _take(self, length: int) -> str:
    text, names = self._held[:length], self._names[:length]
    self._held, self._names = self._held[length:], self._names[length:]
    self.left = self._names.count(" ")
    return text if "n" not in names else "".join(c for c, kind in zip(text, names) if kind == " ")
