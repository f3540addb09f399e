"""bench/lowering.py: lowering time by stage and by pass of a small model, and the table of passes."""
import pytest
from tests.support.extended import extended
from bench import lowering
from tests.support.synthetic import SHAPES, write_model

@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
  path = tmp_path_factory.mktemp("lowering") / "m.gguf"
  write_model(path, **SHAPES["tiny"], types="Q4_K_M", header=True)
  return lowering.child("CPU:x86-64-v3", str(path), "decode")

@extended
def test_pass_times_add_up_to_stages(found):
  """Each pass is counted for each kernel. All passes together take about as long as the stages."""
  passes, programs = found["passes"], found["programs"]
  assert {"devectorize2", "early symbolic", "linearize/render"} <= passes.keys() and programs > 5
  assert passes["devectorize2"][1] >= programs
  for seconds, kernels, unchanged, nodes in passes.values(): assert seconds >= 0 and 0 <= unchanged <= kernels <= nodes
  stages = sum(found[stage] for stage in lowering.STAGES)
  assert .5 * stages < sum(row[0] for row in passes.values()) < 1.5 * stages + .5

@extended
def test_printed_table(found, capsys):
  lowering._print_passes([found, found], 3)
  head, *lines = capsys.readouterr().out.strip().splitlines()
  assert head.split() == ["pass", "seconds", "kernels", "unchanged", "nodes"] and len(lines) == 3
  longest = max(found["passes"].items(), key=lambda item: item[1][0])
  assert lines[0].startswith(longest[0]) and float(lines[0][40:50]) == pytest.approx(2 * longest[1][0], abs=.006)
  lowering._print_passes([], 3)
  assert capsys.readouterr().out == ""
