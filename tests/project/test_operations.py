"""The systemd unit of docs/serve.md, and the Dockerfile: operators copy them."""
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest
from tinygrad_llm import serve

ROOT = pathlib.Path(__file__).parents[2]
PAGE, DOCKERFILE = (ROOT / "docs" / "serve.md").read_text(), (ROOT / "Dockerfile").read_text()
UNIT = re.findall(r"^```ini\n(\[Unit\].*?)^```", PAGE, re.M | re.S)

def parsed(words: list[str]) -> None:
  """The words after a module's name are options of the server."""
  serve.check(serve._parser().parse_args(words))

def test_unit_starts_the_server():
  command = shlex.split(re.findall(r"^ExecStart=(.*)", UNIT[0], re.M)[0])
  assert command[1:3] == ["-m", "tinygrad_llm.serve"]
  parsed(command[3:])

@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_systemd_knows_the_unit(tmp_path):
  """All but the path of Python, which is not on this machine."""
  def verified(text: str) -> str:
    (path := tmp_path / "llm.service").write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True)
    return "" if done.returncode == 0 and "llm.service:" not in done.stderr else done.stderr or "failed"
  unit = re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", UNIT[0], flags=re.M)
  assert verified(unit) == ""
  assert "Restrat" in verified(unit.replace("Restart=", "Restrat="))

def test_image_starts_the_server():
  command = re.findall(r'"([^"]*)"', re.findall(r"^ENTRYPOINT (\[.*\])", DOCKERFILE, re.M)[0])
  assert command[:3] == ["python", "-m", "tinygrad_llm.serve"]
  parsed(command[3:])
  port, = re.findall(r"^EXPOSE (\d+)", DOCKERFILE, re.M)
  assert f"--port {port}" in " ".join(command) and f"127.0.0.1:{port}/health" in DOCKERFILE
  user = re.findall(r"^USER (\w+)", DOCKERFILE, re.M)
  assert len(user) == 1 and f" {user[0]} " in f" {DOCKERFILE.split('USER ')[0]} "
  assert DOCKERFILE.index("RUN pip") < DOCKERFILE.index("USER ") < DOCKERFILE.index("ENTRYPOINT")

def test_image_has_the_extras_and_the_package():
  extras = re.findall(r'source\[([\w,]+)\]"', DOCKERFILE)[0].split(",")
  assert all(f'"{extra}": ' in (ROOT / "setup.py").read_text() for extra in extras)
  kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
  assert kept >= {"setup.py", "pyproject.toml", "tinygrad_llm", "patches"}
  assert all((ROOT / name).exists() for name in kept)

def test_documented_mounts_are_the_image_s():
  mounts = set(re.findall(r"-v \S+?:(/\w+)", PAGE))
  assert mounts == set(re.findall(r'"(/\w+)"', re.findall(r"^VOLUME (.*)", DOCKERFILE, re.M)[0])) and len(mounts) == 2
