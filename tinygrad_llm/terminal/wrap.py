"""
Lines of a terminal's width, out of text that arrives in pieces.

Columns of a character: Unicode's East Asian Width (UAX #11), 2 for wide ones and 0 for combining ones. What is drawn as
one character (UAX #29: a base and its marks, emoji joined or coloured, two halves of a flag) is never torn apart.
"""
from __future__ import annotations
import unicodedata
from collections.abc import Callable
from functools import lru_cache

JOINER, EMOJI_STYLE, TAB = "\u200d", "\ufe0f", 8
GLUE = "\u00a0\u2007\u202f"  # spaces that do not break a line

@lru_cache(4096)
def columns(c: str) -> int:
  """Columns that one character takes by itself."""
  if unicodedata.category(c) in ("Mn", "Me", "Cf") or _vowel(c): return 0
  return 2 if unicodedata.east_asian_width(c) in "WF" else 1

def _vowel(c: str) -> bool:
  """The second and third parts of a Hangul syllable."""
  return "\u1160" <= c <= "\u11ff" or "\ud7b0" <= c <= "\ud7fb"

def _flag(c: str) -> bool: return "\U0001f1e6" <= c <= "\U0001f1ff"

def _coloured(glyph: str, c: str) -> bool:
  """Whether a character goes into the emoji before it and takes no room: after a joiner, or a colour of skin."""
  return glyph[-1] == JOINER or "\U0001f3fb" <= c <= "\U0001f3ff"

def _joins(glyph: str, size: int, c: str) -> bool:
  """Whether a character is drawn as a part of what is before it."""
  if size == 2 and _coloured(glyph, c) or _vowel(c) or unicodedata.category(c) in ("Mn", "Me", "Mc", "Cf"): return True
  return _flag(c) and len(glyph) == 1 and _flag(glyph)

def _breaks(glyph: str, c: str) -> bool:
  """Whether a line may end between the two without a space: beside wide characters, but not before `,` or after `(`."""
  wide = columns(glyph[0]) == 2 or columns(c) == 2
  return wide and unicodedata.category(c) not in ("Pe", "Pf", "Po", "Lm") and \
    unicodedata.category(glyph[0]) not in ("Ps", "Pi")

def glyphs(text: str) -> list[tuple[str, int]]:
  """What a text is drawn as: characters with all that belongs to them, and the columns of each."""
  found: list[tuple[str, int]] = []
  for c in text: _add(found, c)
  return found

def _add(found: list[tuple[str, int]], c: str) -> None:
  if not found or not _joins(*found[-1], c): return found.append((c, columns(c)))
  glyph, size = found[-1]
  if c == EMOJI_STYLE: size = max(size, 2)
  elif not _coloured(glyph, c): size += columns(c)
  found[-1] = glyph + c, size

def width(text: str) -> int:
  """Columns that a text without line ends and tabs takes."""
  return sum(w for _, w in glyphs(text))

def _printable(c: str) -> str:
  """A control character as a picture: a terminal would obey it."""
  if c < " ": return chr(0x2400 + ord(c))
  return "\u2421" if c == "\x7f" else "\ufffd" if "\x80" <= c <= "\x9f" else c

class Wrap:
  """
  Puts line ends into a stream of text: in place of spaces, beside wide characters, or inside a word that is longer than
  a line. Nothing else changes, but that control characters become visible. A word is held back until it is whole.

  columns: the terminal's width, asked again for each word, as it may change.
  """
  def __init__(self, columns: Callable[[], int]):
    self._columns, self._width, self._column = columns, 0, 0
    self._spaces, self._word, self._torn = "", list[tuple[str, int]](), False  # _torn: the word's beginning is out

  def push(self, text: str) -> str:
    """What can be shown after this text, line ends included."""
    return "".join(map(self._push, text))

  def flush(self) -> str:
    """The word that was held back, once there is no more text."""
    return self._place()

  def _push(self, c: str) -> str:
    if c == "\n":
      out, gap = self._place(), self._gap()
      if self._column + gap <= self._width: out += self._spaces
      self._spaces, self._column = "", 0
      return out + c
    if c == "\t" or unicodedata.category(c) == "Zs" and c not in GLUE:
      out, self._spaces = self._place(), self._spaces + c
      return out
    if c == "\r": return ""
    c, out = _printable(c), ""
    if not self._word or _joins(*self._word[-1], c): _add(self._word, c)
    elif _breaks(self._word[-1][0], c): out, self._word = self._place(), [(c, columns(c))]
    else:
      if self._torn or sum(w for _, w in self._word) > self._measure(): out, self._torn = self._place(), True
      self._word.append((c, columns(c)))
    return out

  def _measure(self) -> int:
    now = max(self._columns(), 1)
    if now < self._width and self._column: self._column = (self._column - 1) % now + 1  # the terminal has reflown it
    self._width = now
    return now

  def _gap(self) -> int:
    """Columns that the spaces take from here."""
    self._measure()
    end = self._column
    for c in self._spaces: end += TAB - end % TAB if c == "\t" else columns(c)
    return end - self._column

  def _place(self) -> str:
    """The word after its spaces, or on a line of its own; of a long or torn one what fits on each line."""
    if not self._word: return ""
    gap, size = self._gap(), sum(w for _, w in self._word)
    if self._torn or self._column + gap + size <= self._width: out, self._column = self._spaces, self._column + gap
    elif self._column: out, self._column = "\n", 0
    else: out, self._column = " " * (indent := max(0, self._width - size)), indent  # as much of it as there is room for
    for glyph, w in self._word:
      if self._column and self._column + w > self._width: out, self._column = out + "\n", 0
      out, self._column = out + glyph, self._column + w
    self._spaces, self._word, self._torn = "", [], False
    return out
