"""A model's memory is freed when it is closed or dropped; using a closed model is an InputError."""
import gc
import pathlib
import random
import subprocess
import sys
import threading
import time
from tests.support import child
import pytest
import tinygrad_llm
from tests.support.extended import extended
from tests.support.resident import resident
from tinygrad import Device
from tinygrad_llm import InputError
from tinygrad_llm.device.memory import device_memory_bytes
from tinygrad_llm.device.release import release
from tinygrad_llm.engine import closed
from tinygrad_llm.engine.steps import PieceSteps

HELLO = [{"role": "user", "content": "hi"}]

@pytest.fixture
def model(model_file) -> pathlib.Path: return model_file(types="Q8_0", vocab=381, context=96)

def loads(paths: list[str], answers: bool) -> list[int]:
  """Resident memory after each load and its end (closed, error or dropped), without Python's cycle collector."""
  gc.disable()
  found, kept, steps = [], [], PieceSteps.__init__
  def broken(self: PieceSteps, *args) -> None:
    raise InputError("an error when all else is loaded")
  for i, path in enumerate(paths):
    context = 4096 if i % 2 else 64
    if i % 4 == 0:
      with tinygrad_llm.load(path, max_context=context) as llm:
        if answers: kept.append(llm.generate([1, 2, 3], max_tokens=8))  # half read, and kept
        for answer in kept[-1:]: next(answer)
    elif i % 4 == 1:
      PieceSteps.__init__ = broken  # type: ignore[method-assign]
      try: tinygrad_llm.load(path, max_context=context)
      except InputError as e: kept.append(iter([e]))
      finally: PieceSteps.__init__ = steps  # type: ignore[method-assign]
    else:
      llm = tinygrad_llm.load(path, max_context=context)
      if answers: assert len(list(llm.generate([1, 2, 3], max_tokens=4, ignore_eos=True))) == 4
      if i % 4 == 2: llm.close()
      del llm
    found.append(resident())
  return found

@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_repeated_loads_free_memory(model_file):
  """Models of different sizes, 15 MB and more, end in turn: closed, in error, closed, dropped, .."""
  sizes = [2048 + 128 * i for i in range(4)]
  paths = [str(model_file(types="F16", dim=512, ffn=size, layers=3, blocks=True, vocab=512)) for size in sizes]
  found = child.call(loads, paths * 2, False).value
  assert max(found[3:]) <= 1.1 * found[2]

@extended
@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.parametrize("order", ["sizes", "random"])
def test_twenty_loads_and_answers_free_memory(model_file, order):
  paths = [str(model_file(types="Q8_0", dim=256 + 64 * i, ffn=1024, heads=4 + i, kv_heads=1, layers=1, blocks=True))
           for i in range(3)] * 7
  if order == "random": random.Random(1).shuffle(paths)
  found = child.call(loads, paths[:20], True).value
  assert found[19] <= 1.1 * found[2]

def test_closed_model_raises(model):
  llm = tinygrad_llm.load(str(model), max_context=96)
  ids = llm.generate([5, 17, 300], max_tokens=20, ignore_eos=True)
  pieces = llm.chat(HELLO, max_tokens=20)
  next(ids), next(pieces, None)
  process = llm.template._process
  llm.close()
  llm.close()
  assert process is not None and process.poll() is not None
  for needs in (lambda: next(ids), lambda: llm.logits([1]), lambda: llm.prefill([1]), lambda: llm.step(1, 0),
                lambda: llm.generate([1]), lambda: llm.chat(HELLO), lambda: llm.prompt(HELLO), llm.decode_cost,
                llm.__enter__, lambda: list(llm.text([1])), lambda: llm.tokenizer.encode("a"),
                lambda: llm.weights[("a",)], lambda: llm.engine.steps):
    with pytest.raises(InputError, match="^LLM: closed; load the model again$"): needs()
  assert (llm.path, llm.max_context) == (model, 96)

@pytest.mark.parametrize("how", ["stream", "generate"])
def test_step_that_never_returns(model, monkeypatch, how):
  """close() waits for a while, and then frees what the step does not use."""
  monkeypatch.setattr(closed, "STEP", 0.2)
  llm, reached, opens = tinygrad_llm.load(str(model), max_context=96), threading.Event(), threading.Event()
  def sticks(*_: object) -> None:
    reached.set()
    assert opens.wait(60)
  llm.prepare(1)
  monkeypatch.setattr(llm.engine.steps, "piece", sticks)
  answer = {"stream": llm.stream, "generate": llm.generate}[how]([5, 17, 300], max_tokens=8)
  found = []
  def read() -> None:
    try: found.extend(answer)
    except InputError as e: found.append(e)
  (reader := threading.Thread(target=read, daemon=True)).start()
  assert reached.wait(60)
  begun = time.perf_counter()
  llm.close()
  assert time.perf_counter() - begun < 10
  with pytest.raises(InputError, match="closed"): llm.logits([1])
  opens.set()
  reader.join(60)
  assert not reader.is_alive() and all(isinstance(e, InputError) for e in found)

def test_device_memory_is_freed(model):
  """No device memory is held after a `with` block, also after an error in it; another model goes on."""
  device = Device.DEFAULT
  beside = tinygrad_llm.load(str(model), max_context=96)
  answer = beside.generate([5, 17, 300], max_tokens=8, ignore_eos=True)
  first = [next(answer), next(answer)]
  gc.collect()
  release(device)
  before = device_memory_bytes(device)
  with pytest.raises(ValueError), tinygrad_llm.load(str(model), max_context=96) as llm:  # noqa: PT012
    expected = list(llm.generate([5, 17, 300], max_tokens=8, ignore_eos=True))
    assert device_memory_bytes(device) > before
    raise ValueError
  assert device_memory_bytes(device) == before
  assert not any(getattr(Device[device].allocator, "cache", {}).values())
  assert first + list(answer) == expected

GLOBAL = """
import os, sys, types
held = sys.modules["held"] = types.ModuleType("held")  # its names go after those of the package's modules
import tinygrad_llm
from tinygrad_llm.engine.llm import LLM
def ends(llm, ends=LLM.__del__, write=os.write, names=LLM.__del__.__globals__):
  write(1, b"names are gone" if names["sys"] is None else b"names are there")
  try: ends(llm)
  except BaseException as e: write(2, repr(e).encode())
LLM.__del__ = ends
held.llm = tinygrad_llm.load(sys.argv[1], max_context=64)
"""

def test_global_model_at_exit(model):
  """A model that lives until the interpreter takes the names of modules away ends without an error."""
  done = subprocess.run([sys.executable, "-c", GLOBAL, str(model)], env=child.environment(), text=True,
                        capture_output=True, timeout=300)
  assert (done.returncode, done.stdout, done.stderr) == (0, "names are gone", "")
