"""tests/support/warm.py: a call has its own environment, folder, output and end, as a process of its own has."""
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support import child

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks of warm processes are Linux's")
seen: list[int] = []

def around(number: int) -> list:
  """The surroundings of a call, and the numbers of earlier ones."""
  from tinygrad_llm.patches import is_on
  print("said", number)
  seen.append(number)
  return [seen, is_on("lanes"), os.environ.get("OF_A_TEST"), os.getcwd(), threading.active_count()]

def raises() -> None: raise ValueError("of this call")
def dies() -> None: os.kill(os.getpid(), signal.SIGKILL)
def exits() -> None: sys.exit(3)
def at_exit() -> None:
  """A thread that outlives the function."""
  threading.Thread(target=lambda: (time.sleep(0.1), print("later"))).start()

def at_once(folder: str, count: int) -> int:
  """Waits until `count` calls run beside each other."""
  with open(os.path.join(folder, str(os.getpid())), "x"): pass
  until = time.monotonic() + 60
  while len(os.listdir(folder)) < count and time.monotonic() < until: time.sleep(0.01)
  return len(os.listdir(folder))

def test_calls_share_nothing(tmp_path, monkeypatch):
  assert child.call(around, 1) == ([[1], True, None, os.getcwd(), 1], "said 1\n")
  monkeypatch.chdir(tmp_path)
  assert child.call(around, 2, NO_LANES="1") == ([[2], False, None, str(tmp_path), 1], "said 2\n")
  assert child.call(around, 3, OF_A_TEST="x").value == [[3], True, "x", str(tmp_path), 1]
  assert child.call(around, 4).value == [[4], True, None, str(tmp_path), 1] and not seen

@pytest.mark.parametrize(("function", "words"), [(raises, "ValueError: of this"), (dies, "dies"), (exits, "exits")])
def test_failed_calls(function, words):
  with pytest.raises(AssertionError, match=words): child.call(function)
  assert child.call(around, 5).value[0] == [5]

def test_exit_waits_for_threads(): assert child.call(at_exit).output == "later\n"

def test_calls_beside_each_other(tmp_path):
  with ThreadPoolExecutor(3) as pool: found = [*pool.map(lambda _: child.call(at_once, str(tmp_path), 3).value, "abc")]
  assert found == [3, 3, 3]

def test_other_libraries_are_a_start_of_their_own():
  """A fork cannot change variables that a root reads at its start."""
  assert not child.nursery().fits(child.environment(OMP_NUM_THREADS="1"))
  assert child.call(around, 6, OMP_NUM_THREADS="1", OF_A_TEST="y").value == [[6], True, "y", os.getcwd(), 1]
