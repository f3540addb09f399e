"""collector.py: a command's modules are kept from collections; another program's objects are left alone."""
import subprocess
import sys

import pytest
from tests.support import child

FROZEN = "import atexit, gc; atexit.register(lambda: print('frozen', gc.get_freeze_count()))\n"

def frozen(folder, *command: str) -> int:
  """Objects that a process has exempted from collections at its end."""
  (folder / "sitecustomize.py").write_text(FROZEN)
  env = child.environment(PYTHONPATH=f"{folder}:{child.ROOT}")
  done = subprocess.run([sys.executable, *command], env=env, cwd=folder, capture_output=True, text=True,
                        stdin=subprocess.DEVNULL)
  return int(done.stdout.split()[-1])

@pytest.mark.parametrize("command", [("-mtinygrad_llm.kernels", "--help"), ("tinygrad-llm", "--list")], ids=str)
def test_modules_of_a_command_are_kept(tmp_path, command):
  (tmp_path / "tinygrad-llm").write_text("from tinygrad_llm.run import main\nmain()\n")
  assert frozen(tmp_path, *command) > 10_000

@pytest.mark.parametrize("command", [("program.py", "-m", "tinygrad_llm.run"),
                                     ("-m", "package.program", "tinygrad_llm.run")], ids=str)
def test_objects_of_other_programs_are_not(tmp_path, command):
  (tmp_path / "package").mkdir()
  for path in (tmp_path / "package/__init__.py", tmp_path / "package/program.py", tmp_path / "program.py"):
    path.write_text("import tinygrad_llm\n")
  assert frozen(tmp_path, *command) == 0
