"""
Times starts: whole processes of `run`, with empty caches and again, for an answer of 12 tokens.

  python bench/starts.py [-m MODEL ..] [-n TOKENS] [-r N] [--against FOLDER]

The columns, in seconds:
- imports: a process that only makes the imports of `run`
- compile: compiling the decode step, after the first token
- left: the wall time after imports, less load_s + ttft_s + compile_s + (n - 1) / decode_tok_s
- cpu: processor seconds of a process and its forks
- idle: unused core-seconds, wall * cores - cpu, of all cores that the process may use

Warm figures are medians of N processes, cold figures are of one. No clang is on the PATH, so the ziglang wheel's is
used. With --against, N cold starts of this checkout and of another one in FOLDER take turns on one machine. The exit
code is 1 if the median ratio of wall times is above 1.2. All results go to bench/results/starts-DATE.json.
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
from tinygrad_llm.bench import build
from tinygrad_llm.command import Parser, guarded
from tinygrad_llm.errors import InputError

PROMPT = "Tell me about the sea."
MOST = 1.2  # highest ratio to another checkout's wall time

def run(model: str | None, tokens: int, cache: pathlib.Path, root: pathlib.Path = ROOT) -> dict[str, Any]:
  """Runs one process. Returns its wall time and its own report. root: folder of the checkout that answers."""
  path = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if shutil.which("clang", path=p) is None)
  env = {**os.environ, "PATH": path, "CACHEDB": str(cache), "DEV": "CPU", "PYTHONPATH": str(root)}
  env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its byte code
  named = [] if model is None else ["--model", str(pathlib.Path(model).resolve())]
  command = [sys.executable, "-m", "tinygrad_llm.run", *named, "--prompt", PROMPT, "--count", str(tokens), "--json"]
  start, used = time.perf_counter(), cpu_seconds()
  done = subprocess.run(command, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=root)
  wall, cpu = time.perf_counter() - start, cpu_seconds() - used
  if done.returncode: raise InputError(f"{model}: {done.stderr.strip()}")
  report, start = json.loads(done.stdout), time.perf_counter()
  only = "import os, tinygrad_llm.run, tinygrad_llm.engine.llm; os._exit(0)"  # without the time to exit
  subprocess.run([sys.executable, "-c", only], env=env, check=True, cwd=root)
  imports = time.perf_counter() - start
  decode = (report["tokens"] - 1) / report["decode_tok_s"] if report["decode_tok_s"] else 0.0
  told = report["load_s"] + report["ttft_s"] + report.get("compile_s", 0.0) + decode
  return {"wall": wall, "imports": imports, "load": report["load_s"], "ttft": report["ttft_s"],
          "compile": report.get("compile_s", 0.0), "decode": decode, "left": wall - imports - told,
          "cpu": cpu, "idle": wall * cores() - cpu, "told": told / (wall - imports)}

def _name(model: str | None) -> str: return pathlib.Path(model).name if model else "bundled"

def measure(model: str | None, tokens: int, count: int) -> dict[str, Any]:
  with tempfile.TemporaryDirectory() as folder:
    cold = run(model, tokens, cache := pathlib.Path(folder) / "cache.db")
    warm = [run(model, tokens, cache) for _ in range(count)]
  return {"model": _name(model), "cold": cold,
          "warm": {name: statistics.median(x[name] for x in warm) for name in cold}, "samples": warm}

def compare(model: str | None, tokens: int, count: int, other: pathlib.Path) -> dict[str, Any]:
  """Times cold starts of another checkout and of this one, in turns. ratios: medians of this one's by the other's."""
  pairs = []
  for _ in range(count):
    with tempfile.TemporaryDirectory() as folder:
      pairs.append([run(model, tokens, pathlib.Path(folder) / f"{i}.db", root) for i, root in enumerate((other, ROOT))])
  ratios = {name: statistics.median(ours[name] / theirs[name] for theirs, ours in pairs) for name in ("wall", "cpu")}
  return {"model": _name(model), "ratios": ratios, "pairs": pairs}

def _compare(args: Any) -> int:
  """Compares the checkouts and prints a table. Returns the exit code."""
  other = pathlib.Path(args.against).resolve()
  if not (other / "tinygrad_llm").is_dir():
    raise InputError(f"--against {args.against}: it is no checkout of tinygrad_llm")
  rows = []
  print(f"{'model':34} {'wall':>9} {'ratio':>7} {'cpu':>9} {'ratio':>7}   {args.repetitions} pairs, the last's seconds")
  for model in args.model or [None]:
    rows.append(row := compare(model, args.tokens, args.repetitions, other))
    last = row["pairs"][-1][1]
    print(f"{row['model'][:34]:34} {last['wall']:9.2f} {row['ratios']['wall']:7.2f} {last['cpu']:9.2f} "
          f"{row['ratios']['cpu']:7.2f}", flush=True)
  commit, number = build(other)
  _kept({"against": commit if number else other.name, "tokens": args.tokens, "models": rows})
  slow = [row["model"] for row in rows if row["ratios"]["wall"] > MOST]
  if slow: print(f"more than {MOST} times as long as in {args.against}: {', '.join(slow)}", file=sys.stderr)
  return int(bool(slow))

def _kept(found: dict[str, Any]) -> None:
  path = result_file("starts", date := now())
  path.write_text(json.dumps({"date": date, "machine": machine(), "versions": versions(), **found}, indent=1) + "\n")
  print(f"written: {path}")

def _main() -> None:
  parser = Parser(prog="python bench/starts.py", description="Time whole processes, with empty caches and again.")
  parser.add_argument("-m", "--model", action="append", help="a .gguf file (default: the bundled model)")
  parser.add_argument("-n", "--tokens", type=int, default=12, help="of the answer (default 12)")
  parser.add_argument("-r", "--repetitions", type=int, default=5, help="warm processes, or pairs (default 5)")
  parser.add_argument("--against", metavar="FOLDER", help="another checkout, to compare cold starts with")
  args = parser.parse_args()
  if args.repetitions < 1: raise InputError(f"--repetitions {args.repetitions}: give a number from 1")
  if args.against: sys.exit(_compare(args))
  rows = [measure(model, args.tokens, args.repetitions) for model in args.model or [None]]
  columns = ("wall", "imports", "load", "ttft", "compile", "decode", "left", "cpu", "idle")
  print(f"{'model':34} {'caches':7}" + "".join(f"{c:>9}" for c in columns) + "     told")
  for row in rows:
    for kind in ("cold", "warm"):
      print(f"{row['model'][:34]:34} {kind:7}" + "".join(f"{row[kind][c]:9.2f}" for c in columns) +
            f"{row[kind]['told']:9.0%}")
  _kept({"tokens": args.tokens, "models": rows})

if __name__ == "__main__": guarded(_main)
