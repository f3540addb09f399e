"""python -m tinygrad_llm.tune: its table, its files, its messages for bad input, and how it stops and resumes."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

from tests.support import child
import pytest
from tests.support.extended import extended, some
from tinygrad_llm import tune
from tinygrad_llm.errors import InputError

def command(*args: str, cache: pathlib.Path, **env: str) -> subprocess.CompletedProcess[str]:
  return subprocess.run([sys.executable, "-m", "tinygrad_llm.tune", *args], cwd=child.ROOT, capture_output=True,
                        text=True, env=environment(cache, **env), timeout=500)

def environment(cache: pathlib.Path, **env: str) -> dict[str, str]:
  return child.environment(CACHEDB=str(cache / "cache.db"), PARALLEL="2", **env)

@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400), (" 2m ", 120)])
def test_budget_argument(text, seconds): assert tune.seconds_of(text) == seconds

@pytest.mark.parametrize("text", ["", "0", "0m", "-3m", "ten", "10 m", "1e9d", "nan"])
def test_rejects_bad_budget(text):
  with pytest.raises(InputError, match="--budget"): tune.seconds_of(text)

@pytest.fixture(scope="module")
def cache(tmp_path_factory): return tmp_path_factory.mktemp("cache")

@pytest.fixture(scope="module")
def model(model_file): return str(model_file(layers=1, types="Q8_0"))

@pytest.fixture(scope="module")
def tuned(cache, model):
  """
  A command that found something. On a busy machine it takes more than one, and each resumes the last one's search.
  """
  for seconds in (5, 10, 20, 40, 80):
    done = command("-m", model, "--budget", f"{seconds}s", cache=cache)
    assert done.returncode == 0, done.stderr
    if entries(cache): break
  return done

def test_printed_results(tuned):
  lines = tuned.stdout.splitlines()
  assert lines[0].split()[:4] == ["kernel", "types", "n", "us"]
  assert any(line.startswith("ffn_gate+ffn_up  ") for line in lines)
  assert lines[-1].startswith("kernels of a token: ")
  assert " of " in lines[-1]
  assert "Traceback" not in tuned.stderr

def test_export_and_import_round_trip(tuned, cache, tmp_path):
  file = tmp_path / "schedules.json"
  done = command("--export", str(file), cache=cache)
  assert done.returncode == 0, done.stderr
  rows = json.loads(file.read_text())["schedules"]
  assert rows
  done = command("--import", str(file), cache=tmp_path)
  assert done.stdout == f"read: {file}, {len(rows)} schedules, {len(rows)} of them for this device\n"
  again = tmp_path / "again.json"
  assert command("--export", str(again), cache=tmp_path).returncode == 0
  imported = json.loads(again.read_text())["schedules"]
  assert [{**row, "extra": {**row["extra"], "imported": True}} for row in rows] == imported

@pytest.mark.parametrize(("text", "said"), some([
  ("", "no JSON"), ("{}", "no schedules"), ("[]", "no schedules"), ('{"schedules": 1}', "no schedules"),
  ('{"schedules": [{"kernel": "x"}]}', r"schedules[0]"), ("[" * 100000, "no JSON"),
  (b"\xff\xfe\x00", "no JSON")], 4))
def test_rejects_bad_schedule_files(text, said, tmp_path):
  file = tmp_path / "schedules.json"
  file.write_bytes(text if isinstance(text, bytes) else text.encode())
  done = command("--import", str(file), cache=tmp_path)
  assert done.returncode == 2
  assert done.stderr.count("\n") == 1
  assert said in done.stderr
  assert str(file) in done.stderr

@pytest.mark.parametrize(("args", "env", "said"), some([
  (("--budget", "soon"), {}, "--budget"), (("--max-context", "0"), {}, "--max-context"),
  (("--depth", "100000"), {}, "--depth"), (("--plot", "a.gif"), {}, ".png or .svg"),
  (("--plot", "/nowhere/a.png"), {}, "--plot"), (("-m", "/nowhere.gguf"), {}, "/nowhere.gguf"),
  (("--import", "/nowhere.json"), {}, "/nowhere.json"), (("--export", "/nowhere/a.json"), {}, "--export"),
  (("--export", "a", "--import", "b"), {}, "--import"), ((), {"DEV": "NULL"}, "DEV=NULL"),
  ((), {"NO_STORED_SCHEDULES": "1"}, "NO_STORED_SCHEDULES")], 0, 5, 9))
def test_bad_input(args, env, said, tmp_path):
  done = command(*args, cache=tmp_path, **env)
  assert done.returncode == 2, done.stderr
  assert done.stderr.count("\n") == 1
  assert said in done.stderr

def test_nothing_to_export(tmp_path):
  done = command("--export", str(tmp_path / "a.json"), cache=tmp_path)
  assert done.returncode == 2
  assert "no schedule was found yet" in done.stderr

def start(cache: pathlib.Path, model: str) -> subprocess.Popen[str]:
  return subprocess.Popen([sys.executable, "-m", "tinygrad_llm.tune", "-m", model, "--budget", "30s"], cwd=child.ROOT,
                          env=environment(cache), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

def journals(cache: pathlib.Path) -> list[pathlib.Path]: return [*cache.glob("cache.db.d/searches-*/*")]
def entries(cache: pathlib.Path) -> list[pathlib.Path]: return [*cache.glob("cache.db.d/schedules-*/*")]

def wait_for(what) -> None:
  end = time.monotonic() + 120
  while not what():
    assert time.monotonic() < end
    time.sleep(0.05)

@pytest.mark.kernel_suite
def test_killed_search_resumes(tmp_path, model):
  """A resumed search does not repeat timings, and never again runs the candidate that ran when it was killed."""
  first = start(tmp_path, model)
  wait_for(lambda: any(len(known(path)) >= 4 for path in journals(tmp_path)))
  first.send_signal(signal.SIGKILL)
  first.wait()
  before = {tuple(map(str, row)) for path in journals(tmp_path) for row in known(path)}
  done = command("-m", model, "--budget", "5s", cache=tmp_path)
  assert done.returncode == 0, done.stderr
  after = [json.loads(path.read_bytes()[32:]) for path in entries(tmp_path)]
  left = {tuple(map(str, row)) for path in journals(tmp_path) for row in known(path)}
  assert before
  assert before <= left or after  # the search finished and removed its journal

def known(path: pathlib.Path) -> list:
  try: return json.loads(path.read_bytes()[32:]).get("known", [])
  except (OSError, ValueError): return []  # it is being replaced

# exit codes of an interrupt; a shell shows both as 130. After an interrupt inside exec() of a string, caught or not,
# Python finally ends by the signal.
INTERRUPTED = (130, -signal.SIGINT)

@extended
@pytest.mark.skipif(os.name != "posix", reason="Ctrl-C is a signal")
def test_ctrl_c_keeps_results(tuned, cache, tmp_path, model):
  """The kernels are compiled already, but no schedules are cached."""
  shutil.copytree(cache, tmp_path := tmp_path / "cache")
  for path in (*entries(tmp_path), *journals(tmp_path)): path.unlink()
  running = start(tmp_path, model)
  wait_for(lambda: entries(tmp_path))
  running.send_signal(signal.SIGINT)
  out, err = running.communicate(timeout=60)
  assert running.returncode in INTERRUPTED, err
  assert out.splitlines()[-1].startswith("kernels of a token")
  assert "Traceback" not in err
