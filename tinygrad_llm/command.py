"""Shared by all commands: one-line errors and exit codes."""
from __future__ import annotations
import argparse, errno, os, pathlib, subprocess, sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn
from tinygrad_llm.errors import InputError, is_shortage
from tinygrad_llm.patches.pipeline import wrong_switch
from tinygrad_llm.process import standard_streams
from tinygrad_llm.process.leave import leave

class Parser(argparse.ArgumentParser):
  """Bad arguments end the command with one line and exit code 2."""
  def error(self, message: str) -> NoReturn: raise InputError(f"{self.prog}: {message}; see --help")

def add_prompt_cache(parser: argparse.ArgumentParser) -> None:
  """Adds the options that keep prefixes on disk."""
  parser.add_argument("--prompt-cache", metavar="DIR", help="a folder that keeps what was read and answered, also for "
                      "later runs: a prompt that begins like an earlier one reads only the rest")
  parser.add_argument("--prompt-cache-bytes", type=int, metavar="N", help="size of that folder at most (default 4 GiB)")

def prompt_cache(args: argparse.Namespace) -> dict[str, Any]:
  """The arguments of load() that these options give."""
  given = {name: getattr(args, name) for name in ("prompt_cache", "prompt_cache_bytes")}
  return {name: value for name, value in given.items() if value is not None}

def check_writable(option: str, path: pathlib.Path) -> None:
  """InputError at once if a file could not be written, which would otherwise fail after minutes of work."""
  if path.is_dir() or not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
    raise InputError(f"{option} {path}: it cannot be written; give a file in a folder that exists")

LIMITS = {  # system errors caused by a limit: what is limited, and how a shell raises it
  errno.EAGAIN: ("processes and threads", "ulimit -u"), errno.EMFILE: ("open files", "ulimit -n"),
  errno.ENFILE: ("open files", "the system's limit, fs.file-max"), errno.EFBIG: ("size of a file", "ulimit -f")}

def _line(e: Exception) -> str:
  """The message for an exception that is no bug in the code."""
  from tinygrad_llm.device.compiler import compiler_failed
  if isinstance(e, subprocess.CalledProcessError): return compiler_failed(e)
  if is_shortage(e):
    return f"memory: there is not enough ({e}); use a smaller --max-context or model, or raise ulimit -v and -u"
  if isinstance(e, OSError):
    written = hasattr(e, "characters_written")  # EAGAIN from a non-blocking stream is no limit
    if (limit := LIMITS.get(e.errno or 0)) is not None and not written:
      return f"{limit[0]}: {e.strerror}; raise {limit[1]}"
    nameless = "TMPDIR" if e.errno == errno.ENOENT else "standard input or output"
    name = next((str(x) for x in (e.filename, e.filename2) if x is not None), nameless)
    return f"{name}: {e.strerror or e}; check the disk and the permissions"
  return str(e)

def check_switches() -> None:
  """InputError for an environment variable NO_<NAME> whose name is nearly a pass's name."""
  if wrong := wrong_switch(): raise InputError(wrong)

def guarded(main: Callable[[], int | None]) -> None:
  """
  Runs a command; its exit code is what `main` returns.

  InputError: one line on stderr and exit code 2 (DEBUG=1 shows the traceback). Ctrl-C: exit code 130, or death by the
  signal, which a shell shows as 130, too. A stderr that cannot be written to changes none of this.
  """
  standard_streams.forgive()
  try:
    check_switches()
    code = main()
    if sys.stdout is not None: sys.stdout.flush()
    if code: sys.exit(code)
  except KeyboardInterrupt: sys.exit(130)
  except BrokenPipeError:
    _discard_output()
    sys.exit(141)
  except (InputError, OSError, MemoryError, RuntimeError, subprocess.CalledProcessError) as e:
    from tinygrad_llm.device.device_errors import device_error
    e = device_error(e) or e
    if isinstance(e, RuntimeError) and not is_shortage(e): raise
    if os.environ.get("DEBUG", "0") not in ("", "0"): raise
    if isinstance(e, OSError): _discard_output()
    print(f"error: {' '.join(_line(e).split())}", file=sys.stderr)
    sys.exit(2)
  leave()

def _discard_output() -> None:
  """Sends further output to os.devnull, so that the interpreter's last flush raises no error."""
  if sys.stdout is None: return
  with suppress(OSError): os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
