"""
Programs that others wrote, against this server: whether each gets its answers (make clients).

  python tests/tools/clients.py FOLDER [NAME ..]

FOLDER has the programs, as the Makefile builds it: python, aider (two environments) and node_modules. The server runs
the bundled model; for aider, whose prompts are longer, it runs SmolLM2-135M, a Python package. A program's requests
must all be answered without an error, but for wrong ones that its script names. The exit code is 1 if one fails.
"""
from __future__ import annotations
import argparse
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.trained_models import fetch

SCRIPTS = ROOT / "tests" / "clients"

@dataclass(frozen=True)
class Client:
  """A program. interpreter: a path in FOLDER, "here" for this one. wrong: its requests that the server must refuse."""
  script: str
  interpreter: str
  more: tuple[str, ...] = ()
  wrong: tuple[int, ...] = ()
  model: str | None = None

CLIENTS = {
  "openai": Client("openai_python.py", "here", wrong=(400, 404)),
  "openai-older": Client("openai_python.py", "python/bin/python", wrong=(400, 404)),
  "node": Client("openai_node.cjs", "node", wrong=(400, 404)),
  "llm": Client("llm_program.py", "python/bin/python"),
  "langchain": Client("langchain_chat.py", "python/bin/python"),
  "instructor": Client("instructor_modes.py", "python/bin/python"),
  "lm-eval": Client("lm_eval_score.py", "here", more=("python/bin/python",)),
  "aider": Client("aider_edit.py", "aider/bin/python", model="SmolLM2-135M")}

@dataclass
class Running:
  """A server. statuses: of all its answers so far."""
  url: str
  process: subprocess.Popen[str]
  statuses: list[int] = field(default_factory=list)

  def listen(self) -> None:
    assert self.process.stderr is not None
    for line in self.process.stderr:
      if line.startswith("{"): self.statuses.append(json.loads(line)["status"])
      else: print(line, end="", file=sys.stderr)

@contextlib.contextmanager
def server(model: str | None) -> Iterator[Running]:
  """The server in a process of its own, once it is ready."""
  command = [sys.executable, "-m", "tinygrad_llm.serve", "--port", "0", "--log-format", "json"]
  if model is not None: command += ["--model", str(fetch(model))]
  with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
    try:
      assert process.stderr is not None
      for line in process.stderr:
        if found := re.search(r" at (http://\S+) \(", line): break
      else: raise RuntimeError("the server did not start; python -m tinygrad_llm.serve says why")
      running = Running(found[1], process)
      threading.Thread(target=running.listen, daemon=True).start()
      yield running
    finally: process.terminate()

def failure(client: Client, folder: pathlib.Path, at: Running) -> str:
  """Runs a program's script; why it failed, or else nothing."""
  interpreter = {"here": sys.executable, "node": "node"}.get(client.interpreter, str(folder / client.interpreter))
  env = os.environ | {"NODE_PATH": str(folder / "node_modules")}
  if client.interpreter == "here": env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])
  else: env.pop("PYTHONPATH", None)
  at.statuses.clear()
  with tempfile.TemporaryDirectory() as work:
    done = subprocess.run([interpreter, str(SCRIPTS / client.script), at.url, *(str(folder / x) for x in client.more)],
                          cwd=work, env=env, text=True, capture_output=True)
  if done.returncode or not done.stdout.strip():
    return f"exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
  print(" ", done.stdout.strip().splitlines()[-1], flush=True)
  bad = sorted({status for status in at.statuses if status >= 400} - {*client.wrong})
  if not at.statuses: return "it asked nothing"
  return f"the server answered {', '.join(map(str, bad))}" if bad else ""

def main() -> int:
  parser = argparse.ArgumentParser(prog="python tests/tools/clients.py", description=__doc__.strip().splitlines()[0])
  parser.add_argument("folder", type=pathlib.Path)
  parser.add_argument("names", nargs="*", help=f"of {', '.join(CLIENTS)} (default: all)")
  args = parser.parse_args()
  if unknown := {*args.names} - {*CLIENTS}: parser.error(f"{', '.join(sorted(unknown))}: no client's name")
  names, failed, folder = args.names or [*CLIENTS], 0, args.folder.resolve()
  for model in dict.fromkeys(CLIENTS[name].model for name in names):
    with server(model) as running:
      for name in (name for name in names if CLIENTS[name].model == model):
        begun = time.perf_counter()
        print(f"{name} ..", flush=True)
        why = failure(CLIENTS[name], folder, running)
        failed += bool(why)
        print(f"  {f'FAILED: {why}' if why else 'ok'}, {len(running.statuses)} requests, "
              f"{time.perf_counter() - begun:.1f} s", flush=True)
  return 1 if failed else 0

if __name__ == "__main__": sys.exit(main())
