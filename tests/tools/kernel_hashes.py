"""
Hashes kernel sources, to prove that a change of our code changes no kernel: every case, step and target of the kernel
suite (kernel_cases.py). Nothing is compiled, so this takes minutes where the suite takes half an hour.

  python tests/tools/kernel_hashes.py --save FILE [NAME ..]      before a change (make kernel-hashes ARGS=..)
  python tests/tools/kernel_hashes.py --against FILE [NAME ..]    after it; exit code 1 if a source differs

NAME: cases, targets, decode, prompt; default: all. Function names are ignored.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.tools.kernel_cases import CASES, MAX_CONTEXT, STEPS, TARGETS, environment, write

Hashes = dict[str, list[str]]  # by "CASE STEP": "ROLE HASH" of each kernel, in order
NAMED = re.compile(r"\b(?:void|entry) +(\w+)\(")

def hash_of(source: str) -> str:
  """12 hexadecimal digits of a source's SHA-256, with its functions renamed function0, function1, .."""
  names = dict.fromkeys(NAMED.findall(source))
  for i, name in enumerate(names): source = re.sub(rf"\b{name}\b", f"function{i}", source)
  return hashlib.sha256(source.encode()).hexdigest()[:12]

def _child(target: str, folder: str, units: list[str]) -> None:
  """Prints a target's Hashes as JSON. Sources are not compiled."""
  import tinygrad_llm  # noqa: F401  before tinygrad: it applies the patches
  from tinygrad.device import Compiler
  from tinygrad_llm.device.device import open_target
  from tinygrad_llm.kernels import decode_programs
  open_target(target)  # before compiling is disabled: it compiles a kernel as a check
  Compiler.compile_cached = lambda self, source: b""
  found: Hashes = {}
  for case, kind in (unit.split("=") for unit in units):
    for step, (prompt, depth, rows) in STEPS[kind].items():
      programs = decode_programs(f"{folder}/{case}.gguf", MAX_CONTEXT, depth, prompt, rows)
      found[f"{case} {step}"] = [f"{program.role} {hash_of(program.source)}" for program in programs]
  print(json.dumps(found))

def hashes(targets: list[str], units: list[str], **env: str) -> dict[str, Hashes]:
  """The Hashes of each target, from a child process each. units: "CASE=KIND"."""
  with tempfile.TemporaryDirectory() as folder:
    for case in {unit.split("=")[0] for unit in units}: write(case, pathlib.Path(folder, f"{case}.gguf"))
    def of(target: str) -> Hashes:
      done = subprocess.run([sys.executable, __file__, "--child", target, folder, *units], capture_output=True,
                            text=True, env=environment() | {"PARALLEL": "0", "CCACHE": "0"} | env)
      assert done.returncode == 0, f"{target}: {done.stderr[-2000:]}"
      print(f"{hash_of(done.stdout)}  {target}", file=sys.stderr, flush=True)
      return json.loads(done.stdout)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool: return dict(zip(targets, pool.map(of, targets)))

def moved(old: dict[str, Hashes], new: dict[str, Hashes]) -> list[str]:
  """A line for each target and step whose kernels differ: how many, and the first roles."""
  lines = []
  for target, steps in new.items():
    for step, kernels in steps.items():
      if (before := old.get(target, {}).get(step)) == kernels: continue
      differ = [k.rsplit(" ", 1)[0] for k, b in zip(kernels, before or []) if k != b]
      count = f"{len(before)} -> {len(kernels)} kernels" if before is not None else "is not in the file"
      lines.append(f"{target} {step}: {count}, {len(differ)} differ: {', '.join(dict.fromkeys(differ))[:80]}")
  return lines

def main() -> None:
  parser = argparse.ArgumentParser(description="Hash what steps compile to, or compare it with a file.")
  parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join((*CASES, *STEPS, *TARGETS))}")
  how = parser.add_mutually_exclusive_group(required=True)
  how.add_argument("--save", type=pathlib.Path, metavar="FILE")
  how.add_argument("--against", type=pathlib.Path, metavar="FILE")
  how.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.child: return _child(args.child[0], args.child[1], [*args.child[2:], *args.names])
  if unknown := [name for name in args.names if name not in (*CASES, *STEPS, *TARGETS)]:
    parser.error(f"{unknown[0]}: no such case, kind or target")
  asked = set(args.names)
  cases, kinds, targets = ([n for n in names if n in asked] or list(names) for names in (CASES, STEPS, TARGETS))
  found = hashes(targets, [f"{case}={kind}" for case in cases for kind in kinds])
  count = sum(len(kernels) for steps in found.values() for kernels in steps.values())
  if args.save:
    args.save.write_text(json.dumps(found, indent=0))
    return print(f"{count} kernels, hash of all {hash_of(json.dumps(found))}")
  lines = moved(json.loads(args.against.read_text()), found)
  print(*lines, sep="\n", end="\n" if lines else "")
  print(f"{count} kernels, hash of all {hash_of(json.dumps(found))}: {'something moved' if lines else 'all the same'}")
  sys.exit(1 if lines else 0)

if __name__ == "__main__": main()
