"""compile_time/forked_lowering.py: forks lower the same kernels, and end with their work or their parent."""
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from tests.support.extended import extended, some
from tests.support.child import ROOT
from tinygrad_llm.patches import is_on

pytestmark = pytest.mark.skipif(sys.platform != "linux" or not is_on("forked_lowering"), reason="nothing is forked")

# prints kernels lowered in this process, forks, kernels in all, and a hash of all sources
LOWER = '''
import functools, hashlib, os, sys
import tinygrad_llm
from tinygrad import Tensor, codegen
from tinygrad_llm.patches.cache import programs
from tinygrad_llm.patches.compile_time import forked_lowering
%s
here, forks = [], []
stock, fork = codegen.full_rewrite_to_sink, os.fork
def counted(ast, *args, **kwargs):
  here.append(ast)
  return stock(ast, *args, **kwargs)
codegen.full_rewrite_to_sink = counted
def forked():
  if pid := fork(): forks.append(pid)
  return pid
os.fork = forked
x = Tensor.empty(64, 96)
lazy = [((x * i).softmax() @ Tensor.empty(96, 32 + i)).sum(0) for i in range(1, 9)]
linear, _ = Tensor.linear_with_vars(*lazy)
del here[:]
made = programs.lower_and_compile(linear)
text = "".join(c.src[0].src[2].arg for c in made.src)
print(len(here), len(forks), len(made.src), hashlib.sha256(text.encode()).hexdigest())
%s
'''

def lower(tmp_path: pathlib.Path, before: str = "", after: str = "", **env: str) -> tuple[int, int, int, str]:
  env = {"CACHEDB": str(tmp_path / "cache.db"), "PYTHONPATH": str(ROOT), "DEV": "CPU", "PARALLEL": "3", **env}
  done = subprocess.run([sys.executable, "-c", LOWER % (before, after)], env=os.environ | env, capture_output=True,
                        text=True, timeout=300)
  assert done.returncode == 0, done.stderr[-2000:]
  here, forks, kernels, sources = done.stdout.split()
  return int(here), int(forks), int(kernels), sources

NOW = "forked_lowering._START = 0"  # forks even where it does not pay

@pytest.mark.parametrize("env", some([{}, {"CCACHE": "0"}], 0), ids=str)
def test_forks_make_the_same_kernels(tmp_path, env):
  """Forks return their kernels through the disk cache, or through temporary files without one."""
  alone = lower(tmp_path / "a", PARALLEL="0", **env)
  here, forks, kernels, sources = lower(tmp_path / "b", NOW, **env)
  assert alone[1:] == (0, kernels, sources) and forks == 2
  assert 0 < here < alone[0]

def test_kernels_of_forks_are_cached(tmp_path):
  first = lower(tmp_path, NOW)
  assert lower(tmp_path, NOW) == (0, 0, *first[2:])

@pytest.mark.parametrize("env", some([{"NO_FORKED_LOWERING": "1"}, {"PARALLEL": "1"}], 0), ids=str)
def test_conditions_without_forks(tmp_path, env):
  assert lower(tmp_path, NOW + "\nprograms.start = 100", **env)[1] == 0

def test_no_fork_while_gpu_driver_is_open(tmp_path):
  """Nothing is forked while a device other than the CPU is open."""
  assert lower(tmp_path, NOW + "\nfrom tinygrad import Device\nprograms.start = 100\n"
               "Device._opened_devices.add('CUDA:1')", "Device._opened_devices.discard('CUDA:1')")[1] == 0

@extended
def test_parent_does_the_work_of_dead_fork(tmp_path):
  """The parent lowers the kernels that a dead fork has not made."""
  die = NOW + "\nwork = forked_lowering._work\ndef _work(*args): os._exit(1)\nforked_lowering._work = _work"
  alone = lower(tmp_path / "a", PARALLEL="0")
  assert lower(tmp_path / "b", die) == (alone[0], 2, *alone[2:])

@extended
def test_forks_are_reaped(tmp_path):
  lower(tmp_path, NOW, """for pid in forks:
  try: os.kill(pid, 0)
  except ProcessLookupError: continue
  sys.exit(f"process {pid} is there")""")

def hear_interrupts() -> None: signal.signal(signal.SIGINT, signal.SIG_DFL)  # background jobs ignore it

@pytest.mark.parametrize("how", some([signal.SIGINT, signal.SIGKILL], 1))
def test_forks_end_with_their_parent(tmp_path, how):
  """Forks end when their parent dies, even if it cannot tell them."""
  slow = NOW + """
import time
work = forked_lowering._work
def _work(jobs, *args):
  take = jobs.take
  def slow():
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(60)
  jobs.take = slow
  work(jobs, *args)
forked_lowering._work = _work
"""
  env = {"CACHEDB": str(tmp_path / "cache.db"), "PYTHONPATH": str(ROOT), "DEV": "CPU", "PARALLEL": "3"}
  child = subprocess.Popen([sys.executable, "-c", LOWER % (slow, "")], env=os.environ | env, stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL, text=True, preexec_fn=hear_interrupts)
  forks = [int(child.stdout.readline()) for _ in range(2)]
  deadline, pause = time.monotonic() + 60, 0.5
  while child.poll() is None:  # Python drops an interrupt during a __del__, so it is sent again with longer pauses
    assert time.monotonic() < deadline
    child.send_signal(how)
    time.sleep(pause := 2 * pause)
  assert child.wait() != 0
  while any(pathlib.Path(f"/proc/{pid}").exists() and "State:\tZ" not in pathlib.Path(f"/proc/{pid}/status").read_text()
            for pid in forks):
    assert time.monotonic() < deadline
    time.sleep(0.05)
