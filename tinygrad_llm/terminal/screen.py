"""Shows an answer while it streams: thinking set apart, lines wrapped to the terminal's width."""
from __future__ import annotations
import os
from typing import TYPE_CHECKING, TextIO
from tinygrad_llm.terminal.wrap import Wrap
from tinygrad_llm.text.thinking import THINKING
if TYPE_CHECKING: from tinygrad_llm.engine.llm import Timing

DIM, NORMAL, ERASE = "\x1b[2m", "\x1b[0m", "\r\x1b[K"

def is_terminal(stream: TextIO | None) -> bool: return stream is not None and stream.isatty()

def terminal_columns(out: TextIO | None) -> int:
  try: return out and os.get_terminal_size(out.fileno()).columns or 80
  except (OSError, ValueError): return 80

class Screen:
  """
  Shows one answer.

  On a terminal, lines are wrapped, and thinking is dim text under a heading. Elsewhere, and on terminals without dim
  text (NO_COLOR, TERM=dumb), thinking stands between <think> and </think>. A pipe gets the text unwrapped.

  out: None shows nothing.
  """
  def __init__(self, out: TextIO | None, hide_thinking: bool = False):
    self._out, self._hide, self._terminal = out, hide_thinking, is_terminal(out)
    self._dim = self._terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
    self._wrap, self._kind = self._new_wrap(), ""

  def write(self, kind: str, text: str) -> None:
    """Shows a piece of thinking or answer, see text.thinking for the kinds."""
    if kind != self._kind:
      self._leave(last=False)
      self._kind = kind
      if kind == THINKING and not self._hide: self._show("Thinking:\n" if self._dim else "<think>\n")
      elif kind == THINKING and self._dim: self._show("Thinking ..")
    if kind != THINKING or not self._hide: self._show(self._wrap.push(text) if self._terminal else text)

  def end(self) -> None:
    """Shows the text that was held back, and ends the line."""
    self._leave(last=True)
    self._put("" if self._kind == THINKING and self._hide else "\n")

  def _new_wrap(self) -> Wrap: return Wrap(lambda: terminal_columns(self._out))

  def _leave(self, last: bool) -> None:
    if not self._kind: return
    self._show(self._wrap.flush())
    self._wrap = self._new_wrap()
    if self._kind == THINKING and self._hide: return self._put(ERASE if self._dim else "")
    if self._kind == THINKING and not self._dim: self._show("\n</think>")
    if not last: self._put("\n\n")

  def _show(self, text: str) -> None:
    self._put(f"{DIM}{text}{NORMAL}" if text and self._dim and self._kind == THINKING else text)

  def _put(self, text: str) -> None:
    if self._out is None: return
    encoding = self._out.encoding or "utf-8"  # not every terminal's encoding has every character
    self._out.write(text.encode(encoding, "replace").decode(encoding))
    self._out.flush()

def summary(timing: Timing, seed: int | None = None) -> str:
  """
  One line about an answer: tokens, tok/s, s to the first token, why it was cut short if it was, and its drawn seed.
  """
  speed = f", {timing.decode_tok_s:.1f} tok/s" if timing.decode_tok_s else ""
  tokens = f"{timing.tokens} token{'' if timing.tokens == 1 else 's'}"
  more = [f"finish: {timing.finish}"] * (timing.finish != "stop") + [f"seed: {seed}"] * (seed is not None)
  before = f"[{', '.join(more)}] " if more else ""
  return f"{before}[{tokens}{speed}, first token after {timing.first_token:.2f} s]"
