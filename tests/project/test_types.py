"""The types of all functions, and of what the app asks of the patches, are checked by `make lint`."""
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]

def check(text: str, path: pathlib.Path) -> str:
  """What mypy says of a file, with the project's settings; with its cache this takes a third of a second."""
  path.write_text(text)
  done = subprocess.run([sys.executable, "-m", "mypy", str(path)], cwd=ROOT, capture_output=True, text=True)
  assert done.returncode in (0, 1), done.stderr
  return done.stdout

@pytest.mark.parametrize(("call", "wrong"), [
  ("from tinygrad_llm.patches.ir.indices import divisor\ndivisor(12, 5)", ""),
  ("from tinygrad_llm.patches.ir.indices import divisor\ndivisor('x', [])", "[arg-type]"),
  ("from tinygrad_llm.patches.ir.indices import divide", "[attr-defined]"),
  ("from tinygrad import UOp, dtypes\nUOp.const(1, dtypes.int).substitute({}).ranged", "[attr-defined]"),
  ("def f(x): return x", "[no-untyped-def]")])
def test_a_wrong_call_is_found(call, wrong, tmp_path):
  found = check(call, tmp_path / "call.py")
  assert wrong in found if wrong else "Success" in found
