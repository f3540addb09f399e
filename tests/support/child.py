"""
Functions, and code, in processes of their own: what the environment switches (patches, devices) is fixed when a process
starts.

  value = child.call(function, *args, NO_LANES="1").value
  stdout = child.run("print(1)", NO_LANES="1").stdout

`function` is one of a module's own level, its arguments and value are JSON. The child imports the function's module, so
what that imports at its top is there.
"""
import gc
import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]

class Result(NamedTuple):
  """What the function returned, and what the child wrote to stdout."""
  value: Any
  output: str

def environment(**env: str) -> dict[str, str]:
  """This process's, without the switches that move kernels. Kernels are kept for the run of the tests."""
  moves = ("NO_", "MV", "DEBUG", "BEAM", "JIT", "NOOPT", "PARALLEL", "PYTHONPATH")
  plain = {"PYTHONPATH": str(ROOT), "DEV": "CPU", "PARALLEL": "0", "NUM_CPU_THREADS": "2"}
  return {k: v for k, v in os.environ.items() if not k.startswith(moves)} | plain | env

def call(function: Callable, *args: Any, **env: str) -> Result:
  """function(*args) in a process with `env`. AssertionError with the end of its stderr if it fails."""
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "value.json"
    command = [sys.executable, "-c", "from tests.support import child; child.main()", str(path), function.__module__]
    done = subprocess.run([*command, function.__name__, json.dumps(args)], env=environment(**env), capture_output=True,
                          text=True)
    assert done.returncode == 0, f"{function.__name__}{args} {env}\n{done.stderr[-3000:]}"
    return Result(json.loads(path.read_text()), done.stdout)

def run(code: str, cwd: pathlib.Path = ROOT, check: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
  """Code in a process that finds the package in `cwd`, with no switches but `env`."""
  kept = {k: v for k, v in os.environ.items() if not k.startswith("NO_") and k != "PYTHONPATH"}
  done = subprocess.run([sys.executable, "-c", code], cwd=cwd, env=kept | env, capture_output=True, text=True,
                        timeout=600)
  assert not check or done.returncode == 0, done.stderr[-2000:]
  return done

def main() -> None:
  path, module, name, args = sys.argv[1:]
  gc.set_threshold(100_000, 20, 100)  # as in session.py
  importlib.import_module("tinygrad_llm")  # before tinygrad: it applies the patches
  importlib.import_module("tinygrad_llm.patches.cache.schedules").FILES = pathlib.Path("none")  # as in conftest.py
  value = getattr(importlib.import_module(module), name)(*json.loads(args))
  pathlib.Path(path).write_text(json.dumps(value))
