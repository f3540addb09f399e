"""
Standard streams that are closed, full, or without a reader: a message that cannot be shown must not stop an answer.

If a process starts with a closed stream, the next file that it opens gets the stream's number. That file may be a model
or a socket, and a C library or a compiler then writes its messages there. Python's `print(.., file=None)` writes to
stdout.
"""
from __future__ import annotations
import errno, io, os, select, sys

LAST = 2  # stderr's file descriptor

def reserve() -> None:
  """Opens /dev/null in place of each closed standard stream, so that no other file gets its descriptor."""
  while (fd := os.open(os.devnull, os.O_RDWR)) <= LAST: os.set_inheritable(fd, True)  # compilers inherit it
  os.close(fd)
  if sys.stderr is None: sys.stderr = _stream(LAST)

class _Forgiving(io.FileIO):
  """A file that accepts every write, and drops the data if it cannot be written."""
  def write(self, data) -> int:  # type: ignore[no-untyped-def,override]
    view = memoryview(data).cast("B")
    try: return super().write(view) or len(view)  # None: a non-blocking pipe is full
    except OSError as e:
      if e.errno == errno.EPIPE: _silence(self.fileno())
      return len(view)

def _silence(fd: int) -> None:
  """Redirects a stream without a reader to /dev/null: a compiler that inherits it must not die of a warning."""
  null = os.open(os.devnull, os.O_WRONLY)
  os.dup2(null, fd)
  os.close(null)

def _stream(fd: int, encoding: str = "utf-8", errors: str | None = "backslashreplace") -> io.TextIOWrapper:
  return io.TextIOWrapper(io.BufferedWriter(_Forgiving(fd, "w", closefd=False)), encoding, errors, line_buffering=True)

def forgive() -> None:
  """
  Makes sys.stderr, if it is the process's own, a stream that never raises OSError.

  On the process's own stdout, a character that the encoding lacks becomes a question mark.
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
  except (AttributeError, OSError): return False  # Windows, and files that cannot be polled
