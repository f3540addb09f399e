"""
Searches schedules of a small kernel with faulty candidates (tests/support/planted_child.py). No faulty candidate may
win, on the CPU or on the OpenCL CPU runtime, whose kernels have workgroups.

  python tests/tools/search_faults.py [--runs N]      make search-faults: 20 runs of each fault (about 25 minutes)
"""
from __future__ import annotations
import argparse
import itertools
import os
import pathlib
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.support import child
from tests.support import planted_child

FAULTS = planted_child.FAULTS
ON_OPENCL = ("hang", "segfault", "wrong", "memory", "killed", "device")
SECONDS, SECONDS_OF_HANGS = 8, 12
LONGER = (1, 2, 4)  # factors of the time until a fault is met: a busy machine times few candidates
REASONS = {"hang": "too slow", "segfault": "died of SIGSEGV", "wrong": "wrong numbers", "memory": "MemoryError",
           "killed": "died of SIGKILL", "slow": "too slow", "device": "CUDA Error 700"}
count = itertools.count()

def search(fault: str, folder: str, longer: int) -> dict[str, Any]:
  """The outcome of a search with a fault. longer: factor of the search's time."""
  from tests.support import search_kernel
  from tinygrad_llm.patches.cache import schedules
  from tinygrad_llm.patches.search import measure, tuner
  from tinygrad_llm.patches.search.sandbox import Sandbox
  schedules.STORE.name, tuner.JOURNALS.name = f"schedules-{folder}", f"searches-{folder}"
  measure.FIRST, measure.COMPILE = 1.0, 1.0 if fault == "slow" else 30
  kernel = search_kernel.product(96, 256)
  with Sandbox(2, (sys.executable, planted_child.__file__, fault)) as sandbox:
    seconds = longer * (SECONDS_OF_HANGS if fault == "hang" else SECONDS)
    result = tuner.search(kernel, sandbox, seconds, cold=1 << 18)
    processes = [process._process.pid for process in sandbox.processes if process._process is not None]
  planted = [opts for opts in result.refused if planted_child.is_planted(opts)]
  said = [REASONS[fault] in why for opts, why in result.refused.items() if not planted_child.is_planted(opts)]
  return {"timed": result.timed, "planted": len(planted), "reasons": sorted({result.refused[o] for o in planted}),
          "blamed": sum(said) if fault == "device" else 0,
          "winner planted": planted_child.is_planted(result.opts), "before": result.before,
          "left": [pid for pid in processes if pathlib.Path(f"/proc/{pid}").exists()]}

def survives(fault: str, **env: str) -> str:
  """The fault of a search with faulty candidates, in words; "" if it has none."""
  for longer in LONGER:
    found = child.call(search, fault, f"{os.getpid()}-{next(count)}", longer, **env).value
    if found["planted"]: break
  if not found["planted"]: return "no faulty candidate was tried"
  if not found["before"] > 0: return f"{found['timed']} candidates were timed"
  if found["winner planted"]: return "a faulty candidate won"
  if found["left"]: return "processes are left"
  if found["blamed"]: return f"{found['blamed']} candidates were blamed for another candidate's fault"
  unknown = [why for why in found["reasons"] if REASONS[fault] not in why and "no time is left" not in why]
  return f"refused: {unknown}" if unknown else ""

def main() -> None:
  from tests.gpu import gpu_numbers
  from tinygrad_llm.device.compiler import use_c_compiler
  use_c_compiler()
  parser = argparse.ArgumentParser(description="Searches among planted faults.")
  parser.add_argument("--runs", type=int, default=20, help="of each fault (default 20)")
  parser.add_argument("--device", choices=("CPU", "OpenCL"), help="one of the two")
  parser.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS, help="some of them")
  args = parser.parse_args()
  runs, failed = args.runs, 0
  opencl = gpu_numbers.opencl()
  for device, faults, env in (("CPU", FAULTS, {}), ("OpenCL", ON_OPENCL if opencl else (), opencl or {})):
    for fault in [fault for fault in faults if fault in args.faults and args.device in (None, device)]:
      said = [why for _ in range(runs) if (why := survives(fault, **env))]
      failed += len(said)
      print(f"{device:6s} {fault:9s} {runs - len(said)} of {runs} survived {'; '.join(said)}", flush=True)
  sys.exit(failed > 0)

if __name__ == "__main__":
  from tests.tools import search_faults  # a child process imports the functions by this module name
  search_faults.main()
