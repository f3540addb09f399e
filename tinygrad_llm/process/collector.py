"""Python's garbage collector: paused while many long-lived objects are created, and kept from a command's modules."""
from __future__ import annotations
import gc, pathlib, sys
from collections.abc import Iterator
from contextlib import contextmanager

@contextmanager
def without_collector() -> Iterator[None]:
  """Inside, the collector is off: imports and vocabularies create hundreds of thousands of objects that all stay."""
  enabled = gc.isenabled()
  gc.disable()
  try: yield
  finally:
    if enabled: gc.enable()

def keep_modules() -> None:
  """
  In a command's process, exempts the objects that exist from all collections: nearly all are modules, which stay.

  Else the next collections, and the interpreter's shutdown, walk over all of them. The objects of a program
  that imports this package are that program's own, and the function does nothing.
  """
  if _runs_command(): gc.freeze()

def _runs_command() -> bool:
  """Whether `python -m` of this package's module, or a command's script, imports this package."""
  program = getattr(sys, "argv", None) or [""]
  if program[0] == "-m": return sys.orig_argv[-len(program)].removeprefix("-m").startswith("tinygrad_llm.")
  return pathlib.Path(program[0]).name.startswith("tinygrad-llm")
