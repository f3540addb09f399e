"""A prompt that comes through a pipe."""
import io
import os
import sys
import threading

import pytest

from tinygrad_llm.errors import InputError
from tinygrad_llm.terminal import stdin
from tinygrad_llm.terminal.stdin import read_prompt

class Terminal(io.TextIOWrapper):
  def isatty(self): return True

@pytest.fixture
def piped(monkeypatch):
  """piped(data) makes standard input a pipe that holds these bytes and then ends; None closes standard input."""
  def give(data: bytes | None) -> None:
    if data is None: return monkeypatch.setattr(sys, "stdin", None)
    read, write = os.pipe()
    os.write(write, data)
    os.close(write)
    monkeypatch.setattr(sys, "stdin", os.fdopen(read))
  return give

@pytest.mark.parametrize(("prompt", "data", "wanted"), [
  (None, b"hi\n", "hi"), (None, b" hi\n\nyou \n\n", " hi\n\nyou \n"), (None, b"hi\r\n", "hi"),
  (None, b"\xef\xbb\xbfh\xc3\xa9", "hé"), ("-", b"hi", "hi"), ("Sum up:", b"text\n", "Sum up:\n\ntext"),
  ("Hi ", b"", "Hi "), ("Hi", b" \n", "Hi"), ("Hi", None, "Hi")])
def test_piped_prompt(piped, prompt, data, wanted):
  piped(data)
  assert read_prompt(prompt) == wanted

@pytest.mark.parametrize(("prompt", "data", "words"), [
  (None, b"", "it is empty"), (None, b" \n\n", "it is empty"), ("-", b"", "it is empty"), (None, None, "it is empty"),
  (None, b"ab\xff", "byte 2 is not UTF-8"), ("Hi", b"\xff", "byte 0"), (" ", b"text", "--prompt: it is empty"),
  (None, b"x" * 101, "more than")])
def test_rejects_bad_input(piped, monkeypatch, prompt, data, words):
  monkeypatch.setattr(stdin, "BYTES", 100)
  piped(data)
  with pytest.raises(InputError, match=words): read_prompt(prompt)

def test_terminal_input(monkeypatch):
  monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(b"typed\n")))
  assert read_prompt(None) is None
  assert read_prompt("hi") == "hi"
  assert read_prompt("-") == "typed"  # reads up to Ctrl-D, as cat does

def test_slow_pipe(monkeypatch, capsys):
  """Waiting shows a message. It does not last for ever, because some programs leave an unused pipe open."""
  monkeypatch.setattr(stdin, "PATIENCE", 0.05)
  read, write = os.pipe()
  monkeypatch.setattr(sys, "stdin", os.fdopen(read))
  def later() -> None:
    os.write(write, b"text")
    os.close(write)
  timer = threading.Timer(0.4, later)
  timer.start()
  assert read_prompt("Sum up:") == "Sum up:\n\ntext"
  assert capsys.readouterr().err.count("\n") == 1
  timer.join()
  read, write = os.pipe()
  monkeypatch.setattr(sys, "stdin", os.fdopen(read))
  monkeypatch.setattr(stdin, "LIMIT", 0.1)
  assert read_prompt("Sum up:") == "Sum up:"
  assert "nothing came" in capsys.readouterr().err
  os.close(write)
