"""tests/tools/moved_seams.py: reports the seams that changed in another tinygrad."""
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import tinygrad

from tests.support.child import ROOT
from tests.tools import moved_seams

HERE = pathlib.Path(tinygrad.__file__).parent

@pytest.fixture
def other(tmp_path: pathlib.Path) -> pathlib.Path:
  """A copy of the installed tinygrad's Python files."""
  shutil.copytree(HERE, tmp_path / "tinygrad", ignore=lambda folder, names: {
    n for n in names if n in ("autogen", "__pycache__") or "." in n and not n.endswith(".py")})
  return tmp_path

def edit(folder: pathlib.Path, file: str, old: str, new: str) -> None:
  text = (path := folder / "tinygrad" / file).read_text()
  assert old in text
  path.write_text(text.replace(old, new))

def test_installed_tinygrad_has_no_moved_seams(other):
  lines, same = moved_seams.report(other)
  assert (lines, same) == ([], len(moved_seams.seams()))

def test_reports_changed_and_missing_seams(other):
  edit(other, "codegen/__init__.py", "def full_rewrite_to_sink(", "def full_rewrite_to_sink(later:int=0, *, ")
  edit(other, "schedule/indexing.py", "def _apply_reshape(", "def _apply_reshapes(")
  (other / "tinygrad" / "later.py").write_text("def _apply_reshape(): pass\n")
  lines, same = moved_seams.report(other)
  assert same == len(moved_seams.seams()) - 2
  assert lines[0::2] == ["tinygrad.codegen", "tinygrad.schedule.indexing"]
  assert re.fullmatch("  full_rewrite_to_sink: another source; .*hooks.*", lines[1])
  assert lines[3] == "  _apply_reshape: gone, perhaps to tinygrad.later; reshapes"

def test_reports_missing_module(other):
  (other / "tinygrad" / "schedule" / "indexing.py").unlink()
  lines, _ = moved_seams.report(other)
  assert lines[0] == "tinygrad.schedule.indexing"
  assert all(": gone; " in line for line in lines[1:])
  assert "  _apply_reshape: gone; reshapes" in lines

def test_command_rejects_folder_without_tinygrad(tmp_path):
  command = [sys.executable, str(ROOT / "tests" / "tools" / "moved_seams.py"), str(tmp_path)]
  done = subprocess.run(command, capture_output=True, text=True)
  assert (done.returncode, done.stderr.count("\n")) == (2, 1)
  assert done.stderr.startswith(f"error: {tmp_path}: no tinygrad in it")
