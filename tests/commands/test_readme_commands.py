"""Each command of the README and of docs/ runs as it stands, with neither DEV nor a clang on PATH."""
import contextlib
import importlib.util
import os
import pathlib
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator

import httpx
import pytest

from tests.support.extended import sample

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "cli.md", *sorted((ROOT / "docs").rglob("*.md"))]

def commands(page: pathlib.Path) -> list[str]:
  """
  The commands in a page's code blocks that run a module of ours, whole: a line may end with a backslash.

  `..` stands for what a reader chooses, a shell's `<(` is more than one command, and some show an error.
  """
  blocks = re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.M | re.S)
  lines = "\n".join(blocks).replace("\\\n", "").splitlines()
  return [line.removeprefix("$ ") for line, then in zip(lines, [*lines[1:], ""])
          if ".venv/bin/python -m tinygrad_llm" in line and not any(x in line for x in ("..", "<("))
          and not then.startswith("error: ")]

COMMANDS = list(dict.fromkeys(line for page in PAGES for line in commands(page)))
FIRST = {line for page in PAGES[:2] for line in commands(page)}  # `make extended` tries the others

# {size in the README: a smaller one for a tiny model on a slow machine}; everything else stays
SMALLER = {"512": "16", "128": "8", "0,2048": "0,40", "10m": "3s"}

@pytest.fixture(scope="module")
def folder(tmp_path_factory, model_file) -> pathlib.Path:
  """A working folder with a file for every model that the README names, and an empty folder for PATH."""
  folder = tmp_path_factory.mktemp("readme")
  (folder / "empty").mkdir()
  model = model_file(types="F16", layers=1, dim=256, ffn=256, vocab=320)  # lowers its kernels in half the time
  (folder / "tests" / "data").mkdir(parents=True)
  (folder / "tests" / "data" / "prose_and_code.txt").write_text("Once upon a time there was a fox. " * 99)
  (folder / "text.txt").write_text("Once upon a time there was a fox. " * 40)
  for name in re.findall(r"(?:--model|-m|quantize) ([\w.-]+\.gguf)", "\n".join(COMMANDS)):
    if not (folder / name).exists(): (folder / name).symlink_to(model)
  return folder

def bare(folder: pathlib.Path) -> dict[str, str]:
  env = {k: v for k, v in os.environ.items() if k not in ("DEV", "CC") and not k.startswith("NO_")}
  return env | {"PATH": str(folder / "empty"), "PYTHONPATH": str(ROOT), "CACHEDB": str(folder / "cache.db"),
                "PARALLEL": "0"}

def test_commands_are_found(): assert len(COMMANDS) >= 9

@pytest.mark.parametrize("line", sample(COMMANDS, FIRST))
def test_command_runs(line: str, folder: pathlib.Path):
  command, _, _ = line.partition("  #")
  given = "Once upon a time\n" if " | " in command or "--prompt" not in command else ""
  words = shlex.split(command.rpartition(" | ")[2])
  variables = dict(word.split("=", 1) for word in words[:words.index(".venv/bin/python")])
  args = [SMALLER.get(word, word) for word in words[words.index(".venv/bin/python") + 1:]]
  if "-m" in args[2:]: args = [arg.removesuffix(":Q4_K") for arg in args]  # this model's weights are F16
  if "tinygrad_llm.run" in args and "--benchmark" not in args: args += ["--count", "4"]
  env = bare(folder) | variables
  if "tinygrad_llm.replicas" in args and importlib.util.find_spec("ray") is None: pytest.skip("ray is not installed")
  if {"tinygrad_llm.serve", "tinygrad_llm.replicas"} & {*args}: return serves(args, folder, env)
  if "--server" in args:
    with server(["-m", "tinygrad_llm.serve", "-m", "model.gguf"], folder, env) as url:
      return answers([url if arg.startswith("http:") else arg for arg in args], folder, env, given)
  answers(args, folder, env, given)

def answers(args: list[str], folder: pathlib.Path, env: dict[str, str], given: str) -> None:
  done = subprocess.run([sys.executable, *args], cwd=folder, env=env, input=given, text=True, capture_output=True)
  assert done.returncode == 0, done.stderr[-2000:]
  assert done.stdout.strip() or "tinygrad_llm.quantize" in args

@contextlib.contextmanager
def server(args: list[str], folder: pathlib.Path, env: dict[str, str]) -> Iterator[str]:
  """A server's address, once it is ready. It must end by a signal, with exit code 0."""
  command = [sys.executable, *args, "--port", "0"]
  with subprocess.Popen(command, cwd=folder, env=env, stderr=subprocess.PIPE, text=True) as process:
    lines = list[str]()
    try:
      for line in process.stderr:
        lines.append(line)
        if found := re.search(r" at (http://\S+) \(", line): break
      else: raise AssertionError("".join(lines))
      threading.Thread(target=process.stderr.read, daemon=True).start()
      yield found[1]
    finally: process.terminate()
  assert process.returncode == 0

def serves(args: list[str], folder: pathlib.Path, env: dict[str, str]) -> None:
  with server(args, folder, env) as url:
    answer = httpx.post(f"{url}/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}],
                                                           "max_tokens": 2}, timeout=60)
    assert answer.json()["usage"]["completion_tokens"] == 2

def test_every_make_target_is_run_in_ci():
  """Every make target is run by .ci/run or by a workflow."""
  makefile, workflows = (ROOT / "Makefile").read_text(), (ROOT / ".github" / "workflows").glob("*.yml")
  calls = "\n".join(path.read_text() for path in (*workflows, ROOT / ".ci" / "run"))
  made = {word for words in re.findall(r"\bmake ((?:[a-z-]+ ?)+)", calls) for word in words.split()}
  assert set(re.findall(r"^([a-z][a-z-]*):", makefile, re.M)) <= made

def test_python_example_without_dev(folder):
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
