"""Forks of a process with a model: parent and child answer at the same time, and as if alone."""
import itertools
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any
from tests.support import child
import numpy as np
import pytest
import tinygrad_llm
from tinygrad import dtypes
from tinygrad_llm.device import buffers, device
from tinygrad_llm.errors import InputError
from tinygrad_llm.process.forks import in_children

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks")

RENDERED = 40
PROMPTS = [[5, 17, 300], [7, 8, 9, 10, 11], list(range(20, 60))]

class Fork:
  """Runs work() in a fork and returns its result through a pipe."""
  def __init__(self, work: Callable[[], Any]):
    self.end, told = os.pipe()
    self.pid = os.fork()
    if self.pid == 0:
      signal.alarm(60)
      try: os.write(told, json.dumps(work()).encode())
      finally: os._exit(0)
    os.close(told)

  def value(self) -> Any:
    with open(self.end, "rb") as file: data = file.read()
    os.waitpid(self.pid, 0)
    return json.loads(data) if data else "died"

def answers(llm: Any) -> list[Any]:
  """The prompts that the template renders for many messages, and the answers to all PROMPTS, twice."""
  found = [llm.prompt([{"role": "user", "content": f"{i}"}]) for i in range(RENDERED)]
  return found + [list(llm.generate(ids, max_tokens=6, ignore_eos=True)) for ids in PROMPTS * 2]

def wrong(path: str) -> list[str]:
  """The ways to fork that gave other answers than this process alone."""
  llm = tinygrad_llm.load(path, max_context=96)
  alone, process = answers(llm), llm.template._process
  found: dict[str, list[Any]] = {}

  def family() -> list[Any]:
    grandchild = Fork(lambda: answers(llm))
    return [answers(llm), grandchild.value()]
  forks, fork = [Fork(lambda: answers(llm)) for _ in range(2)], Fork(family)
  found["parent"] = [answers(llm)]
  found["children"] = [f.value() for f in forks]
  found["child of a child"] = fork.value()

  forks = []
  thread = threading.Thread(target=lambda: forks.append(Fork(lambda: answers(llm))))
  thread.start()
  thread.join()
  found["beside a fork of a thread"] = [answers(llm)]
  found["from a thread"] = [forks[0].value()]

  with llm.template._lock: fork = Fork(lambda: answers(llm))
  found["with a lock held"] = [fork.value()]

  _kept.append(llm)
  with multiprocessing.get_context("fork").Pool(2) as pool: found["multiprocessing"] = pool.map(_of_model, [0, 1])
  if process is None or process.poll() is not None or llm.template._process is not process:
    found["the template's process"] = [None]
  bad = [name for name, values in found.items() if not values or any(value != alone for value in values)]

  for n in (0, 1, 2, 5, 6):
    ids = llm.generate(PROMPTS[0], max_tokens=6, ignore_eos=True)
    begun = list(itertools.islice(ids, n))
    fork = Fork(partial(list, ids))
    if begun + list(ids) != alone[RENDERED]: bad.append(f"in the middle of an answer, at {n}")
    if fork.value() != alone[RENDERED][n:]: bad.append(f"in a child, in the middle of an answer, at {n}")
  return bad

_kept: list[Any] = []
def _of_model(_: int) -> list[Any]: return answers(_kept[0])

def test_forked_models_answer_concurrently(model_file):
  assert child.call(wrong, str(model_file(types="Q8_0", vocab=381, context=96))).value == []

def beside_a_closed_model(path: str) -> list[Any]:
  """
  A fork's answer while another thread of the parent holds the model's lock, after one's that is closed; a later stream
  of the closed one.
  """
  closed = tinygrad_llm.load(path, max_context=96)
  list(kept := closed.stream(PROMPTS[0], max_tokens=2, ignore_eos=True))
  llm, held, leave = tinygrad_llm.load(path, max_context=96), threading.Event(), threading.Event()
  closed.close()
  def hold() -> None:
    with llm.lock:
      held.set()
      leave.wait(60)
  want = list(llm.generate(PROMPTS[0], max_tokens=6, ignore_eos=True))
  thread = threading.Thread(target=hold)
  thread.start()
  held.wait()
  def again() -> str:
    try: return str(list(closed.stream(PROMPTS[0])))
    except InputError as e: return str(e)
  forks = [Fork(lambda: list(llm.generate(PROMPTS[0], max_tokens=6, ignore_eos=True)) == want), Fork(again)]
  found = [fork.value() for fork in forks]
  leave.set()
  thread.join()
  return [*found, kept.finish]

def test_fork_beside_a_closed_model(model_file):
  found = child.call(beside_a_closed_model, str(model_file(types="Q8_0", vocab=381, context=96))).value
  assert found == [True, "LLM: closed; load the model again", "length"]

class Owner:
  """Has a lock, as far as a fork knows."""

def test_an_error_of_one_owner_leaves_no_other_locked():
  def fails(_: Owner) -> None: raise ValueError("no place")
  owners, told = [Owner() for _ in range(3)], list[Owner]()
  for owner, forget in zip(owners, (told.append, fails, told.append)): in_children(owner, forget)
  assert Fork(lambda: [owners.index(x) for x in told]).value() == [0, 2]

def shared(sizes: list[int]) -> list[int]:
  """The sizes at which a CPU buffer shows a fork's writes."""
  device.check_device()
  tensors = [buffers.empty((size // 4,), dtypes.uint32) for size in sizes]
  def write(value: int) -> None:
    for tensor in tensors: buffers.fill(tensor, lambda memory: memory.fill(value))
  write(1)
  Fork(lambda: write(2)).value()
  return [size for size, tensor in zip(sizes, tensors) if np.any(buffers.read(tensor, size // 4) != 1)]

@pytest.mark.parametrize("switch", ["", "NO_HUGE_PAGES", "NO_PATCHES"])
def test_buffers_are_private_to_forks(switch):
  env = {switch: "1"} if switch else {}
  assert child.call(shared, [64, 1 << 20, 4 << 20], **env).value == []
