"""
Wraps streamed text to a terminal's width.

A character's columns follow Unicode's East Asian Width (UAX #11): 2 for wide characters, 0 for combining ones. A
grapheme (UAX #29: a base and its marks, joined or coloured emoji, the two halves of a flag) is never split.
"""
from __future__ import annotations
import unicodedata
from collections.abc import Callable
from functools import lru_cache

JOINER, EMOJI_STYLE, TAB = "\u200d", "\ufe0f", 8
GLUE = "\u00a0\u2007\u202f"  # spaces that do not break a line

@lru_cache(4096)
def columns(c: str) -> int:
  """Columns that one character takes on its own."""
  if unicodedata.category(c) in ("Mn", "Me", "Cf") or _vowel(c): return 0
  return 2 if unicodedata.east_asian_width(c) in "WF" else 1

def _vowel(c: str) -> bool:
  """Whether a character is the second or third part of a Hangul syllable."""
  return "\u1160" <= c <= "\u11ff" or "\ud7b0" <= c <= "\ud7fb"

def _flag(c: str) -> bool: return "\U0001f1e6" <= c <= "\U0001f1ff"

def _coloured(glyph: str, c: str) -> bool:
  """Whether a character merges into the emoji before it and takes no columns: after a joiner, or a skin colour."""
  return glyph[-1] == JOINER or "\U0001f3fb" <= c <= "\U0001f3ff"

def _joins(glyph: str, size: int, c: str) -> bool:
  """Whether a character belongs to the grapheme before it, which has `size` columns."""
  if size == 2 and _coloured(glyph, c) or _vowel(c) or unicodedata.category(c) in ("Mn", "Me", "Mc", "Cf"): return True
  return _flag(c) and len(glyph) == 1 and _flag(glyph)

def _breaks(glyph: str, c: str) -> bool:
  """Whether a line may break here without a space: beside wide characters, but not before `,` or after `(`."""
  wide = columns(glyph[0]) == 2 or columns(c) == 2
  return wide and unicodedata.category(c) not in ("Pe", "Pf", "Po", "Lm") and \
    unicodedata.category(glyph[0]) not in ("Ps", "Pi")

def glyphs(text: str) -> list[tuple[str, int]]:
  """Cuts a text into graphemes: (characters, columns) of each."""
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
  """Columns of a text without line ends and tabs."""
  return sum(w for _, w in glyphs(text))

def _printable(c: str) -> str:
  """Replaces a control character by a visible symbol, because a terminal would obey it."""
  if c < " ": return chr(0x2400 + ord(c))
  return "\u2421" if c == "\x7f" else "\ufffd" if "\x80" <= c <= "\x9f" else c

class Wrap:
  """
  Puts line ends into a stream of text: in place of spaces, beside wide characters, or inside a word that is longer than
  a line. Control characters become visible; a carriage return is dropped. A word is held back until it is whole.

  columns: returns the terminal's width; called for each word, as the width may change.
  """
  def __init__(self, columns: Callable[[], int]):
    self._columns, self._width, self._column = columns, 0, 0
    self._spaces, self._word, self._torn = "", list[tuple[str, int]](), False  # _torn: the word's beginning was shown

  def push(self, text: str) -> str:
    """The text that can be shown now, with line ends."""
    return "".join(map(self._push, text))

  def flush(self) -> str:
    """The word that was held back. Call it after the last text."""
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
    if now < self._width and self._column: self._column = (self._column - 1) % now + 1  # the terminal rewraps
    self._width = now
    return now

  def _gap(self) -> int:
    """Columns that the pending spaces take at this position; tabs go to the next stop."""
    self._measure()
    end = self._column
    for c in self._spaces: end += TAB - end % TAB if c == "\t" else columns(c)
    return end - self._column

  def _place(self) -> str:
    """The pending word, after its spaces or on a new line; a long or torn word is cut at the ends of lines."""
    if not self._word: return ""
    gap, size = self._gap(), sum(w for _, w in self._word)
    if self._torn or self._column + gap + size <= self._width: out, self._column = self._spaces, self._column + gap
    elif self._column: out, self._column = "\n", 0
    else: out, self._column = " " * (indent := max(0, self._width - size)), indent  # the part of the indent that fits
    for glyph, w in self._word:
      if self._column and self._column + w > self._width: out, self._column = out + "\n", 0
      out, self._column = out + glyph, self._column + w
    self._spaces, self._word, self._torn = "", [], False
    return out
