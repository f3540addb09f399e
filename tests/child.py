"""
Functions in processes of their own: what the environment switches (patches, devices) is fixed when a process starts.

  value = child.call(function, *args, NO_LANES="1").value

`function` is one of a module's own level, its arguments and value are JSON. The child imports the function's module, so
what that imports at its top is there.
"""
import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

TESTS = pathlib.Path(__file__).parent

class Result(NamedTuple):
  """What the function returned, and what the child wrote to stdout."""
  value: Any
  output: str

def environment(**env: str) -> dict[str, str]:
  """This process's, without the switches that move kernels."""
  moves = ("NO_", "MV", "DEBUG", "BEAM", "JIT", "NOOPT", "PARALLEL", "PYTHONPATH")
  plain = {"PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}", "DEV": "CPU", "PARALLEL": "0", "CACHELEVEL": "0",
           "NUM_CPU_THREADS": "2"}
  return {k: v for k, v in os.environ.items() if not k.startswith(moves)} | plain | env

def call(function: Callable, *args: Any, **env: str) -> Result:
  """function(*args) in a process with `env`. AssertionError with the end of its stderr if it fails."""
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "value.json"
    command = [sys.executable, "-c", "import child; child.main()", str(path), function.__module__, function.__name__]
    done = subprocess.run([*command, json.dumps(args)], env=environment(**env), capture_output=True, text=True)
    assert done.returncode == 0, f"{function.__name__}{args} {env}\n{done.stderr[-3000:]}"
    return Result(json.loads(path.read_text()), done.stdout)

def main() -> None:
  path, module, name, args = sys.argv[1:]
  importlib.import_module("tinygrad_llm")  # before tinygrad: it applies the patches
  value = getattr(importlib.import_module(module), name)(*json.loads(args))
  pathlib.Path(path).write_text(json.dumps(value))
