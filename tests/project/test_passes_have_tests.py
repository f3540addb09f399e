"""Each pass of these rooms has a test file tests/<room>/test_<module>.py that imports its module."""
import ast
import pathlib

import pytest
from tinygrad_llm.patches.pipeline import PASSES, Pass

TESTS = pathlib.Path(__file__).parents[1]
ROOMS = ("graph", "loops", "tiles", "isa", "schedule", "attention", "compile_time")
ELSEWHERE = {  # passes whose test file has another name or does not import them, and the reason
  "table_lookup": ("patches/test_codegen.py", "a rule of the vectoriser, shown in the C of whole kernels"),
  "workers": ("compile_time/test_workers.py", "it changes how graphs are pickled, which is asked of pickle itself"),
  "forked_lowering": ("compile_time/test_forked_lowering.py", "it works in processes of its own, which import it"),
}

def imports(path: pathlib.Path) -> set[str]:
  """All modules that a file imports, and the names imported from them."""
  found = set[str]()
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import): found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom): found |= {str(node.module), *(f"{node.module}.{a.name}" for a in node.names)}
  return found

OF_ROOMS = [p for p in PASSES if p.room in ROOMS]

@pytest.mark.parametrize("of", [p for p in OF_ROOMS if p.name not in ELSEWHERE], ids=lambda p: p.module)
def test_every_pass_has_a_test_file(of: Pass) -> None:
  path = TESTS / of.room / f"test_{of.name}.py"
  assert path.exists() and f"tinygrad_llm.patches.{of.module}" in imports(path)
  assert any(line.startswith("def test_") for line in path.read_text().splitlines())

def test_rooms_and_exceptions_exist() -> None:
  assert {p.room for p in OF_ROOMS} == set(ROOMS) and ELSEWHERE.keys() <= {p.name for p in OF_ROOMS}
  assert all((TESTS / file).exists() and reason for file, reason in ELSEWHERE.values())
