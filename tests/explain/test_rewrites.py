"""
Each pass rewrites a small kernel as tests/data/rewrites.txt says: the graph before and after, for each pass.

For an intended change, `python -m tests.explain.test_rewrites` writes the file again; review its diff.
"""
import functools
import pathlib
import re
import sys

import pytest
from tests.explain import rewrite_cases
from tests.support import child
from tests.support.extended import sample
from tests.tools.kernel_cases import has_cuda_wheels
from tinygrad_llm.patches.pipeline import PASSES, Phase

FILE = pathlib.Path(__file__).parents[1] / "data" / "rewrites.txt"
# passes that change kernels and are compared elsewhere, or that only contain others
ELSEWHERE = {
  "skip_steps": "loops/test_skip_steps.py", "online_softmax": "attention/test_online_softmax.py",
  "normal_form": "compile_time/test_normal_form.py",
  "register_tiles": "schedule/test_register_tiles.py", "choose": "schedule/test_choose.py",
  "clang_combine": "vector/test_vectorizer.py", "clang_width": "vector/test_vectorizer.py"}

@functools.cache
def found(target: str) -> dict[str, list[str]]: return child.call(rewrite_cases.rewrites, target).value

def title(name: str) -> str:
  case = rewrite_cases.PASSES[name]
  return f"{name}: {case}, {rewrite_cases.CASES[case][0]}"

def written() -> dict[str, list[str]]:
  """{title: lines}, as they are in the file."""
  parts = re.split(r"^== (.*)\n", FILE.read_text(), flags=re.M)[1:]
  return {name: lines.rstrip("\n").split("\n") for name, lines in zip(parts[::2], parts[1::2])}

def test_every_pass_is_shown():
  """Each pass that changes kernels has its rewrite here, or is compared in a file of ELSEWHERE."""
  phases = (Phase.GRAPH, Phase.LAUNCH, Phase.CHOOSE, Phase.LOOPS, Phase.VECTORS, Phase.RENDER)
  assert {p.name for p in PASSES if p.phase in phases} == {*rewrite_cases.PASSES, *ELSEWHERE}
  assert all((FILE.parents[1] / path).exists() for path in ELSEWHERE.values())
  assert [*written()] == [title(name) for name in rewrite_cases.PASSES]

SLOW = ("factor_sums", "merge_fields")  # a minute together

@pytest.mark.parametrize("name", sample(rewrite_cases.PASSES, [p for p in rewrite_cases.PASSES if p not in SLOW]))
def test_recorded_rewrite(name):
  target = rewrite_cases.CASES[rewrite_cases.PASSES[name]][0]
  if not target.startswith("CPU") and not has_cuda_wheels(): pytest.skip("NVIDIA makes no NVRTC wheel for this machine")
  lines = found(target)[name]
  assert lines, "it did nothing to its case"
  assert lines == written()[title(name)]

if __name__ == "__main__":
  text = "".join(f"== {title(name)}\n" + "".join(f"{line}\n" for line in found(
    rewrite_cases.CASES[rewrite_cases.PASSES[name]][0])[name]) for name in rewrite_cases.PASSES)
  sys.exit(0 if FILE.write_text(text) else 1)
