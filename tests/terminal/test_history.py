"""The history of typed lines: private, bounded, never an error."""
import os
import pathlib
import stat
import subprocess
import sys

import pytest
from tests.support.child import ROOT
from tinygrad_llm.terminal import history
from tinygrad_llm.terminal.history import History, history_file

def test_history_is_kept(tmp_path):
  path = tmp_path / "state" / "tinygrad_llm" / "history"
  first, second = History(path), History(path)
  assert first.load() == []
  for line in ("one", "one", " ", "two\nlines \x1b é"): first.add(line)
  second.add("three")  # a concurrent chat
  first.add("one")
  assert History(path).load() == ["one", "two\nlines \x1b é", "three", "one"]
  assert stat.S_IMODE(path.stat().st_mode) == 0o600
  assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700

def test_history_is_bounded(tmp_path, monkeypatch):
  path = tmp_path / "history"
  h = History(path)
  for i in range(history.LINES + 50): h.add(str(i))
  wanted = [str(i) for i in range(50, history.LINES + 50)]
  assert History(path).load() == wanted
  assert len(path.read_text().splitlines()) == history.LINES
  assert stat.S_IMODE(path.stat().st_mode) == 0o600
  monkeypatch.setattr(history, "BYTES", 100)
  found = History(path).load()
  assert 0 < len(found) < 20 and found == wanted[-len(found):]
  assert path.stat().st_size <= 100 and os.listdir(tmp_path) == ["history"]

def test_damaged_history_file(tmp_path):
  path = tmp_path / "history"
  path.write_bytes(b'"a"\nplain\n3\n\xff\n[[[["b"\n"c"\n"cut')
  (h := History(path)).load()
  for line in ("d", "e"): h.add(line)  # not appended to the line that was cut
  assert History(path).load() == ["a", "c", "d", "e"]

@pytest.mark.skipif(sys.platform != "linux", reason="Linux's limits")
def test_full_disk(tmp_path):
  """A file that cannot be shortened stays, and no other file is left. A line that was cut loses only itself."""
  (path := tmp_path / "history").write_text('"a b"\n' * 2000)
  code = ("import pathlib, resource, sys; from tinygrad_llm.terminal.history import History; "
          "path = pathlib.Path(sys.argv[1]); h = History(path); limit = lambda n: "
          "resource.setrlimit(resource.RLIMIT_FSIZE, (n, resource.RLIM_INFINITY)); limit(100); h.load(); "
          "limit(12003); h.add('lost'); limit(1 << 20); h.add('kept'); print(h.load()[-1])")
  done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, cwd=ROOT)
  assert (done.stdout, done.stderr) == ("kept\n", "") and os.listdir(tmp_path) == ["history"]

def test_unusable_path_is_no_error(tmp_path):
  os.mkfifo(tmp_path / "fifo")
  (tmp_path / "file").write_text("")
  for path in (None, tmp_path, tmp_path / "fifo", tmp_path / "file" / "history", pathlib.Path("/proc/none/history")):
    h = History(path)
    assert h.load() == []
    h.add("a")

def test_history_location(monkeypatch, tmp_path):
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
  assert history_file() == tmp_path / "tinygrad_llm" / "history"
  monkeypatch.setenv("XDG_STATE_HOME", "relative")  # the specification says to ignore it
  monkeypatch.setenv("HOME", str(tmp_path))
  assert history_file() == tmp_path / ".local" / "state" / "tinygrad_llm" / "history"

def test_no_home_folder(monkeypatch):
  monkeypatch.delenv("XDG_STATE_HOME", raising=False)
  monkeypatch.setenv("HOME", "relative")
  assert history_file() is None
