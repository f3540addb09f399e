"""patches/pipeline.py: the table is sound, and switching a pass off switches its dependents off."""
import dataclasses
import os
import random
import subprocess
import sys

from tests.support import child
import pytest
from tests.tools import readme_tables
from tinygrad_llm import patches
from tinygrad_llm.patches import pipeline
from tinygrad_llm.patches.pipeline import PASSES, Pass, Phase

def test_table_is_consistent(): assert pipeline.check() == []

def test_passes_page_is_current(): assert readme_tables.PASSES.read_text() == readme_tables.passes()

def row(name: str, **fields: tuple[str, ...]) -> Pass: return Pass(name, "", Phase.LOOPS, **fields)

REWRITING = (Phase.GRAPH, Phase.LAUNCH, Phase.LOOPS, Phase.VECTORS)

@pytest.mark.parametrize("name", [p.name for p in PASSES if p.phase in REWRITING and p.name != "hooks"])
def test_every_rewrite_is_documented(name):
  """Each rewriting pass has pseudocode of its rewrite, which docs/compiler/passes.md contains."""
  lines = patches.rewrite(name)
  assert 1 <= len(lines) <= 4
  assert any("-->" in line for line in lines)
  assert "\n".join(lines[:1]) in readme_tables.PASSES.read_text()

@pytest.mark.parametrize(("passes", "wrong"), [
  ((row("a"), row("b", needs=("a",), after=("a",))), []),
  ((row("a"), row("a")), ["a name is there twice"]),
  ((row("b", after=("a",)), row("a")), ["b: comes before a"]),
  ((row("a", after=("c",)),), ["a: comes after c, which there is not"]),
  ((row("a", needs=("x",)),), ["a: needs x, which nobody provides"]),
  ((row("a", needs=("x",)), row("b", provides=("x",))), []),
  ((row("a", provides=("b",)), row("b")), ["b: a pass, and what one provides"]),
  ((row("a", needs=("x",), provides=("x",)),), ["a: needs what it provides"])])
def test_check_finds_inconsistent_tables(passes, wrong): assert pipeline.check(passes) == wrong

def test_inconsistent_table_installs_nothing():
  code = """
import os
os.environ["NO_PATCHES"] = "1"
from tinygrad_llm import patches
del os.environ["NO_PATCHES"]
patches.check = lambda: ["a: comes before b"]
try: patches.apply()
except patches.SeamError as e: print(e)
"""
  assert child.run(code).stdout == "patches/pipeline.py: a: comes before b\n"

def test_all_passes_on_by_default(): assert not any(pipeline.why_off(p.name, {}) for p in PASSES)

@pytest.mark.parametrize("seed", range(20))
def test_dependent_passes_are_off_with_their_needs(seed):
  """With random passes switched off, a pass is on exactly if all that it needs is provided."""
  off = {p.name for p in random.Random(seed).sample(PASSES, 3)}
  environment = {f"NO_{name.upper()}": "1" for name in off}
  on = {p.name for p in PASSES if not pipeline.why_off(p.name, environment)}
  provided = on | {x for p in PASSES if p.name in on for x in p.provides}
  for p in PASSES: assert (p.name in on) == (p.name not in off and provided.issuperset(p.needs)), p.name

def test_mutually_dependent_passes_off_together():
  """flash_decoding and online_softmax need each other."""
  for one, other in (("flash_decoding", "online_softmax"), ("online_softmax", "flash_decoding")):
    assert pipeline.why_off(other, {f"NO_{one.upper()}": "1"}) == f"needs {one}"

def test_unknown_pass_name():
  with pytest.raises(KeyError, match="no such pass; close: q8_activations"): patches.is_on("q8_activation")

@pytest.mark.parametrize(("variable", "close"), [
  ("NO_GEMVS", "NO_GEMV"), ("NO_PATCH", "NO_PATCHES"), ("NO_SHUFFLE_REDUCTION", "NO_SHUFFLE_REDUCE"),
  ("NO_THREAD", "NO_THREADS")])
def test_unknown_switch_is_reported(variable, close):
  assert f"{variable}: no such switch; did you mean {close}" in pipeline.wrong_switch({variable: "1"})
  assert pipeline.wrong_switch({variable: "0", "NO_COLOR": "1", "NO_PROXY": "x", "NO_AT_BRIDGE": "1"}) == ""

@pytest.mark.parametrize("command", [["tinygrad_llm.run", "--prompt", "Hi"], ["tinygrad_llm.patches"],
                                     ["tinygrad_llm.kernels", "--target", "CPU"]], ids=lambda c: c[0])
def test_commands_report_unknown_switch(command):
  done = subprocess.run([sys.executable, "-m", *command], env=os.environ | {"NO_GEMVS": "1"}, capture_output=True,
                        text=True, stdin=subprocess.DEVNULL, cwd=child.ROOT)
  assert (done.returncode, done.stdout) == (2, "")
  assert done.stderr == "error: NO_GEMVS: no such switch; did you mean NO_GEMV?\n"

def test_rows_are_complete_and_immutable():
  """Each row names an existing room and module, and is immutable."""
  for p in PASSES:
    assert (child.ROOT / "patches" / f"{p.module.replace('.', '/')}.py").exists()
    with pytest.raises(dataclasses.FrozenInstanceError): p.name = ""  # type: ignore[misc]
