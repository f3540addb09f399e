"""leave.py: a command's process ends at once, and loses nothing that others rely on."""
import os
import pathlib
import subprocess
import sys

import pytest
from tests.support.child import ROOT

# runs before the program: an exit handler, a thread, and an object that only the interpreter's own shutdown destroys
BEFORE = """
import atexit, builtins, os, threading, time
class Last:
  def __init__(self): self.write = os.write
  def __del__(self): self.write(1, b"taken apart\\n")
builtins.last = Last()
atexit.register(print, "exit handler")
def wait(): time.sleep(1), print("waited")
if os.environ.get("THREAD"): threading.Thread(target=wait).start()
"""

def lines(tmp_path: pathlib.Path, *command: str, **env: str) -> tuple[int, list[str]]:
  (tmp_path / "sitecustomize.py").write_text(BEFORE)
  env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])} | env
  env.pop("PYTHONINSPECT", None)
  done = subprocess.run([sys.executable, *command], env=env, cwd=tmp_path, capture_output=True, text=True,
                        stdin=subprocess.DEVNULL)
  found = done.stdout.splitlines()
  return done.returncode, [line for line in found if line in ("exit handler", "taken apart", "waited", "after") or
                           "function calls" in line or line.startswith("stories")]

SCRIPT = "import sys\nfrom tinygrad_llm.run import main\nsys.argv[1:] = ['--list']\n"

def test_exit_skips_interpreter_shutdown(tmp_path):
  """With -m and as an installed command, it prints everything, runs exit handlers, and skips the shutdown."""
  assert lines(tmp_path, "-m", "tinygrad_llm.run", "--list") == (0, ["exit handler"])
  (tmp_path / "tinygrad-llm").write_text(SCRIPT + "sys.exit(main())")
  assert lines(tmp_path, "tinygrad-llm") == (0, ["exit handler"])

@pytest.mark.parametrize(("command", "more"), [
  (("-c", SCRIPT + "main(); print('after')"), ["after"]),       # a program may go on after a command
  (("-c", SCRIPT + "def f(): main()\nf(); print('after')"), ["after"]),
  (("-m", "cProfile", "-m", "tinygrad_llm.run", "--list"), ["profile"]),
  (("-i", "-m", "tinygrad_llm.run", "--list"), [])], ids=["-c", "function", "cProfile", "-i"])
def test_normal_shutdown_where_needed(tmp_path, command, more):
  code, found = lines(tmp_path, *command)
  assert code == 0 and len(found) == len(more) + 2 and found[-2:] == ["exit handler", "taken apart"]

def test_exit_waits_for_threads(tmp_path):
  found = lines(tmp_path, "-m", "tinygrad_llm.run", "--list", THREAD="1")
  assert found == (0, ["waited", "exit handler", "taken apart"])

def test_exit_code_of_errors(tmp_path):
  assert lines(tmp_path, "-m", "tinygrad_llm.run", "--count", "0")[0] == 2
