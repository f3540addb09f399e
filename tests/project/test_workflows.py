"""The GitHub workflows: valid by the schema, with least rights, and their commands exist."""
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
each = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)

def test_workflows_are_found(): assert {path.stem for path in WORKFLOWS} >= {"linux", "macos"}

@pytest.mark.skipif(importlib.util.find_spec("check_jsonschema") is None, reason="check-jsonschema is not installed")
def test_workflows_match_github_schema(tmp_path):
  """The workflows are valid by the schema that ships with the package: nothing is fetched."""
  def check(*paths: pathlib.Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    return subprocess.run([*command, *map(str, paths)], capture_output=True, text=True)
  assert (done := check(*WORKFLOWS)).returncode == 0, done.stdout + done.stderr
  wrong = tmp_path / "wrong.yml"
  wrong.write_text(WORKFLOWS[0].read_text().replace("runs-on", "run-on"))
  assert check(wrong).returncode != 0

@each
def test_workflow_permissions_timeouts_and_concurrency(path):
  text = path.read_text()
  assert re.search(r"^permissions:\n  contents: read\n(?! )", text, re.M) and "write" not in text
  assert re.search(r"^concurrency:\n  group: .*github\.ref.*\n  cancel-in-progress: true\n", text, re.M)
  assert text.count("timeout-minutes:") == text.count("runs-on:") >= 1
  assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", used) for used in re.findall(r"uses: (\S+)", text))

@each
def test_called_targets_and_files_exist(path):
  text, targets = path.read_text(), set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
  made, files = set(re.findall(r"\bmake ([a-z-]+)", text)), set(re.findall(r"[\w./-]+\.py\b|\.ci/\w+", text))
  assert made | files and made <= targets
  assert all((ROOT / file).is_file() for file in files)
  assert all(os.access(ROOT / file, os.X_OK) for file in files if file.startswith(".ci"))

def test_passed_options_exist():
  """Both commands accept the options that macos.yml passes."""
  text = (ROOT / ".github" / "workflows" / "macos.yml").read_text()
  given = [set(re.findall(r"(?:^|\s)(--?[a-z]\w*)", arguments)) for arguments in re.findall(r'ARGS="([^"]*)"', text)]
  assert len(given) == 2
  for script, options in zip(("gpu_check.py", "peers.py"), given):
    done = subprocess.run([sys.executable, str(ROOT / "bench" / script), "--help"], capture_output=True, text=True,
                          env={**os.environ, "DEV": "CPU"})
    assert done.returncode == 0 and options and all(re.search(rf"{option}\b", done.stdout) for option in options)
