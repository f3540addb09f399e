"""host/process_lock.py and host/thread_safety.py: threads load, compile and answer at once."""
import asyncio
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tests.support import child
import pytest
import tinygrad_llm
from tests.support.extended import extended
from tinygrad import Device, Tensor
from tinygrad.engine import realize
from tinygrad.helpers import Context
from tinygrad_llm.engine.llm import LLM
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.host import process_lock, thread_safety
from tinygrad_llm.patches.host.process_lock import ProcessLock

pytestmark = pytest.mark.skipif(not is_on("thread_safety"), reason="it is off")

# *** models, with empty caches

def in_threads(path: str, seed: int, contexts: list[int]) -> list[bool]:
  """
  Whether each answer, given concurrently, equals a single thread's answer.

  Each thread loads a model for its context and answers; for odd contexts a fork compiles. One more thread answers with
  the main thread's model, another runs in asyncio's executor. They start at random times, and meanwhile a fork of the
  process answers, too.
  """
  sys.setswitchinterval(1e-4)
  chance, here, spare = random.Random(seed), *(tinygrad_llm.load(path, max_context=64, chunk=8) for _ in range(2))
  def answer(llm: LLM) -> list[int]: return [*llm.generate([5, 6, 7, 8], max_tokens=6, ignore_eos=True)]
  def anew(context: int) -> list[int]:
    return answer(tinygrad_llm.load(path, max_context=context, chunk=8, ahead=context % 2 == 1))
  async def awaited() -> list[int]: return await asyncio.get_running_loop().run_in_executor(None, anew, 64)
  jobs = [lambda: answer(here), lambda: asyncio.run(awaited()), *(partial(anew, context) for context in contexts)]
  def later(seconds: float, work: Callable[[], list[int]]) -> list[int]:
    time.sleep(seconds)
    return work()
  end, told = os.pipe()
  with ThreadPoolExecutor(len(jobs)) as pool:
    answers = [pool.submit(later, chance.uniform(0, 0.3), job) for job in jobs]
    time.sleep(0.5)
    if (pid := os.fork()) == 0:
      signal.alarm(200)
      try: os.write(told, json.dumps(answer(spare)).encode())
      finally: os._exit(0)
    os.close(told)
    found = [x.result() for x in answers]
  found.append(json.loads(os.read(end, 1000)))
  os.waitpid(pid, 0)
  return [x == answer(here) for x in found]

@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks")
@pytest.mark.parametrize(("contexts", "parallel"), [([64], "0"), pytest.param([50, 51, 64, 53], "2", marks=extended)])
def test_threads_with_an_empty_cache(model_file, tmp_path, contexts: list[int], parallel: str):
  path = str(model_file(types="F32", layers=1, vocab=384, context=64))
  made = child.call(in_threads, path, sum(contexts), contexts, CACHEDB=str(tmp_path / "cache.db"), PARALLEL=parallel)
  assert made.value == [True] * (len(contexts) + 3)

# *** the lock

def test_lock_is_fair():
  """A thread that asks again at once does not get the lock before a waiting thread."""
  lock, order, end = ProcessLock(), [], threading.Event()
  def work(name: str) -> None:
    for _ in range(20):
      with lock:
        order.append(name)
        end.wait(0.002)
  threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
  for thread in threads: thread.start()
  for thread in threads: thread.join()
  turns = sum(a != b for a, b in zip(order, order[1:]))
  assert turns > 20

def test_lock_is_released_on_error():
  lock = ProcessLock()
  def fail() -> None:
    with lock, lock: raise KeyboardInterrupt
  with pytest.raises(KeyboardInterrupt): fail()
  assert not lock.is_held()
  taken: list[bool] = []
  (thread := threading.Thread(target=lambda: taken.append(lock.acquire(timeout=5)))).start()
  thread.join()
  assert taken == [True]

@pytest.mark.parametrize("patience", [30.0, 0.1])
def test_forked_child_finds_lock_free(monkeypatch, patience: float):
  """A forked child finds the lock free, whether the fork waited for the holder or gave up."""
  monkeypatch.setattr("tinygrad_llm.patches.host.process_lock.PATIENCE", patience)
  lock, held, go = ProcessLock(), threading.Event(), threading.Event()
  def hold() -> None:
    with lock:
      held.set()
      go.wait(0.5)
  (thread := threading.Thread(target=hold)).start()
  held.wait()
  lock.before_fork()
  waited = not go.is_set() and lock.is_held()
  assert waited == (patience > 1)
  if (pid := os.fork()) == 0:
    lock.after_fork(True)
    os._exit(0 if lock.acquire(timeout=5) else 1)
  lock.after_fork(False)
  go.set()
  thread.join()
  assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
  assert lock.acquire(timeout=5)

def threads_while_waiting() -> float:
  """Seconds of a fork while the lock's holder starts threads, for which Python takes a lock of its own."""
  def hold() -> None:
    with process_lock.lock:
      held.set()
      time.sleep(0.3)
      with ThreadPoolExecutor(1) as pool: pool.submit(int).result()
  held, started = threading.Event(), time.monotonic()
  (thread := threading.Thread(target=hold)).start()
  held.wait()
  if (pid := os.fork()) == 0: os._exit(0)
  os.waitpid(pid, 0)
  thread.join()
  return time.monotonic() - started

@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks")
def test_fork_waiting_for_lock_blocks_no_thread():
  assert child.call(threads_while_waiting).value < process_lock.PATIENCE / 2

# *** shared state

def elsewhere(work):
  """The result of `work` in another thread."""
  with ThreadPoolExecutor(1) as pool: return pool.submit(work).result()

def test_capture_ignores_other_threads():
  """A capture does not record the work of another thread."""
  realize.capturing.append(taken := [])
  try: assert elsewhere(lambda: (Tensor([1, 2, 3]) + len(realize.capturing)).tolist()) == [1, 2, 3]
  finally: realize.capturing.clear()
  assert taken == []

def test_a_device_is_opened_once(monkeypatch):
  monkeypatch.setattr(thread_safety, "_devices", {})
  opened: list[str] = []
  def slowly(self: object, name: str) -> str:
    if name not in opened:  # as functools.cache would
      time.sleep(0.1)
      opened.append(name)
    return name
  monkeypatch.setattr(thread_safety, "_open", slowly)
  with ThreadPoolExecutor(4) as pool: list(pool.map(lambda _: Device["CPU"], range(4)))
  assert opened == ["CPU"]

def test_a_device_is_used_while_another_thread_compiles():
  with thread_safety.lock, Context(ALLOW_DEVICE_USAGE=0):
    with pytest.raises(AssertionError): Device["CPU"]
    assert elsewhere(lambda: Device["CPU"].device) == "CPU"

def test_buffers_created_while_listing():
  before = Tensor([1, 2]).realize()
  for i, u in enumerate(thread_safety.Buffers()):
    if i < 3: Tensor([i]).realize()
    if u is before.uop.base: break
  else: raise AssertionError("it is not listed")
