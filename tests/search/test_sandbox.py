"""Candidates that hang, crash, lie, take all memory, or whose process is killed: a search survives each of them."""
import os
import pathlib
import signal
import subprocess
import sys
import time

import child
import gpu_numbers
import planted_child
import pytest
import search_kernel
from tinygrad_llm.patches.cache import schedules
from tinygrad_llm.patches.search import measure, tuner
from tinygrad_llm.patches.search.sandbox import Failed, Process, Sandbox

SECONDS, SECONDS_OF_HANGS = 8, 30
PLANTED = str(pathlib.Path(planted_child.__file__))

@pytest.fixture(scope="module")
def opencl() -> dict[str, str]:
  if (env := gpu_numbers.opencl()) is None: pytest.skip("no OpenCL runtime with halves is here")
  return env

@pytest.fixture
def process():
  made = Process()
  yield made
  made.stop()

def test_a_process_answers(process):
  process.setup = [("kernel", (8 << 30, *arguments()))]
  us, code = process.ask("lower", None, seconds=60)
  assert us > 0
  assert len(code) == 16
  with pytest.raises(Failed, match="AttributeError"): process.ask("nothing of that name", seconds=60)
  assert process.ask("lower", None, seconds=60) == (us, code)  # it goes on

def arguments():
  from tinygrad_llm.patches.cache import serialize
  kernel = search_kernel.product()
  return serialize.dump([kernel.ast]), kernel.device, kernel.variables, 1 << 20

def test_a_process_that_dies_is_another_next_time(process):
  process.setup = [("kernel", (8 << 30, *arguments()))]
  process.ask("lower", None, seconds=60)
  first = process._process
  os.kill(first.pid, signal.SIGKILL)
  with pytest.raises(Failed, match="died"):
    for _ in range(2): process.ask("lower", None, seconds=60)  # the first may yet be written to a pipe that none reads
  assert process.ask("lower", None, seconds=60)
  assert process._process is not first

def test_a_process_that_is_too_slow_is_killed(process):
  process.setup = [("kernel", (8 << 30, *arguments()))]
  process.ask("lower", None, seconds=60)
  pid = process._process.pid
  with pytest.raises(Failed, match="too slow"): process.ask("reference", 1, seconds=0)
  with pytest.raises(ProcessLookupError): os.kill(pid, 0)

def search(fault: str, folder: str) -> dict:
  """A search among planted faults: what came of it."""
  schedules.STORE.name, tuner.JOURNALS.name = f"schedules-{folder}", f"searches-{folder}"
  measure.FIRST, measure.COMPILE = 1.0, 1.0 if fault == "slow" else 30
  kernel = search_kernel.product(96, 256)
  with Sandbox(2, (sys.executable, PLANTED, fault)) as sandbox:
    result = tuner.search(kernel, sandbox, SECONDS_OF_HANGS if fault == "hang" else SECONDS, cold=1 << 18)
    ends = [process._process.pid for process in sandbox.processes if process._process is not None]
  planted = [opts for opts in result.refused if planted_child.is_planted(opts)]
  return {"timed": result.timed, "planted": len(planted), "reasons": sorted({result.refused[o] for o in planted}),
          "others": [why for o, why in result.refused.items() if o not in planted and "no time" not in why],
          "winner planted": planted_child.is_planted(result.opts), "before": result.before, "after": result.after,
          "left": [pid for pid in ends if pathlib.Path(f"/proc/{pid}").exists()]}

REASONS = {"hang": "too slow", "segfault": "died of SIGSEGV", "wrong": "wrong numbers", "memory": "MemoryError",
           "killed": "died of SIGKILL", "slow": "too slow"}

def check(found: dict, fault: str) -> None:
  assert found["planted"] > 0
  assert found["timed"] > 1
  assert found["before"] > 0
  assert not found["winner planted"]
  assert found["left"] == []
  known = (REASONS[fault], "no time is left")
  assert all(any(why in reason for why in known) for reason in found["reasons"]), found["reasons"]

@pytest.mark.parametrize("fault", planted_child.FAULTS)
def test_planted_on_the_cpu(fault): check(child.call(search, fault, fault).value, fault)

@pytest.mark.parametrize("fault", ["hang", "segfault", "wrong"])
def test_planted_in_kernels_of_groups(fault, opencl):
  """GPU-shaped kernels, on the OpenCL CPU runtime."""
  check(child.call(search, fault, f"cl-{fault}", **opencl).value, fault)

PARENT = """
import time
from tinygrad_llm.patches.search.sandbox import Process
Process()._start()
time.sleep(3600)
"""

def test_a_child_ends_with_its_parent():
  """However that ends."""
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
