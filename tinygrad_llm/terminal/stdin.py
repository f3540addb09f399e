"""Reads a prompt from a pipe or a file on standard input."""
from __future__ import annotations
import select, sys
from tinygrad_llm.errors import InputError
from tinygrad_llm.terminal.screen import is_terminal

BYTES = 16 << 20  # more than any context holds
PATIENCE, LIMIT = 2, 60  # seconds to wait for text: before a message is shown, and in all

def unix_lines(text: str) -> str:
  """The text with Windows' line ends replaced by Unix ones."""
  return text.replace("\r\n", "\n")

def read_prompt(prompt: str | None) -> str | None:
  """
  The prompt together with the text on standard input.

  prompt: for None or "-", the text on standard input is the whole prompt; else it follows the prompt after an empty
  line.

  Standard input is read to its end if it is no terminal, or for "-"; one line end at its end is dropped. If there is a
  prompt, a pipe that stays open and silent counts as empty after LIMIT seconds: some programs leave such a pipe to
  their children. Returns None if there is a terminal and no prompt. InputError if there is no text at all, or it is not
  UTF-8.
  """
  if prompt not in (None, "-") and not (prompt or "").strip():
    raise InputError("--prompt: it is empty; write a message, or leave it out to chat")
  if prompt is not None: prompt = unix_lines(prompt)
  if is_terminal(sys.stdin) and prompt != "-": return prompt
  own = None if prompt == "-" else prompt
  text = _text() if sys.stdin is not None and (own is None or _ready()) else ""
  if own is None and not text.strip():
    raise InputError("standard input: it is empty; give a message there or with --prompt, or chat in a terminal")
  return "\n\n".join(part for part in (own, text) if part and part.strip())

def _ready() -> bool:
  """Whether standard input has something to read, or has ended, within LIMIT seconds."""
  if select.select([sys.stdin], [], [], PATIENCE)[0]: return True
  print("[waiting for standard input; < /dev/null answers --prompt alone]", file=sys.stderr)
  if select.select([sys.stdin], [], [], LIMIT - PATIENCE)[0]: return True
  print("[nothing came: this answers --prompt alone]", file=sys.stderr)
  return False

def _text() -> str:
  data = sys.stdin.buffer.read(BYTES + 1)
  if len(data) > BYTES: raise InputError(f"standard input: more than {BYTES >> 20} MiB; give less text")
  try: text = data.decode("utf-8-sig")
  except UnicodeDecodeError as e:
    raise InputError(f"standard input: byte {e.start} is not UTF-8; convert it, for example with iconv") from None
  return unix_lines(text).removesuffix("\n")
