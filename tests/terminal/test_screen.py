"""Showing answers: thinking set apart, wrapped on a terminal, plain on a pipe."""
import io

import pytest

from tinygrad_llm.terminal import screen
from tinygrad_llm.terminal.screen import Screen

class Terminal(io.StringIO):
  encoding = "utf-8"
  def isatty(self): return True

PARTS = [("thinking", "Let me see"), ("thinking", " now."), ("answer", "It is "), ("answer", "forty two.")]
D, N = screen.DIM, screen.NORMAL

@pytest.fixture(autouse=True)
def narrow(monkeypatch):
  monkeypatch.setenv("TERM", "xterm")
  monkeypatch.delenv("NO_COLOR", raising=False)
  monkeypatch.setattr(screen, "terminal_columns", lambda out: 11)

def shown(out, parts=PARTS, hide=False):
  show = Screen(out, hide)
  for part in parts: show.write(*part)
  show.end()
  return out.getvalue()

def test_output_on_terminal():
  text = shown(Terminal())
  assert text.replace(N + D, "") == f"{D}Thinking:\nLet me see\nnow.{N}\n\nIt is forty\ntwo.\n"
  assert text.rfind(N) < text.index("It is")

@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_terminal_without_dim_text(monkeypatch, name, value):
  monkeypatch.setenv(name, value)
  assert shown(Terminal()) == "<think>\nLet me see\nnow.\n</think>\n\nIt is forty\ntwo.\n"
  assert shown(Terminal(), hide=True) == "It is forty\ntwo.\n"

def test_output_on_pipe():
  assert shown(io.StringIO()) == "<think>\nLet me see now.\n</think>\n\nIt is forty two.\n"
  assert shown(io.StringIO(), [("answer", "\x1b[1m a\r\n\tb")]) == "\x1b[1m a\r\n\tb\n"
  assert shown(io.StringIO(), hide=True) == "It is forty two.\n"
  assert shown(io.StringIO(), PARTS[:2]) == "<think>\nLet me see now.\n</think>\n"
  assert shown(io.StringIO(), PARTS[:2], hide=True) == ""
  assert shown(io.StringIO(), []) == "\n"

def test_hidden_thinking_on_terminal():
  """Hidden thinking shows `Thinking ..` until there is an answer."""
  assert shown(Terminal(), hide=True) == f"{D}Thinking ..{N}{screen.ERASE}It is forty\ntwo.\n"
  assert shown(Terminal(), PARTS[:1], hide=True) == f"{D}Thinking ..{N}{screen.ERASE}"

def test_no_output_and_ascii_output():
  Screen(None).write("answer", "a")
  out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", newline="")
  show = Screen(out)
  show.write("answer", "a é \ud800")
  show.end()
  assert out.buffer.getvalue() == b"a ? ?\n"
