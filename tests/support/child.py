"""
Runs functions and code in child processes: environment switches (patches, devices) are read once, at process start.

  value = child.call(function, *args, NO_LANES="1").value
  stdout = child.run("print(1)", NO_LANES="1").stdout

`function` is a module-level function with JSON arguments and a JSON return value. The child imports its module. On
Linux a call is a fork of a process that has imported it before with the same `env` (warm.py).
"""
import functools
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

from tests.support import warm

ROOT = pathlib.Path(__file__).resolve().parents[2]

class Result(NamedTuple):
  """The function's return value and the child's stdout."""
  value: Any
  output: str

def environment(**env: str) -> dict[str, str]:
  """This process's environment plus `env`, without switches that change kernels; the kernel cache is shared."""
  moves = ("NO_", "MV", "DEBUG", "BEAM", "JIT", "NOOPT", "PARALLEL", "PYTHONPATH")
  plain = {"PYTHONPATH": str(ROOT), "DEV": "CPU", "PARALLEL": "0", "NUM_CPU_THREADS": "2"}
  return {k: v for k, v in os.environ.items() if not k.startswith(moves) and k != "PYTEST_CURRENT_TEST"} | plain | env

START = environment()

def call(function: Callable, *args: Any, **env: str) -> Result:
  """Runs function(*args) in a child process with `env`. AssertionError with the end of its stderr if it fails."""
  given, module, name = environment(**env), function.__module__, function.__name__
  with tempfile.TemporaryDirectory() as folder:
    value, out, err = (pathlib.Path(folder, part) for part in ("value.json", "stdout", "stderr"))
    if sys.platform == "linux" and nursery().fits(given):
      status = nursery().call(module, name, json.dumps(args), str(value), str(out), str(err), given)
    else:
      command = [sys.executable, "-c", "from tests.support import child; child.main()", str(value), module, name]
      with open(out, "w") as stdout, open(err, "w") as stderr:
        status = subprocess.run([*command, json.dumps(args)], env=given, stdout=stdout, stderr=stderr).returncode
    assert status == 0, f"{name}{args} {env}\n{err.read_text()[-3000:]}"
    return Result(json.loads(value.read_text()), out.read_text())

@functools.cache
def nursery() -> warm.Nursery: return warm.Nursery(START)

def run(code: str, cwd: pathlib.Path = ROOT, check: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
  """Runs code in a child process in folder `cwd`, with `env` and without this process's NO_ switches."""
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
