"""python -O and -OO: the app works without asserts and docstrings."""
import json
import pathlib
import subprocess
import sys
from tests.support import child
import pytest
from tests.support.extended import extended
from tests.support.reference import Reference

IDS, COUNT = [1, 2, 3, 4, 5], 4

def python(*args: str, **env: str) -> str:
  """The stdout of a Python process."""
  done = subprocess.run([sys.executable, *args], cwd=child.ROOT, env=child.environment(**env), capture_output=True,
                        text=True, timeout=300)
  assert done.returncode == 0, done.stderr[-2000:]
  return done.stdout

@extended
@pytest.mark.parametrize("flag", ["-O", "-OO"])
def test_an_answer_from_an_empty_cache(flag, model_file, tmp_path: pathlib.Path):
  """With an empty cache, prefill and decode are captured and give the reference's answer."""
  path, asked = model_file(layers=1, dim=32, ffn=32, heads=2, vocab=384, context=96), ",".join(map(str, IDS))
  printed = python(flag, "-m", "tinygrad_llm.run", "--model", str(path), "--tokens", asked, "--count", str(COUNT),
                   "--json", CACHEDB=str(tmp_path / "cache.db"))
  assert (tmp_path / "cache.db.d" / "captures").exists()
  found = json.loads(printed)["token_ids"]
  logits = Reference(path).logits([*IDS, *found])[len(IDS) - 1:-1]
  assert len(found) == COUNT
  assert all(row.max() - row[token] < 0.01 * row.std() for row, token in zip(logits, found))

def test_patch_list_under_OO():
  """The list of patches has each docstring's sentence, also under -OO."""
  listed, without = (python(*flags, "-m", "tinygrad_llm.patches") for flags in ((), ("-OO",)))
  assert listed == without
  assert "Huge pages: " in listed
