"""What all commands share: one-line errors and exit codes."""
from __future__ import annotations
import argparse, os, sys
from collections.abc import Callable
from typing import NoReturn
from tinygrad_llm.errors import InputError

class Parser(argparse.ArgumentParser):
  """Bad arguments end in one line and exit code 2."""
  def error(self, message: str) -> NoReturn: raise InputError(f"{self.prog}: {message}; see --help")

def guarded(main: Callable[[], None]) -> None:
  """Runs a command. InputError: one line on stderr and exit code 2 (DEBUG=1 shows the traceback). Ctrl-C: 130."""
  try: main()
  except InputError as e:
    if os.environ.get("DEBUG", "0") not in ("", "0"): raise
    print(f"error: {' '.join(str(e).split())}", file=sys.stderr)
    sys.exit(2)
  except KeyboardInterrupt: sys.exit(130)
  except BrokenPipeError:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # keeps the interpreter's last flush quiet
    sys.exit(141)
