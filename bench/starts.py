"""
How long a start takes: whole processes of `run`, with empty caches and again, for an answer of 12 tokens.

  python bench/starts.py [-m MODEL ..] [-n TOKENS] [-r N]

imports: a process that only imports what `run` does. compile: of the step that decodes, after the first token. left:
what load_s + ttft_s + compile_s + (n - 1) / decode_tok_s leave of the wall time after imports. cpu: processor seconds
of a process and its forks. idle: core-seconds that it left, wall * cores - cpu, of all cores that it may use. Warm
figures are medians of N, cold ones are of one process. No clang is on the PATH: the one of the ziglang wheel is used.
All goes to bench/results/starts-DATE.json.
"""
from __future__ import annotations
import pathlib
import sys
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import json, os, shutil, statistics, subprocess, tempfile, time
from typing import Any
from tests.support.cpu_time import cpu_seconds
from bench.machine import cores, machine, now, result_file, versions
from tinygrad_llm.command import Parser, guarded
from tinygrad_llm.errors import InputError

PROMPT = "Tell me about the sea."

def run(model: str | None, tokens: int, cache: pathlib.Path) -> dict[str, Any]:
  """One process: its wall time and what it says of itself."""
  path = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if shutil.which("clang", path=p) is None)
  env = {**os.environ, "PATH": path, "CACHEDB": str(cache), "DEV": "CPU", "PYTHONPATH": str(ROOT)}
  env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its byte code
  named = [] if model is None else ["--model", model]
  command = [sys.executable, "-m", "tinygrad_llm.run", *named, "--prompt", PROMPT, "--count", str(tokens), "--json"]
  start, used = time.perf_counter(), cpu_seconds()
  done = subprocess.run(command, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
  wall, cpu = time.perf_counter() - start, cpu_seconds() - used
  if done.returncode: raise InputError(f"{model}: {done.stderr.strip()}")
  report, start = json.loads(done.stdout), time.perf_counter()
  only = "import os, tinygrad_llm.run, tinygrad_llm.engine.llm; os._exit(0)"  # what it takes to end is not theirs
  subprocess.run([sys.executable, "-c", only], env=env, check=True)
  imports = time.perf_counter() - start
  decode = (report["tokens"] - 1) / report["decode_tok_s"] if report["decode_tok_s"] else 0.0
  told = report["load_s"] + report["ttft_s"] + report["compile_s"] + decode
  return {"wall": wall, "imports": imports, "load": report["load_s"], "ttft": report["ttft_s"],
          "compile": report["compile_s"], "decode": decode, "left": wall - imports - told,
          "cpu": cpu, "idle": wall * cores() - cpu, "told": told / (wall - imports)}

def measure(model: str | None, tokens: int, count: int) -> dict[str, Any]:
  with tempfile.TemporaryDirectory() as folder:
    cold = run(model, tokens, cache := pathlib.Path(folder) / "cache.db")
    warm = [run(model, tokens, cache) for _ in range(count)]
  return {"model": pathlib.Path(model).name if model else "bundled", "cold": cold,
          "warm": {name: statistics.median(x[name] for x in warm) for name in cold}, "samples": warm}

def _main() -> None:
  parser = Parser(prog="python bench/starts.py", description="Time whole processes, with empty caches and again.")
  parser.add_argument("-m", "--model", action="append", help="a .gguf file (default: the bundled model)")
  parser.add_argument("-n", "--tokens", type=int, default=12, help="of the answer (default 12)")
  parser.add_argument("-r", "--repetitions", type=int, default=5, help="warm processes (default 5)")
  args = parser.parse_args()
  rows = [measure(model, args.tokens, args.repetitions) for model in args.model or [None]]
  columns = ("wall", "imports", "load", "ttft", "compile", "decode", "left", "cpu", "idle")
  print(f"{'model':34} {'caches':7}" + "".join(f"{c:>9}" for c in columns) + "     told")
  for row in rows:
    for kind in ("cold", "warm"):
      print(f"{row['model'][:34]:34} {kind:7}" + "".join(f"{row[kind][c]:9.2f}" for c in columns) +
            f"{row[kind]['told']:9.0%}")
  path = result_file("starts", date := now())
  path.write_text(json.dumps({"date": date, "machine": machine(), "versions": versions(), "tokens": args.tokens,
                              "models": rows}, indent=1) + "\n")
  print(f"written: {path}")

if __name__ == "__main__": guarded(_main)
