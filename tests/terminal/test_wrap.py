"""Wrapping to a terminal's width: no line is wider, words stay whole, no text is lost."""
import random
import textwrap

import pytest

from tinygrad_llm.terminal.wrap import Wrap, glyphs, width

# {text that is one glyph: its columns in terminals}
GLYPHS = {
  "a": 1, "é": 1, "e\u0301": 1, "a\u0300\u0323": 1, "日": 2, "！": 2, "ｱ": 1, "한": 2, "\u1112\u1161\u11ab": 2, "👍": 2,
  "👍🏽": 2, "👩\u200d👩\u200d👧": 2, "❤\ufe0f\u200d🔥": 2, "❤": 1, "❤\ufe0f": 2, "🇩🇪": 2, "1\ufe0f\u20e3": 2,
  "नि": 2, "…": 1, "か\u3099": 2, "🧑🏿\u200d⚕\ufe0f": 2}

@pytest.mark.parametrize(("text", "wanted"), GLYPHS.items())
def test_glyph_widths(text, wanted):
  assert glyphs(text) == [(text, wanted)]
  assert width(f"{text}x{text}") == 2 * wanted + 1

def test_flag_emoji_pairs(): assert glyphs("🇩🇪🇫🇷🇯") == [("🇩🇪", 2), ("🇫🇷", 2), ("🇯", 1)]

def wrapped(pieces, columns):
  wrap = Wrap(lambda: columns)
  return "".join([wrap.push(piece) for piece in pieces] + [wrap.flush()])

def test_words_match_textwrap():
  """Greedy wrapping, which has one outcome for words that fit."""
  rng = random.Random(1)
  for _ in range(300):
    text = " ".join("x" * rng.randint(1, 9) for _ in range(rng.randint(1, 40)))
    columns = rng.randint(9, 40)
    assert wrapped(text, columns).split("\n") == textwrap.wrap(text, columns)

def test_examples():
  assert wrapped(["  if x:\n\tpass  \n\n"], 20) == "  if x:\n\tpass  \n\n"
  assert wrapped(["see https://example.org/a now"], 10) == "see\nhttps://ex\nample.org/\na now"
  assert wrapped(["日本語（です）。日本語、ok"], 8) == "日本語\n（で\nす）。日\n本語、ok"  # punctuation stays
  assert wrapped(["こんにちは世界"], 5) == "こん\nにち\nは世\n界"
  assert wrapped(["a👍🏽👍🏽👍🏽"], 5) == "a👍🏽👍🏽\n👍🏽"
  assert wrapped(["ab\u00a0cd ef"], 6) == "ab\u00a0cd\nef"  # a no-break space
  assert wrapped(["\x1b[2J\x07a\x9bb\r\n\x7f"], 20) == "␛[2J␇a\ufffdb\n␡"  # control characters
  assert wrapped(["1234567 \n9"], 7) == "1234567\n9"

ALPHABET = [*GLYPHS, *"abc    ", "\n", "\t", ",", "(", "word ", "longer words "]

def test_random_text():
  """The result does not depend on the pieces, at any width that holds a glyph."""
  rng = random.Random(2)
  for _ in range(400):
    text = "".join(rng.choices(ALPHABET, k=rng.randint(1, 60)))
    columns, cuts = rng.randint(2, 30), sorted(rng.choices(range(len(text) + 1), k=rng.randint(0, 9)))
    found = wrapped([text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)])], columns)
    assert found == wrapped(text, columns)
    assert all(width(line.expandtabs(8) if line.isascii() else line.replace("\t", "")) <= columns
               for line in found.split("\n"))
    assert "".join(found.split()) == "".join(text.split())
    drawn = [g for g, _ in glyphs("".join(text.split()))]
    assert [g for line in found.split() for g, _ in glyphs(line)] == drawn or "🇩🇪" in text  # no glyph is split
    assert found.count("\n") >= text.count("\n")

def test_fitting_text_is_unchanged():
  rng = random.Random(3)
  for _ in range(200):
    text = "".join(rng.choices([*"ab   日,(", "👍🏽", "\n"], k=40)).rstrip(" ")
    assert wrapped(text, 80) == text

@pytest.mark.parametrize("columns", [-1, 0, 1])
def test_one_column_terminal(columns):
  assert wrapped("ab c", columns) == "a\nb\nc"
  assert wrapped("日本", columns) == "日\n本"

def test_terminal_resize():
  """A new width counts from the next word on; the terminal itself rewraps a line that became too long."""
  columns = 40
  wrap = Wrap(lambda: columns)
  out = wrap.push("one two three four five six seven ")
  columns = 10
  out += wrap.push("eight nine ten")
  columns = 60
  assert out + wrap.push(" eleven twelve ") + wrap.flush() == \
    "one two three four five six seven eight\nnine ten eleven twelve"

def test_long_word_is_not_held_back():
  wrap = Wrap(lambda: 10)
  shown = wrap.push("x" * 100)
  assert len(shown.replace("\n", "")) > 80
  assert (shown + wrap.flush()).split("\n") == ["x" * 10] * 10
