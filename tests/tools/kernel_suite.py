"""
The kernel regression suite: the exact figures of decode and prefill kernels, compared with tests/kernels/*.json.

Improvements must be recorded, too: `make accept` accepts any change, and the commit says why. `make test` compares a
subset that contains every case, step and target.

  python tests/tools/kernel_suite.py [NAME ..]            compares; exit code 1 if something moved (make kernel-suite)
  python tests/tools/kernel_suite.py --accept [NAME ..]   the same, and rewrites what moved (make accept)

NAME: cases, targets, decode, prompt, rows; default: all.
"""
import argparse
import concurrent.futures
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.tools.kernel_cases import CASES, MAX_CONTEXT, STEPS, TARGETS, UNITS, environment, missing, targets_of, write
from tests.tools.kernel_golden import FOLDER, Report, golden, out_of_bounds, path, pinned, table, text

Unit = tuple[str, str]     # a case and a kind of step
Found = dict[str, Report]  # by step

@functools.cache
def measure(target: str, units: tuple[Unit, ...], processes: int = 1, **env: str) -> dict[Unit, Found]:
  """kernels.report of units, from a child process whose environment has no switches but `env`."""
  with tempfile.TemporaryDirectory() as folder:
    for case in {case for case, _ in units}: write(case, pathlib.Path(folder) / f"{case}.gguf")
    command = [sys.executable, __file__, "--measure", target, folder, *map("=".join, units)]
    settings = environment() | {"PARALLEL": str(processes if processes > 1 else 0)} | env
    done = subprocess.run(command, env=settings, capture_output=True, text=True)
  assert done.returncode == 0, f"{target}: {done.stderr[-2000:]}"
  return dict(zip(units, json.loads(done.stdout)))

def _measure(target: str, folder: str, units: list[str]) -> None:
  """Prints reports as JSON, in the child. The steps of a kind have the same kernels, which are lowered once."""
  from tinygrad_llm.device.device import open_target
  from tinygrad_llm.kernels import decode_step, programs_of, report
  open_target(target)
  def measured(case: str, prompt: int, depth: int, rows: int) -> Report:
    return report(target, programs_of(decode_step(f"{folder}/{case}.gguf", MAX_CONTEXT, depth, prompt, rows)))
  print(json.dumps([{name: measured(case, *step) for name, step in STEPS[kind].items()}
                    for case, kind in (unit.split("=") for unit in units)]))

def measure_all(units: list[Unit], targets: list[str]) -> dict[Unit, dict[str, Found]]:
  """measure() of each target that a unit has, on all cores; reports progress on stderr."""
  begun = time.perf_counter()
  def one(target: str) -> dict[Unit, Found]:
    found = measure(target, tuple(unit for unit in units if target in targets_of(unit[1])))
    print(f"{time.perf_counter() - begun:5.0f} s  {target}", file=sys.stderr, flush=True)
    return found
  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool: found = dict(zip(targets, pool.map(one, targets)))
  return {unit: {target: found[target][unit] for target in targets if unit in found[target]} for unit in units}

def compare(units: list[Unit], targets: list[str], accept: bool) -> bool:
  """Whether all figures are as accepted and within bounds. Prints the differences; with `accept` rewrites the files."""
  good = True
  for (case, kind), of_targets in measure_all(units, targets).items():
    old = golden(case, kind)
    new = {target: {step: pinned(report) for step, report in found.items()} for target, found in of_targets.items()}
    if moved := table(case, kind, {target: (old.get(target, {}), found) for target, found in new.items()}):
      good = False
      print(moved, end="\n\n")
    for target, found in of_targets.items():
      for step, report in found.items():
        for line in out_of_bounds(case, target, report, kind):
          good = False
          print(f"!!! {case}, {step}, {target}: {line}")
    if accept: path(case, kind).write_text(text({t: f for t in TARGETS if (f := new.get(t, old.get(t)))}))
  return good

def stock_products(units: list[Unit]) -> list[str]:
  """Lines that list the accepted reductions over weight matrices with tinygrad's own schedule."""
  lines = []
  for case, kind in units:
    of_roles: dict[str, list[str]] = {}
    for target, found in golden(case, kind).items():
      roles = dict.fromkeys(role for report in found.values() for role in report["stock"])
      if roles: of_roles.setdefault(", ".join(roles), []).append(target)
    for names, targets in of_roles.items():
      lines += textwrap.wrap(f"{case}, {kind}: {names} ({' '.join(targets)})", 118, initial_indent="  ",
                             subsequent_indent="      ", break_on_hyphens=False)
  return lines

def main() -> None:
  parser = argparse.ArgumentParser(description="Compare what steps compile to with what is accepted.")
  parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join((*CASES, *STEPS, *TARGETS))}")
  parser.add_argument("--accept", action="store_true", help="rewrite what moved")
  parser.add_argument("--measure", nargs="+", metavar=("TARGET", "DIR"), help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.measure: return _measure(args.measure[0], args.measure[1], args.measure[2:])
  if unknown := [name for name in args.names if name not in (*CASES, *STEPS, *TARGETS)]:
    parser.error(f"{unknown[0]}: no such case, kind or target; give of {', '.join((*CASES, *STEPS, *TARGETS))}")
  asked = set(args.names)
  cases, kinds, targets = ([n for n in names if n in asked] or list(names) for names in (CASES, STEPS, TARGETS))
  for target in targets:
    if why := missing(target): print(f"{target}: left as it is; {why}", file=sys.stderr)
  FOLDER.mkdir(exist_ok=True)
  if args.accept:
    for gone in {*FOLDER.glob("*.json")} - {path(*unit) for unit in UNITS}: gone.unlink()
  units = [(case, kind) for case, kind in UNITS if case in cases and kind in kinds]
  good = compare(units, [target for target in targets if not missing(target)], args.accept)
  print("matrices whose sums have tinygrad's own schedule:", *(stock_products(units) or ["  none"]), sep="\n")
  print("nothing moved" if good else "accepted" if args.accept else "something moved; to accept it: make accept")
  sys.exit(0 if good or args.accept else 1)

if __name__ == "__main__": main()
