"""Errors for bad input, which end a command, and warnings, which do not."""
from __future__ import annotations
import errno, sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from os import PathLike
from tqdm import tqdm

class InputError(Exception):
  """
  Bad input from the user: a file, a flag, an environment variable.

  The message is one line that names the input, the field and the fix. The commands print it to stderr and exit with
  code 2.
  """

class DeviceError(InputError):
  """
  A device fails: it has no memory left, it is lost, or its driver rejects the compiled code.

  The device may have lost the model's weights and its KV cache; the message says what to do.
  """

class ContextError(InputError):
  """A prompt that does not fit. count: its tokens, or at least so many; context: the positions that there are."""
  def __init__(self, message: str, count: int, context: int):
    super().__init__(message)
    self.count, self.context = count, context

def is_shortage(e: BaseException) -> bool:
  """Whether the system is out of memory for this process: a thread's stack and a fork need memory, too."""
  return (isinstance(e, MemoryError) or isinstance(e, OSError) and e.errno == errno.ENOMEM or
          isinstance(e, RuntimeError) and str(e) == "can't start new thread")

_subject: ContextVar[str] = ContextVar("subject", default="")

@contextmanager
def naming(path: str | PathLike[str]) -> Iterator[None]:
  """Puts a file's name in front of this block's messages: its InputError and its warnings."""
  before = _subject.set(f"{path}: ")
  try: yield
  except InputError as e: raise InputError(f"{path}: {e}") from e
  finally: _subject.reset(before)

def warn(line: str) -> None:
  """Says on stderr, once, what is wrong with an input and how it is used all the same."""
  _print(" ".join(f"{_subject.get()}{line}".split()))

@cache
def _print(line: str) -> None:
  with suppress(OSError): tqdm.write(f"warning: {line}", file=sys.stderr)  # tqdm keeps it out of a progress bar
