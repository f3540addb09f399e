"""
Schedule search on a decode step's longest kernels: ours, tinygrad's BEAM=2 and 4, and schedules near the heuristic's.

  python bench/beam.py [-m MODEL] [--kernels N] [--seconds S] [--population N] [--out FILE]          make beam

For each kernel, the table has the candidates that each search compiled, its seconds, and its winner's time. Winners are
timed cold, in turns with the heuristic's schedule. BEAM has the same graph and vector passes as our search, but its own
actions, and starts without a schedule.

With --population N, up to N schedules that are one or two steps from the heuristic's are timed for each kernel. They
show what a search could have found. The table goes to stdout, all results to bench/results/beam-DATE.json.
"""
from __future__ import annotations
import os
import pathlib
import sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
# tinygrad reads these variables once, at import
if __name__ == "__main__": os.environ |= {"DEV": os.environ.get("DEV") or "CPU", "BEAM": "0"}
import argparse, fnmatch, json, math, time
from typing import Any
from bench.machine import machine, now, result_file, versions
from bench.models import model
from tinygrad_llm.command import Parser, guarded
from tinygrad_llm.errors import InputError

def stock(kernel: Any, amount: int) -> tuple[tuple[Any, ...]|None, int, float]:
  """Runs tinygrad's beam search. Returns its opts, the number of candidates, and seconds."""
  from tinygrad import Device
  from tinygrad.codegen.opt import search
  from tinygrad.codegen.opt.postrange import args_from_ast
  from tinygrad_llm.patches.search.space import Loops, space
  if not isinstance(found := space(kernel.ast, Device[kernel.device].renderer), Loops): return None, 0, 0.0
  counted, actions = [0], search.get_kernel_actions
  def count(*args: Any, **kwargs: Any) -> Any:
    made = actions(*args, **kwargs)
    counted[0] += len(made)
    return made
  search.get_kernel_actions = count
  begun = time.perf_counter()
  try:
    buffers, _ = args_from_ast(found.ast, kernel.device)
    k = search.beam_search(found.start(), buffers, kernel.variables, amount, disable_cache=True)
  finally: search.get_kernel_actions = actions
  return tuple(k.applied_opts), counted[0], time.perf_counter() - begun

def ours(kernel: Any, sandbox: Any, seconds: float) -> tuple[Any, int, float]:
  from tinygrad_llm.patches.search import tuner
  begun = time.perf_counter()
  result = tuner.search(kernel, sandbox, seconds, again=True)
  entry = tuner.known_for(kernel)
  return result, entry.extra["compiled"] if entry else 0, time.perf_counter() - begun

def in_turns(sandbox: Any, kernel: Any, many: list[Any]) -> list[float]:
  """Returns the cold seconds of each schedule; NaN if it does not run or computes wrong numbers."""
  from tinygrad_llm.patches.search import measure, tuner
  from tinygrad_llm.patches.search.beam import quartile
  tuner.begin(kernel, sandbox)
  ask = measure.OnDevice(sandbox, math.inf, {}, lambda opts: None, lambda opts, what: None)
  right = [opts for opts in dict.fromkeys(many) if ask.check(opts) is None]
  found = dict(zip(right, ask.compare(right)))
  return [quartile(found[opts]) if found.get(opts) else math.nan for opts in many]

def population(sandbox: Any, kernel: Any, most: int) -> list[tuple[Any, float, float]]:
  """
  Times up to `most` schedules that are one or two steps from the heuristic's.

  Returns (opts, the cost model's us, time relative to the heuristic's). Schedules with the same code are timed once.
  """
  from tinygrad import Device
  from tinygrad_llm.patches.search import measure, tuner
  from tinygrad_llm.patches.search.space import space
  found = space(kernel.ast, Device[kernel.device].renderer)
  opts = {steps: tuner.present(found) for steps in [found.steps(tuner.present(found))]}
  for _ in range(2):
    for near in dict.fromkeys(n for s in list(opts) for n in found.neighbours(s)):
      if len(opts) < 2 * most and near not in opts and (o := found.opts(near)) is not None: opts[near] = o
  tuner.begin(kernel, sandbox)
  ask = measure.OnDevice(sandbox, math.inf, {}, lambda opts: None, lambda opts, what: None)
  codes, kept = set[str](), dict[Any, float]()
  for o, answer in zip(opts.values(), ask.estimate(list(opts.values()))):
    if not isinstance(answer, str) and answer[1] not in codes and len(kept) < most:
      codes.add(answer[1])
      kept[o] = answer[0]
  present, *times = ask.time([None, *kept], math.inf)
  if isinstance(present, str): return []
  return [(o, us, t / present) for (o, us), t in zip(kept.items(), times) if not isinstance(t, str)]

def measure_kernel(row: Any, sandbox: Any, seconds: float, most: int) -> dict[str, Any]:
  from tinygrad_llm.patches.cache.schedules import to_json
  kernel = row.kernel
  result, compiled, took = ours(kernel, sandbox, seconds)
  searches = {"ours": (result.opts, compiled, took)} | {f"BEAM={n}": stock(kernel, n) for n in (2, 4)}
  times = in_turns(sandbox, kernel, [None, *(opts for opts, _, _ in searches.values())])
  found: dict[str, Any] = {"kernel": kernel.name, "types": row.types, "count": row.count, "bytes": row.nbytes,
                           "heuristic_us": times[0] * 1e6, "searches": {}}
  for (name, (opts, number, spent)), t in zip(searches.items(), times[1:]):
    found["searches"][name] = {"compiled": number, "seconds": round(spent, 1), "us": None if math.isnan(t) else t * 1e6,
                               "opts": None if opts is None else to_json(opts)}
  print(json.dumps({k: v for k, v in found.items() if k != "population"}), file=sys.stderr, flush=True)
  if most:
    near = population(sandbox, kernel, most)
    few = [opts for opts, _, ratio in sorted(near, key=lambda row: row[2])[:8]]
    heuristic, *exact = in_turns(sandbox, kernel, [None, *few])
    of_few = {opts: us / heuristic for opts, us in zip(few, exact)}
    found["population"] = [{"opts": to_json(opts), "estimate_us": us, "ratio": ratio, "in_turns": of_few.get(opts)}
                           for opts, us, ratio in near]
  return found

def table(rows: list[dict[str, Any]]) -> str:
  names = ["ours", "BEAM=2", "BEAM=4"]
  lines = [("kernel", "heuristic us", *(f"{name}: us" for name in names), *(f"{name}: compiled, s" for name in names),
            "best of all near")]
  for row in rows:
    found = [row["searches"][name] for name in names]
    near = [p["in_turns"] for p in row.get("population", []) if p["in_turns"]]
    lines.append((f"{row['kernel']} {row['types']}", f"{row['heuristic_us']:.1f}",
                  *("-" if s["us"] is None else f"{s['us']:.1f}" for s in found),
                  *(f"{s['compiled']}, {s['seconds']:.0f}" for s in found),
                  f"{min(near):.2f} of the heuristic's, of {len(row['population'])}" if near else "-"))
  widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
  return "\n".join("  ".join(c.ljust(w) if not i else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths)))
                   for line in lines)

def _main() -> None:
  parser = Parser(prog="python bench/beam.py", description="Searches of kernels' schedules, ours beside tinygrad's.")
  add = parser.add_argument
  add("-m", "--model", action="append", help="path of a .gguf file (default: 1B shapes in Q4_K_M and Q6_K, 2 layers)")
  add("--kernels", type=int, default=3, help="of a model, those that take longest (default 3)")
  add("--part", default="*", help="of those with such a name, as ffn_* (default: of all)")
  add("--seconds", type=float, default=60, help="of our search of a kernel, at most (default 60)")
  add("--population", type=int, default=0, metavar="N", help="time N schedules near the heuristic's, too")
  add("--out", type=pathlib.Path, help="JSON (default: bench/results/beam-DATE.json)")
  args: argparse.Namespace = parser.parse_args()
  if args.kernels < 1: raise InputError(f"--kernels {args.kernels}: give at least 1")
  from tinygrad_llm.device.device import open_target
  open_target(None)
  from tinygrad_llm.analysis.tuning import Tuning
  from tinygrad_llm.kernels import decode_step
  from tinygrad import Device
  from tinygrad_llm.patches.search.sandbox import Sandbox, processes
  date, rows = now(), list[dict[str, Any]]()
  models = args.model or [str(model("llama-1b", types, 2)) for types in ("Q4_K_M", "Q6_K")]
  with Sandbox(processes(Device.DEFAULT)) as sandbox:
    for path in models:
      tuning = Tuning(*decode_step(path, depth=512), 0)
      tuning.survey(sandbox)
      named = [row for row in tuning.rows if fnmatch.fnmatchcase(row.kernel.name, args.part)]
      names = ", ".join(dict.fromkeys(row.kernel.name for row in tuning.rows))
      if not named: raise InputError(f"--part {args.part!r:.40}: no kernel has that name; give one of {names}")
      longest = sorted(named, key=lambda row: -row.count * row.before)[:args.kernels]
      for row in longest:
        print(f"{row.kernel.name} {row.types} ..", file=sys.stderr, flush=True)
        rows.append({"model": pathlib.Path(path).name, **measure_kernel(row, sandbox, args.seconds, args.population)})
  found = {"date": date, "machine": machine(), "versions": versions(), "kernels": rows}
  path = args.out or result_file("beam", date)
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(json.dumps(found, indent=1) + "\n")
  print(table(rows))
  print(path)

if __name__ == "__main__": guarded(_main)
