"""The prose check: which sentences it counts, and that no room has more than it is allowed."""
import json

import pytest

from tests.tools import prose

FILE = '''"""
Of all rows, one is read. Rows are read once.

Why: what is read twice costs twice.
Rewrite:
  Of this pseudocode --> nothing is counted
"""
x = 1  # What is left over is those of the tail
# A comment
# of two lines, which is one sentence.
'''

@pytest.fixture
def file(tmp_path):
  path = tmp_path / "module.py"
  path.write_text(FILE)
  return path

def test_kinds_of_faults(file):
  assert sorted((kind, line) for kind, line, _ in prose.faults(file)) == [
    ("begins with Of", 2), ("clause as subject", 8), ("those of", 8)]

def test_adjacent_comment_lines_are_one_text(file):
  assert [text for _, text in prose.texts(file)][-1] == "A comment\nof two lines, which is one sentence."

@pytest.mark.parametrize("words, counted", [(30, 0), (31, 1)])
def test_long_sentences(tmp_path, words, counted):
  path = tmp_path / "page.md"
  path.write_text("Word" + " word" * (words - 1) + ".\n\n| " + "word " * 40 + "|\n\n```\n" + "word " * 40 + "\n```\n")
  assert sum(kind.startswith("more than") for kind, _, _ in prose.faults(path)) == counted

def test_questions_are_not_counted_as_clause_subjects(tmp_path):
  path = tmp_path / "page.md"
  path.write_text("What bounds decode?\n\nWhat bounds decode is memory.\n")
  assert [line for _, line, _ in prose.faults(path)] == [3]

def test_rising_count_fails(monkeypatch, tmp_path, capsys):
  monkeypatch.setattr(prose, "ALLOWED", tmp_path / "prose.json")
  prose.ALLOWED.write_text(json.dumps({"room": {"those of": 1}}))
  monkeypatch.setattr("sys.argv", ["prose.py", "--accept"])
  for today in ({"room": {"those of": 2}}, {"room": {"those of": 1, "begins with Of": 1}},
                {"another": {"those of": 1}}):
    monkeypatch.setattr(prose, "count", lambda today=today: today)
    assert prose.main() == 1
    assert f"--show {next(iter(today))}" in capsys.readouterr().err
    assert json.loads(prose.ALLOWED.read_text()) == {"room": {"those of": 1}}
  monkeypatch.setattr(prose, "count", dict)
  assert prose.main() == 0 and json.loads(prose.ALLOWED.read_text()) == {}
