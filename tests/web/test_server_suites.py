"""The judgement over llama.cpp's server tests: make server-suites."""
import re

import pytest
from tests.tools import server_suites
from tests.tools.suites.accepted import ACCEPTED
from tests.tools.suites.model import write
import tinygrad_llm

FAILED, PASSED = ["failed", "why\nmore"], ["passed", ""]
KNOWN, OTHER = "unit/test_x.py::test_known[a\nb]", "unit/test_x.py::test_other"

@pytest.mark.parametrize("there,here,code,told", [
  ({KNOWN: PASSED, OTHER: PASSED}, {KNOWN: FAILED, OTHER: PASSED}, 0, "passes 2, and this server 1 of them; 1 pass"),
  ({KNOWN: PASSED, OTHER: PASSED}, {KNOWN: FAILED, OTHER: FAILED}, 1, "failed here, passed there: x.py::test_other: w"),
  ({KNOWN: PASSED, OTHER: PASSED}, {KNOWN: FAILED}, 1, "absent here"),
  ({KNOWN: PASSED}, {KNOWN: PASSED}, 1, "accepted as a failure, but it passes"),
  ({KNOWN: FAILED, OTHER: FAILED}, {KNOWN: FAILED, OTHER: FAILED}, 1, "seen no more"),
  ({KNOWN: PASSED, OTHER: FAILED}, {KNOWN: FAILED, OTHER: PASSED}, 0, "1 fail for a reason: so it is")])
def test_judgement(monkeypatch, capsys, there, here, code, told):
  monkeypatch.setattr(server_suites, "ACCEPTED", [(r"x.py::test_known\[.*", "so it is")])
  assert server_suites.compare(there, here) == code and told in capsys.readouterr().out

def test_patterns_are_of_the_files_that_run():
  for pattern, reason in ACCEPTED:
    assert re.match(r"(\w+)\.py::", pattern)[1] in server_suites.FILES and reason
    re.compile(pattern)

def test_the_models_copy_never_ends(tmp_path):
  """It has other tokens than the bundled model, and answers go on to the context's end."""
  with tinygrad_llm.load(str(write(tmp_path / "m.gguf"))) as llm:
    ids = llm.tokenizer.encode("The biggest fox lived happily ever after.<|end|>", add_bos=True)
    assert len([*llm.generate(ids, max_tokens=None)]) == llm.max_context - len(ids) + 1
