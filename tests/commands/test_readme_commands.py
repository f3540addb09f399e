"""Each command of the README runs as written, in an environment with neither DEV nor a clang on PATH."""
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
BLOCKS = re.findall(r"^```\w*\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if ".venv/bin/python" in line and "..." not in line]
# {size in the README: a smaller one for a tiny model on a slow machine}; everything else stays
SMALLER = {"512": "16", "128": "8", "0,2048": "0,40", "10m": "3s"}

@pytest.fixture(scope="module")
def folder(tmp_path_factory, model_file) -> pathlib.Path:
  """A working folder with a file for every model that the README names, and an empty folder for PATH."""
  folder = tmp_path_factory.mktemp("readme")
  (folder / "empty").mkdir()
  model = model_file(types="F16", layers=1, dim=256, ffn=256, vocab=320)  # lowers its kernels in half the time
  for name in re.findall(r"(?:--model|kernels -m|bench -m|tune -m|quantize) (\S+)", "\n".join(COMMANDS)):
    if not (folder / name).exists(): (folder / name).symlink_to(model)
  return folder

def bare(folder: pathlib.Path) -> dict[str, str]:
  env = {k: v for k, v in os.environ.items() if k not in ("DEV", "CC") and not k.startswith("NO_")}
  return env | {"PATH": str(folder / "empty"), "PYTHONPATH": str(ROOT), "CACHEDB": str(folder / "cache.db"),
                "PARALLEL": "0"}

def test_there_are_commands(): assert len(COMMANDS) >= 9

@pytest.mark.parametrize("line", COMMANDS)
def test_command(line: str, folder: pathlib.Path):
  command, _, _ = line.partition("  #")
  given = "Once upon a time\n" if " | " in command or "--prompt" not in command else ""
  words = shlex.split(command.rpartition(" | ")[2])
  variables = dict(word.split("=", 1) for word in words[:words.index(".venv/bin/python")])
  args = [SMALLER.get(word, word) for word in words[words.index(".venv/bin/python") + 1:]]
  if "tinygrad_llm.run" in args and "--benchmark" not in args: args += ["--count", "4"]
  done = subprocess.run([sys.executable, *args], cwd=folder, env=bare(folder) | variables, input=given, text=True,
                        capture_output=True)
  assert done.returncode == 0, done.stderr[-2000:]
  assert done.stdout.strip() or "tinygrad_llm.quantize" in args

def test_every_target_is_tried_somewhere():
  """Every make target is run by .ci/run or by a workflow."""
  makefile, workflows = (ROOT / "Makefile").read_text(), (ROOT / ".github" / "workflows").glob("*.yml")
  calls = "\n".join(path.read_text() for path in (*workflows, ROOT / ".ci" / "run"))
  made = {word for words in re.findall(r"\bmake ((?:[a-z-]+ ?)+)", calls) for word in words.split()}
  assert set(re.findall(r"^([a-z][a-z-]*):", makefile, re.M)) <= made

def test_the_python_api_without_dev(folder):
  """The first lines of the README's Python work, and the message is right if there is no compiler at all."""
  code = "import tinygrad_llm; print(tinygrad_llm.load('model.gguf', max_context=64).device)"
  done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=bare(folder), capture_output=True, text=True)
  assert done.returncode == 0, done.stderr[-2000:]
  hidden = "import runpy, sys; sys.modules['ziglang'] = None; sys.argv[1:] = ['--prompt', 'x']"
  code = f"{hidden}; runpy.run_module('tinygrad_llm.run', run_name='__main__')"
  done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=bare(folder), capture_output=True,
                        text=True)
  assert (done.returncode, done.stdout) == (2, "")
  assert done.stderr == "error: CC: no clang on PATH and no ziglang wheel; install clang, or run: pip install ziglang\n"
