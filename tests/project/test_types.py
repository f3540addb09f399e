"""`make lint` checks the types of all functions, and of the app's calls of the patches."""
import pathlib
import subprocess
import sys

from tests.support.extended import extended

ROOT = pathlib.Path(__file__).parents[2]

# {name: (source, mypy's error code)}
FILES = {
  "right": ("from tinygrad_llm.patches.ir.indices import divisor\ndivisor(12, 5)", ""),
  "argument": ("from tinygrad_llm.patches.ir.indices import divisor\ndivisor('x', [])", "arg-type"),
  "name": ("from tinygrad_llm.patches.ir.indices import divide", "attr-defined"),
  "method": ("from tinygrad import UOp, dtypes\nUOp.const(1, dtypes.int).substitute({}).ranged", "attr-defined"),
  "untyped": ("def f(x): return x", "no-untyped-def")}

@extended
def test_mypy_finds_wrong_calls(tmp_path):
  for name, (text, _) in FILES.items(): (tmp_path / f"{name}.py").write_text(text)
  done = subprocess.run([sys.executable, "-m", "mypy", str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 1, done.stderr
  lines = {name: [x for x in done.stdout.splitlines() if f"{name}.py:" in x] for name in FILES}
  assert {name: len(found) for name, found in lines.items()} == {
    "right": 0, "argument": 2, "name": 1, "method": 1, "untyped": 1}, done.stdout
  for name, (_, wrong) in FILES.items(): assert all(f"[{wrong}]" in line for line in lines[name])
