"""A search survives candidates that hang, crash, compute wrong results, take all memory, or are killed."""
import os
import pathlib
import signal
import subprocess
import sys
import time

from tests.support import child
from tests.gpu import gpu_numbers
import pytest
from tests.support.extended import sample
from tests.tools import search_faults
from tests.support import search_kernel
from tinygrad_llm.patches.search.sandbox import Failed, Process


@pytest.fixture(scope="module")
def opencl() -> dict[str, str]:
  if (env := gpu_numbers.opencl()) is None: pytest.skip("no OpenCL runtime with halves is here")
  return env

@pytest.fixture
def process():
  made = Process()
  yield made
  made.stop()

def test_process_answers(process):
  process.setup = [("kernel", (8 << 30, *arguments()))]
  us, code = process.ask("lower", None, seconds=60)
  assert us > 0
  assert len(code) == 16
  with pytest.raises(Failed, match="AttributeError"): process.ask("nothing of that name", seconds=60)
  assert process.ask("lower", None, seconds=60) == (us, code)  # the process still works

def arguments():
  from tinygrad_llm.patches.cache import serialize
  kernel = search_kernel.product()
  return serialize.dump([kernel.ast]), kernel.device, kernel.variables, 1 << 20

def test_dead_process_is_replaced(process):
  process.setup = [("kernel", (8 << 30, *arguments()))]
  process.ask("lower", None, seconds=60)
  first = process._process
  os.kill(first.pid, signal.SIGKILL)
  with pytest.raises(Failed, match="died"):
    for _ in range(2): process.ask("lower", None, seconds=60)  # the first request may still be written to the dead pipe
  assert process.ask("lower", None, seconds=60)
  assert process._process is not first

def test_slow_process_is_killed(process):
  process.setup = [("kernel", (8 << 30, *arguments()))]
  process.ask("lower", None, seconds=60)
  pid = process._process.pid
  with pytest.raises(Failed, match="too slow"): process.ask("reference", 1, seconds=0)
  with pytest.raises(ProcessLookupError): os.kill(pid, 0)

@pytest.mark.parametrize("fault", sample(["hang", "segfault", "wrong", "memory"], ["wrong"]))
def test_planted_faults_on_cpu(fault): assert search_faults.survives(fault) == ""

@pytest.mark.parametrize("fault", ["segfault"])
def test_planted_faults_in_gpu_kernels(fault, opencl):
  """Faults in GPU-shaped kernels, on the OpenCL CPU runtime; `make search-faults` runs the other faults, too."""
  assert search_faults.survives(fault, **opencl) == ""

PARENT = """
import time
from tinygrad_llm.patches.search.sandbox import Process
Process()._start()
time.sleep(3600)
"""

def test_child_ends_with_parent():
  """A child ends with its parent, even if the parent is killed."""
  parent = subprocess.Popen([sys.executable, "-c", PARENT], cwd=child.ROOT)
  try:
    pid = wait_for(lambda: next(iter(children_of(parent.pid)), None))
    parent.kill()
    parent.wait()
    wait_for(lambda: not pathlib.Path(f"/proc/{pid}").exists() or None)
  finally: parent.kill()

def children_of(pid: int) -> list[int]:
  path = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
  return [int(x) for x in path.read_text().split()] if path.exists() else []

def wait_for(what, seconds: float = 30):
  end = time.monotonic() + seconds
  while (found := what()) is None:
    assert time.monotonic() < end
    time.sleep(0.05)
  return found
