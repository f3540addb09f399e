"""Models whose rows are launched ahead: the tokens of generate(), on a CPU, a driver's stub and the simulated GPU."""
import pathlib
import random
import re
from typing import Any

import numpy as np
import pytest
from tests.gpu.test_card import on_card
from tests.support import child
from tests.support.card import answers, build
from tests.support.extended import extended, sample
from tests.support.model_cases import MODELS
from tests.support.read_at_once import reader
from tests.tools.kernel_cases import has_cuda_wheels, missing

import tinygrad_llm
from tinygrad_llm.analysis.programs import compiled
from tinygrad_llm.device.buffers import fill, without_memory
from tinygrad_llm.device.captured import scheduled
from tinygrad_llm.device.device import open_target
from tinygrad_llm.engine import llm as llm_module
from tinygrad_llm.engine.batch import row_ahead
from tinygrad_llm.engine.batch.row_ahead import AheadSteps
from tinygrad_llm.engine.batch.row_steps import Choice, Row
from tinygrad_llm.engine.device_sampling import settings
from tinygrad_llm.engine.sampling import Sampler
from tinygrad_llm.errors import DeviceError
from tinygrad_llm.files.gguf import open_gguf
from tinygrad_llm.nn.cache.place import BLOCK
from tinygrad_llm.nn.model import Model
from tinygrad_llm.nn.reader import read_config
from tinygrad_llm.weights.loader import Loader

VOCAB = 317
HOW = ({"temperature": 2.0, "min_p": 0.05, "repeat_penalty": 1.3, "seed": 7}, {}, {"temperature": 1.3, "seed": 4}, {},
       {"temperature": 0.9, "top_k": 40, "top_p": 0.9, "seed": 2**40}, {"repeat_penalty": 1.5},
       {"temperature": 1.5, "repeat_penalty": 1.1, "top_k": 20})

def prompt(length: int, seed: int = 0) -> list[int]: return random.Random(seed).choices(range(VOCAB), k=length)

@pytest.fixture
def ahead(monkeypatch):
  """On a CPU, which has done all that it was told when a launch returns."""
  monkeypatch.setattr(llm_module, "is_asynchronous", lambda _: True)
  monkeypatch.setattr(row_ahead, "reader", reader)

@pytest.mark.parametrize("name,most", sample(
  (("lfm2", 2), *((name, 11) for name in ("llama", "lfm2", "qwen35", "gemma3", "granitehybrid"))), [("lfm2", 2)]))
def test_streams_are_generate(model_file, ahead, name, most):
  """Streams of several lengths beside each other, greedy and sampled, and a next turn."""
  model = {"types": "F32", "vocab": VOCAB} | (MODELS.get(name) or {"arch": name, "layers": 3})
  with tinygrad_llm.load(str(model_file(**model)), max_context=256, chunk=32) as llm:
    llm.prepare(2)
    captured = [step.jit.captured is not None for n in (1, 2) for turn in llm.engine.steps._aheads[n]
                for steps in turn for step in steps]
    assert all(captured) and len(captured) == 8 * (1 + bool(llm.model.states))
    for count in (1, most):
      asked = [(prompt(random.Random(i).choice([1, 30, 63, 64, 70]), i), 20 + 3 * i, how)
               for i, how in enumerate((list(HOW) * most)[:count])]
      want = [list(llm.generate(ids, n, ignore_eos=True, **how)) for ids, n, how in asked]
      streams = [llm.stream(ids, max_tokens=n, ignore_eos=True, **how) for ids, n, how in asked]
      by_host = {"temperature": 1.3, "seed": 4, "max_tokens": 10, "ignore_eos": True, "presence_penalty": 0.5}
      beside = llm.stream(prompt(40, 99), **by_host) if count == most else None
      assert [list(stream) for stream in streams] == want
      assert beside is None or list(beside) == list(llm.generate(prompt(40, 99), **by_host))
      turn = [*asked[0][0], *want[0], 5]
      for how in HOW[:2]:
        again = {"max_tokens": 9, "ignore_eos": True, **how}
        assert list(llm.stream(turn, **again)) == list(llm.generate(turn, **again))
    assert isinstance(llm.engine.steps, AheadSteps)

def test_inputs_of_changing_rows():
  """Each row's token, position, number, settings and last tokens, whoever had the row before."""
  rng, inputs = random.Random(1), row_ahead._Inputs(4, 8, VOCAB, False)
  samplers = [Sampler(temperature=1.0 + i, top_k=i, repeat_penalty=rng.choice([1.0, 1.5])) for i in range(6)]
  for _ in range(60):
    rows = list[Row]()
    for _ in range(4):
      at, sampler = rng.choice([0, 3, 62, 63, 64, 200]), rng.choice(samplers)
      choice = Choice(sampler, prompt(at + rng.randrange(2), at), rng.getrandbits(32))
      rows.append(Row(rng.randrange(-4, VOCAB), at, (1, 2), rng.choice([choice, choice, None])))
    inputs.write(rows, True)
    lines = inputs.tensors[0].numpy()
    for row, line in zip(rows, lines.T):
      sampler = Sampler() if row.choice is None else row.choice.sampler
      words = line.view(np.uint32)
      assert (*line[:2],) == (row.token, row.position) and words[2] == (row.choice.random if row.choice else 0)
      assert (words[row_ahead.WORDS:row_ahead.RECENT] == settings(sampler, VOCAB)).all()
      if row.choice is None or sampler.repeat_penalty == 1: continue
      recent = row.choice.history[max(0, row.position - 63):row.position]
      assert sorted(line[row_ahead.RECENT:]) == sorted([*recent, *[-1] * (63 - len(recent))])

def counts(target: str) -> list[list[int]]:
  """Kernels of the bundled model's step of 1 and 8 rows, of the same step launched ahead, and of one that samples."""
  open_target(target)
  file = open_gguf(pathlib.Path(tinygrad_llm.__file__).parent / "models/stories.gguf")
  with without_memory(), Loader(file, progress=False) as loader:
    steps = AheadSteps(Model(read_config(file), loader, 64), 64, 16, 20)
  def count(jit: Any, n: int) -> int:
    places = [steps._end.bind(5), *(at.bind(BLOCK * (i + 1)) for i, at in enumerate(steps._at[:n]))]
    return len(compiled(scheduled(jit.fxn, *places)[0]).src)
  return [[count(jit, n) for jit in (steps._decodes[n][0], *(pair[0].jit for pair in steps._aheads[n][0]))]
          for n in (1, 8)]

@extended
@pytest.mark.parametrize("target", ["CUDA:sm_90", "METAL:Apple9"])
def test_tokens_from_the_device_need_no_kernel(target):
  """By itself, a greedy step launched ahead has no kernel more; sampling of a few thousand tokens adds few."""
  if why := missing(target): pytest.skip(why)
  for most, (plain, ahead, sampled) in zip((6, 48), child.call(counts, target).value, strict=True):
    assert 30 < plain == ahead < sampled <= plain + most

# *** on a stub of a driver, whose kernels compute nothing

stub = pytest.mark.skipif(not has_cuda_wheels(), reason="NVIDIA makes no NVRTC wheel for this machine")

def installed(path: str) -> tuple[Any, Any]:
  """The stub's driver, and a model on it whose steps of up to 4 rows are captured. Each choice is token 5."""
  from tests.support import cuda_stub
  driver = cuda_stub.install()
  llm = tinygrad_llm.load(path, max_context=192, chunk=32)
  for keys in llm.engine.steps._choices: fill(keys, lambda memory: memory.fill(cuda_stub.WORD))
  llm.prepare(4)
  return driver, llm

def order(path: str, rows: int, count: int, how: dict[str, Any]) -> dict[str, Any]:
  """
  The driver's calls while `rows` streams decode `count` tokens each.

  g: a graph, k: a kernel, i: an upload, o: a copy of keys, r: a wait for such a copy, s: a wait for all work.
  """
  driver, llm = installed(path)
  from tinygrad.runtime.autogen import cuda
  calls, names = [], {"cuGraphLaunch": "g", "cuLaunchKernel": "k", "cuEventSynchronize": "r", "cuCtxSynchronize": "s",
                      "cuMemcpyHtoDAsync_v2": "i", "cuMemcpyDtoHAsync_v2": "o", "cuMemcpyDtoH_v2": "s"}
  def told(name: str) -> None:
    function = getattr(cuda, name)
    def call(*args: Any) -> int:
      calls.append(names[name])
      return int(function(*args))
    setattr(cuda, name, call)
  with llm.lock:
    streams = [llm.stream([7, i], max_tokens=count, ignore_eos=True, **how) for i in range(rows)]
    for name in names: told(name)
  return {"tokens": [list(stream) for stream in streams], "calls": "".join(calls)}

def losses(path: str) -> list[Any]:
  """Loses the device at several launches of two streams: their errors, and whether later streams are right."""
  driver, llm = installed(path)
  found = []
  for n in (1, 2, 3, 5, 9, 14):
    driver.lose_at = driver.launches + n
    streams = [llm.stream([7, i], max_tokens=30, ignore_eos=True) for i in range(2)]
    for stream in streams:
      try: list(stream)
      except DeviceError: found.append("lost")
      else: found.append(stream.finish)
    found.append(llm.health().state)
    driver.revive()
    assert len(list(llm.stream([7], max_tokens=9, ignore_eos=True))) == 9
  return found

@stub
@pytest.mark.parametrize("rows,how", [(1, {}), (3, {}), (3, {"temperature": 1.0, "repeat_penalty": 1.2})])
def test_launches_between_reads(model_file, rows, how):
  """Each read comes behind the launch of the next step, and nothing waits for all of the device's work."""
  path = str(model_file(types="F32", layers=1, vocab=384, context=192))
  found = child.call(order, path, rows, 100, how, DEV="CUDA").value
  assert all(set(tokens[1:]) == {5} and len(tokens) == 100 for tokens in found["tokens"])
  # two uploads where a sequence gets another block
  assert re.search("(ii?gor){70,}r$", found["calls"]), found["calls"]

@stub
def test_lost_device(model_file):
  """Every stream ends with the device's error, also while a step is launched ahead."""
  path = str(model_file(types="F32", layers=1, vocab=384, context=192))
  assert child.call(losses, path, DEV="CUDA").value == ["lost", "lost", "idle"] * 6

# *** on the simulated GPU

CARD = pytest.mark.skipif(bool(build.missing()), reason=build.missing())

@CARD
@pytest.mark.parametrize(("dev", "name", "samples"), sample(
  [("CUDA", "llama", False), ("CUDA", "llama", True), ("CUDA", "lfm2", True), ("CUDA", "qwen35", False),
   ("NV", "llama", True), ("NV", "lfm2", False)], [("CUDA", "llama", False)]))
def test_streams_on_card(model_file, dev, name, samples):
  """Joins, ends by length and by token, and a turn that begins with a stopped answer: the CPU's tokens."""
  model = {"types": "F32", "vocab": VOCAB, "layers": 1} | (MODELS.get(name) or {"arch": name, "layers": 2})
  path = str(model_file(**model))
  call = (answers.by_queues, "streamed") if dev == "NV" else (answers.streamed,)
  found = child.call(*call, path, samples, **on_card(dev, order=2, seed=5)).value
  assert found == child.call(answers.streamed, path, samples, DEV="CPU", NO_Q8_ACTIVATIONS="1").value
