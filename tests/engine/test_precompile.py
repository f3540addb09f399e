"""engine/precompile.py: a fork compiles the kernels of an answer in advance; without it the answer is the same."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from tests.support.child import ROOT
from tests.support.extended import extended, some
from tinygrad_llm.patches import is_on

pytestmark = pytest.mark.skipif(sys.platform != "linux" or not all(map(is_on, ("forked_lowering", "captures"))),
                                reason="nothing is forked")

# prints the number of forks, the steps captured in this process, whether a fork is alive, and the answer's ids
ANSWER = '''
import json, os, sys
import tinygrad_llm
from tinygrad_llm.engine import precompile
from tinygrad_llm.engine.batch.row_steps import RowSteps
captured = []
for name in ("capture_piece", "capture_decode"):
  def noted(self, *args, name=name, stock=getattr(RowSteps, name)):
    captured.append(name)
    return stock(self, *args)
  setattr(RowSteps, name, noted)
precompile.PATIENCE = 600  # the tests beside this one may take all processors
pids, fork = [], precompile.forked_lowering.fork
def forked(work):
  pids.append(fork(work))
  return pids[-1]
precompile.forked_lowering.fork = forked
llm = tinygrad_llm.load(sys.argv[1], ahead=True, max_context=96, chunk=16)
forks = [*pids]
%s
answer = [*llm.generate([5, 6, 7], max_tokens=4)]
if llm._ahead is not None: llm._ahead.stop()
def is_alive(pid):
  try: os.kill(pid, 0)
  except ProcessLookupError: return False
  return True
print(json.dumps([len(forks), captured, any(map(is_alive, forks)), answer]))
'''

# another fork closes its model; the fork that works for this process goes on
CHILD = '''
if (pid := os.fork()) == 0:
  llm.close()
  os._exit(0)
os.waitpid(pid, 0)
'''

Answer = tuple[int, list[str], bool, list[int]]

def answer(model: pathlib.Path, cache: pathlib.Path, then: str = "", **env: str) -> Answer:
  env = {"CACHEDB": str(cache), "PYTHONPATH": str(ROOT), "DEV": "CPU", "PARALLEL": "2", **env}
  done = subprocess.run([sys.executable, "-c", ANSWER % then, str(model)], env=os.environ | env, capture_output=True,
                        text=True, timeout=300)
  assert done.returncode == 0, done.stderr[-2000:]
  forks, captured, alive, ids = json.loads(done.stdout)
  return forks, captured, alive, ids

@pytest.fixture
def model(model_file) -> pathlib.Path: return model_file(types="F32", layers=1, vocab=384, context=96)

def test_forks_capture_and_parent_reads(model, tmp_path):
  alone = answer(model, tmp_path / "a.db", PARALLEL="0")
  assert alone[:3] == (0, ["capture_piece", "capture_decode"], False)
  first = answer(model, tmp_path / "b.db", CHILD)
  assert first == (2, [], False, alone[3])
  assert answer(model, tmp_path / "b.db") == (0, [], False, alone[3])  # everything is cached already

@extended
@pytest.mark.parametrize(("which", "here"), [("0", ["capture_piece"]), ("1", ["capture_decode"])])
def test_dead_fork(model, tmp_path, which, here):
  """This process does the work of a fork that died; a fork of the next process does it again."""
  died = answer(model, tmp_path / "c.db", f"os.kill(forks[{which}], 9)")
  assert died[:3] == (2, here, False)
  assert answer(model, tmp_path / "c.db") == (1, [], False, died[3])
  assert answer(model, tmp_path / "c.db") == (0, [], False, died[3])

def test_starved_fork(model, tmp_path):
  """A fork that gets no processor time is not waited for."""
  starved = answer(model, tmp_path / "e.db", "precompile.PATIENCE = 0.5\nos.kill(forks[1], 19)  # SIGSTOP")
  assert starved[:3] == (2, ["capture_decode"], False)

@pytest.mark.parametrize("env", some([{"BEAM": "1"}, {"JIT": "0"}, {"CCACHE": "0"}, {"NO_CAPTURES": "1"},
                                 {"NO_FORKED_LOWERING": "1"}, {"PARALLEL": "1"}], 3, 4), ids=str)
def test_conditions_without_precompile(env):
  code = "import tinygrad_llm; from tinygrad import Device; Device['CPU']; " \
    "from tinygrad_llm.engine import precompile; print(precompile.is_possible())"
  env = {**os.environ, "DEV": "CPU", "PARALLEL": "2", "PYTHONPATH": str(ROOT), **env}
  assert subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True).stdout == "False\n"

def test_forks_end_with_the_command(model, tmp_path):
  """The forks end, even if the command is killed while they work."""
  env = os.environ | {"CACHEDB": str(tmp_path / "d.db"), "DEV": "CPU", "PARALLEL": "2", "PYTHONPATH": str(ROOT)}
  code = "import sys, time, tinygrad_llm; llm = tinygrad_llm.load(sys.argv[1], ahead=True); print(1, flush=True); " \
    "time.sleep(60)"
  process = subprocess.Popen([sys.executable, "-c", code, str(model)], env=env, stdout=subprocess.PIPE)
  assert process.stdout is not None and process.stdout.readline() == b"1\n"
  children = {pid: pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
              for task in pathlib.Path(f"/proc/{process.pid}/task").iterdir()
              for pid in (task / "children").read_text().split()}
  assert sum(code.encode() in line for line in children.values()) == 2  # two forks; a third child renders templates
  process.send_signal(signal.SIGKILL)
  process.wait()
  assert process.stdout.read() == b""  # the pipe ends when its last process has ended
  ends = time.monotonic() + 30
  while any(_is_alive(pid) for pid in children) and time.monotonic() < ends: time.sleep(0.01)
  assert not any(_is_alive(pid) for pid in children)

def _is_alive(pid: str) -> bool:
  try: return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
  except (FileNotFoundError, ProcessLookupError): return False
