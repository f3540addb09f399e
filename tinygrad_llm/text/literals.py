"""Search for any of many texts at once, such as the special tokens of a vocabulary."""
from __future__ import annotations
import re
from collections.abc import Callable, Iterable, Iterator

Found = tuple[str]  # the text that was found, at [0] as in a regex match

class Literals:
  """
  Finds the same as a regex with all texts as alternatives, the longest first. Compiling that regex takes 0.15 s for
  Gemma 3's 6,000 texts. This class looks at a text's first two characters and then tries the lengths possible for them.
  """
  def __init__(self, texts: Iterable[str]):
    self._texts = frozenset(texts) - {""}
    lengths: dict[str, set[int]] = {}
    for text in self._texts: lengths.setdefault(text[:2], set()).add(len(text))
    self._lengths = {begin: sorted(found, reverse=True) for begin, found in lengths.items()}
    self._begin = re.compile("[" + "".join(map(re.escape, sorted({begin[0] for begin in lengths}))) + "]" if lengths
                             else "(?!)")

  def match(self, text: str, at: int = 0) -> Found | None:
    """The longest of the texts that stands at a position of a text; None if none does."""
    for n in self._lengths.get(text[at:at + 2], ()):
      if (part := text[at:at + n]) in self._texts: return part,
    return (part,) if (part := text[at:at + 1]) in self._texts else None

  def split(self, text: str) -> list[str]:
    """Cuts a text at what is found: rest, found, rest, .., rest; rests may be empty."""
    parts, end = [], 0
    for at, part in self._found(text):
      parts += [text[end:at], part]
      end = at + len(part)
    return [*parts, text[end:]]

  def sub(self, put: Callable[[Found], str], text: str) -> str:
    """The text with each found part replaced by `put` of it, as in re.sub."""
    parts = self.split(text)
    parts[1::2] = [put((part,)) for part in parts[1::2]]
    return "".join(parts)

  def _found(self, text: str) -> Iterator[tuple[int, str]]:
    end = 0
    while (begin := self._begin.search(text, end)) is not None:
      if (found := self.match(text, at := begin.start())) is not None:
        yield at, found[0]
        end = at + len(found[0])
      else: end = at + 1
