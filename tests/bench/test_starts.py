"""bench/starts.py --against: measures two checkouts in turns; the exit code says whether starts got slower."""
import argparse
import pathlib

import pytest
from bench import starts
from tinygrad_llm.errors import InputError

def compared(monkeypatch, tmp_path, walls: list[float], repetitions: int = 3) -> tuple[int, list[pathlib.Path]]:
  """The exit code for given wall times of successive processes, and the checkouts that were run."""
  roots, left, kept = list[pathlib.Path](), iter(walls), list[dict]()
  def run(model, tokens, cache, root):
    assert not cache.exists()
    roots.append(root)
    wall = next(left)
    return {"wall": wall, "cpu": 2 * wall}
  monkeypatch.setattr(starts, "run", run)
  monkeypatch.setattr(starts, "_kept", kept.append)
  (tmp_path / "tinygrad_llm").mkdir(exist_ok=True)
  args = argparse.Namespace(against=str(tmp_path), repetitions=repetitions, model=None, tokens=12)
  code = starts._compare(args)
  assert kept[0]["models"][0]["ratios"].keys() == {"wall", "cpu"}
  return code, roots

def test_interleaved_runs_use_median_ratio(monkeypatch, tmp_path, capsys):
  """The median of the ratios decides, so one slow process does not matter; the slow model is named."""
  code, roots = compared(monkeypatch, tmp_path, [10, 11, 10, 30, 10, 11])
  assert code == 0 and roots == [tmp_path, starts.ROOT] * 3
  code, _ = compared(monkeypatch, tmp_path, [10, 13, 20, 25, 10, 10])
  assert code == 1 and "bundled" in capsys.readouterr().err
  assert compared(monkeypatch, tmp_path, [10, 11.9], 1)[0] == 0

def test_rejects_folder_that_is_not_a_checkout(tmp_path):
  with pytest.raises(InputError, match="no checkout"): starts._compare(argparse.Namespace(against=str(tmp_path)))
