"""
Standard streams that are closed, full, or have no reader any more: a message that cannot be shown stops no answer.

A process that starts with a closed stream gives its number to the next file that is opened: a model, or a socket, to
which a C library or a compiler then writes its messages. And Python's `print(.., file=None)` writes to stdout.
"""
from __future__ import annotations
import errno, io, os, select, sys

LAST = 2  # the number of stderr

def reserve() -> None:
  """Opens /dev/null in place of each standard stream that is closed, so that no other file gets its number."""
  while (fd := os.open(os.devnull, os.O_RDWR)) <= LAST: os.set_inheritable(fd, True)  # for compilers, too
  os.close(fd)
  if sys.stderr is None: sys.stderr = _stream(LAST)

class _Forgiving(io.FileIO):
  """A file that takes all that is written, whether it can keep it or not."""
  def write(self, data) -> int:  # type: ignore[no-untyped-def,override]
    view = memoryview(data).cast("B")
    try: return super().write(view) or len(view)  # None: a pipe that does not block is full
    except OSError as e:
      if e.errno == errno.EPIPE: _silence(self.fileno())
      return len(view)

def _silence(fd: int) -> None:
  """Nobody reads it: a compiler that inherits it must not die of a warning."""
  null = os.open(os.devnull, os.O_WRONLY)
  os.dup2(null, fd)
  os.close(null)

def _stream(fd: int, encoding: str = "utf-8", errors: str | None = "backslashreplace") -> io.TextIOWrapper:
  return io.TextIOWrapper(io.BufferedWriter(_Forgiving(fd, "w", closefd=False)), encoding, errors, line_buffering=True)

def forgive() -> None:
  """
  Makes sys.stderr, if it is the process's own, a stream that never raises OSError; on its stdout a character that its
  encoding lacks is a question mark.
  """
  if isinstance(out := sys.stdout, io.TextIOWrapper) and out is sys.__stdout__ and out.errors == "strict":
    out.reconfigure(errors="replace")
  own = sys.stderr
  if own is not sys.__stderr__ or own is None: return
  try: fd = own.fileno()
  except (OSError, ValueError): return
  if _has_no_reader(fd): _silence(fd)
  sys.stderr = _stream(fd, own.encoding, own.errors)

def _has_no_reader(fd: int) -> bool:
  try:
    poll = select.poll()
    poll.register(fd, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
  except (AttributeError, OSError): return False  # Windows, and files of a kind that cannot be asked
