"""
The cases of the kernel regression suite: what a decode step compiles to, exactly, for each of TARGETS.

kernels/*.json hold what is accepted, one row a line. A win must be recorded, too. `make test` compares SPANNING, in
which every case and every target is; `make accept` measures all of them and tells what moved (CI does it each week).

  python tests/tools/kernel_cases.py [CASE ..]              rewrites them and prints what moved (make accept)
  python tests/tools/kernel_cases.py --measure TARGET DIR   JSON of what the models in DIR compile to, for a child
"""
import argparse
import difflib
import functools
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
from typing import Any

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from synthetic import SHAPES, write_model

FOLDER = pathlib.Path(__file__).parents[1] / "kernels"
# instruction set and threads of the CPU are fixed: the figures must not depend on the machine
TARGETS = {"CPU": "CPU:CLANG:x86_64,x86-64-v3", "CUDA:sm_87": "CUDA:sm_87", "CUDA:sm_90": "CUDA:sm_90"}
THREADS = 4
# two layers: the types of Q4_K_M's first half, and of its last eighth
LLAMA_1B = SHAPES["llama-1b"] | {"layers": 2, "rope_freqs": False}
CASES: dict[str, dict[str, Any]] = {
  **{f"llama-1b-{types}": LLAMA_1B | {"types": types} for types in ("Q4_K_M", "Q6_K", "Q8_0", "F16")},
  "smollm-135m-Q8_0": {"arch": "llama", "dim": 576, "ffn": 1536, "layers": 2, "heads": 9, "kv_heads": 3, "vocab": 49152,
                       "types": "Q8_0"},
  "qwen3-0.6b-Q4_K_M": {"arch": "qwen3", "dim": 1024, "ffn": 3072, "layers": 2, "heads": 16, "kv_heads": 8,
                        "head_dim": 128, "vocab": 151936, "types": "Q4_K_M"},
  **{f"{name}-{types}": SHAPES[name] | {"layers": 2, "types": types} for name, types in (
    ("qwen3-30b-a3b", "Q4_K_M"), ("olmoe-1b-7b", "Q4_K_M"), ("deepseek-v2-lite", "Q4_K_M"),
    ("gpt-oss-20b", "MXFP4_MOE"))},
}
SPANNING = [("llama-1b-Q4_K_M", target) for target in TARGETS] + [
  ("llama-1b-F16", "CPU"), ("smollm-135m-Q8_0", "CPU"), ("llama-1b-Q8_0", "CUDA:sm_87"),
  ("llama-1b-Q6_K", "CUDA:sm_90"), ("qwen3-0.6b-Q4_K_M", "CUDA:sm_90"), ("qwen3-30b-a3b-Q4_K_M", "CPU"),
  ("olmoe-1b-7b-Q4_K_M", "CUDA:sm_87"), ("deepseek-v2-lite-Q4_K_M", "CPU"), ("gpt-oss-20b-MXFP4_MOE", "CUDA:sm_90")]
PINNED = ("role", "count", "bytes", "ops", "name", "types", "opts", "global_size", "local_size", "load_bytes",
          "nodes")

def has_cuda_wheels() -> bool:
  """Whether NVIDIA makes the wheels of the extra `cuda` for this machine."""
  return sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")

def measurable() -> list[str]:
  """The targets that this machine can compile for."""
  return [name for name in TARGETS if has_cuda_wheels() or not name.startswith("CUDA")]

def environment() -> dict[str, str]:
  """Of a process in which nothing moves kernels: this one's, without switches."""
  keep = ("PATH", "HOME", "PYTHONPATH", "TMPDIR", "LD_LIBRARY_PATH", "XDG_CACHE_HOME", "CACHEDB", "CC")
  return {name: os.environ[name] for name in keep if name in os.environ} | {"NUM_CPU_THREADS": str(THREADS)}

@functools.cache
def measure(target: str, names: tuple[str, ...] = tuple(CASES)) -> dict[str, Any]:
  """{case: what kernels.report says}, from a process of its own with nothing in its environment that moves kernels."""
  env = environment() | {"PARALLEL": os.environ.get("PARALLEL", str(os.cpu_count()))}
  with tempfile.TemporaryDirectory() as folder:
    for name in names: write_model(pathlib.Path(folder) / f"{name}.gguf", **CASES[name], header=True)
    command = [sys.executable, __file__, "--measure", TARGETS[target], folder]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr[-2000:]
  return json.loads(done.stdout)

def pinned(found: dict[str, Any]) -> dict[str, Any]:
  """What of a report must not move. Registers are up to the version of NVRTC."""
  return {key: found[key] for key in ("kernels", "bytes", "ops")} | {
    "roles": [{key: row[key] for key in PINNED} for row in found["roles"]]}

def text(found: dict[str, Any]) -> str:
  """A golden file's text, of {target: pinned report}."""
  def target(report: dict[str, Any]) -> str:
    totals = ", ".join(f'"{key}": {report[key]}' for key in ("kernels", "bytes", "ops"))
    return f'{{{totals}, "roles": [\n' + ",\n".join(f"  {json.dumps(row)}" for row in report["roles"]) + "]}"
  return "{\n" + ",\n".join(f'"{name}": {target(report)}' for name, report in found.items()) + "\n}\n"

def moved(old: dict[str, Any] | None, new: dict[str, Any]) -> str:
  """What differs between two pinned reports, in lines: the totals, then the rows that went and came; "" if nothing."""
  if old is None: return "new"
  lines = [f"{key} {old[key]} -> {new[key]} ({new[key] / old[key] - 1:+.1%})" for key in ("kernels", "bytes", "ops")
           if old[key] != new[key]]
  rows = ([json.dumps(row) for row in report["roles"]] for report in (old, new))
  return "\n".join([*lines, *(line for line in difflib.ndiff(*rows) if line[0] in "-+")])

def golden(name: str) -> dict[str, Any]:
  path = FOLDER / f"{name}.json"
  return json.loads(path.read_text()) if path.exists() else {}

def _measure(target: str, folder: str) -> None:
  from tinygrad_llm.kernels import decode_programs, report
  from tinygrad_llm.target.device import open_target
  target = open_target(target)
  print(json.dumps({path.stem: report(target, decode_programs(str(path)))
                    for path in sorted(pathlib.Path(folder).glob("*.gguf"))}))

def _accept(names: list[str]) -> None:
  FOLDER.mkdir(exist_ok=True)
  for gone in {path.stem for path in FOLDER.glob("*.json")} - set(CASES): (FOLDER / f"{gone}.json").unlink()
  same = True
  for name in names or CASES:
    old = golden(name)
    new = {target: pinned(measure(target)[name]) for target in measurable()}
    for target, report in new.items():
      if lines := moved(old.get(target), report):
        print(f"{name} {target}: {lines}")
        same = False
    (FOLDER / f"{name}.json").write_text(text({t: r for t in TARGETS if (r := new.get(t, old.get(t)))}))
  if same: print("nothing moved")
  if left := [target for target in TARGETS if target not in measurable()]:
    print(f"left as they were, no compiler for them here: {', '.join(left)}")

def main() -> None:
  parser = argparse.ArgumentParser(description="Record what decode steps compile to.")
  parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
  parser.add_argument("--measure", nargs=2, metavar=("TARGET", "DIR"), help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.measure: return _measure(*args.measure)
  if unknown := set(args.cases) - set(CASES): parser.error(f"no such case: {', '.join(unknown)}")
  _accept(args.cases)

if __name__ == "__main__": main()
