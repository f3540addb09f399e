"""generate() where steps are launched before the last token is read: nothing else changes."""
import time

import numpy as np
import pytest
import tinygrad_llm
from tests.support.child import call
from tests.gpu.gpu_numbers import opencl
from tinygrad import Device
from tinygrad_llm.device.async_read import is_asynchronous
from tinygrad_llm.engine import llm as llm_module
from tinygrad_llm.engine.batch import row_ahead
from tinygrad_llm.engine.batch.row_ahead import AheadSteps
from tinygrad_llm.engine.llm import LLM
from tinygrad_llm.errors import InputError

PROMPT = [5, 17, 300, 44]
SETTINGS = ({}, {"temperature": 1.5, "seed": 3}, {"temperature": 0.9, "top_k": 40, "top_p": 0.9, "seed": 2**40},
            {"temperature": 2.0, "min_p": 0.05, "repeat_penalty": 1.3}, {"repeat_penalty": 1.5})

def load(path: str) -> LLM: return tinygrad_llm.load(path, max_context=4096, chunk=16)

def answer(llm, ids=PROMPT, **asked) -> list[int]:
  return list(llm.generate(ids, **{"max_tokens": 20, "ignore_eos": True, **asked}))

class Forced:
  """A reader for a device that has none. `events` records launches and reads in order."""
  def __init__(self): self.events: list[str] = []
  def __call__(self, device, size=8, *_): return lambda buffer: self.enqueue(buffer, size)
  def enqueue(self, buffer, size):
    self.events.append("launch")
    data = bytes(buffer.as_memoryview())[:size]
    def wait() -> bytes:
      self.events.append("read")
      return data
    return wait

@pytest.fixture(scope="module")
def plain(model_file): return load(str(model_file(types="Q8_0", vocab=381, context=96)))

@pytest.fixture
def forced(monkeypatch):
  monkeypatch.setattr(row_ahead, "reader", found := Forced())
  return found

@pytest.fixture(scope="module")
def _ahead(model_file):
  with pytest.MonkeyPatch.context() as m:
    m.setattr(llm_module, "is_asynchronous", lambda _: True)
    llm = load(str(model_file(types="Q8_0", vocab=381, context=96)))
    m.setattr(row_ahead, "reader", Forced())
    llm.prepare(1)
  return llm

@pytest.fixture
def ahead(_ahead, forced): return _ahead

@pytest.mark.skipif(Device.DEFAULT != "CPU", reason="another device")
def test_not_on_a_cpu(plain): assert not is_asynchronous("CPU") and not plain.engine.steps.is_ahead

@pytest.mark.parametrize("asked", SETTINGS, ids=str)
def test_tokens_match_plain_decoding(plain, ahead, asked):
  assert answer(ahead, **asked) == answer(plain, **asked)

NOT_ON_DEVICE = ({"presence_penalty": 1.5}, {"frequency_penalty": 0.4, "temperature": 1.2, "seed": 5},
                 {"logit_bias": {7: 100}}, {"min_tokens": 3})

@pytest.mark.parametrize("asked", NOT_ON_DEVICE, ids=str)
def test_settings_that_the_device_lacks(plain, ahead, forced, asked):
  """Nothing is launched ahead for them; answers before and after are launched ahead, and all are right."""
  for settings, count in (({}, 20), (asked, 0), (SETTINGS[3], 20)):
    forced.events.clear()
    assert answer(ahead, **settings) == answer(plain, **settings)
    events = "".join(event[0] for event in forced.events)
    assert ("ll" in events) == bool(count) and events.count("l") == events.count("r") == 19
  turns = [llm.generate(PROMPT, 9, ignore_eos=True, **how) for llm in (plain, ahead) for how in ({}, asked)]
  a, b, c, d = zip(*zip(*turns))
  assert a == c and b == d

def test_next_step_is_launched_before_read(ahead, forced):
  """The next step comes before the read. No step follows the last token that is requested or fits the context."""
  for n, asked in ((6, {"max_tokens": 6}), (96 - 4 + 1, {"max_tokens": None})):
    forced.events.clear()
    assert len(answer(ahead, **asked)) == n
    events = "".join(event[0] for event in forced.events)
    # a reader that lags behind lets a step be read before the next one is launched
    assert events.count("l") == events.count("r") == n - 1 and events.startswith("ll") and "lll" not in events
  for n in (0, 1):
    forced.events.clear()
    assert len(answer(ahead, max_tokens=n)) == n and forced.events == []
  assert len(answer(ahead, ids=list(range(96)), max_tokens=None)) == 1 and forced.events == []

def test_extra_step_leaves_no_state(plain, ahead, monkeypatch):
  whole = answer(plain)
  end = next(t for t in whole if t != whole[0])
  for llm in (plain, ahead): monkeypatch.setattr(llm.tokenizer, "stop_ids", frozenset({end}))
  cut = list(ahead.generate(PROMPT, max_tokens=20))
  assert cut == whole[:whole.index(end)]
  turn = [*PROMPT, *cut, 9, 8]
  assert answer(ahead, ids=turn) == answer(plain, ids=turn)
  assert ahead.timing.cached_tokens == len(PROMPT) + len(cut)
  list(ahead.generate(PROMPT, max_tokens=20))
  np.testing.assert_array_equal(ahead.logits(PROMPT), plain.logits(PROMPT))

@pytest.mark.parametrize("asked", SETTINGS[:2], ids=str)
def test_abandoned_answer(plain, ahead, asked):
  for count in (1, 2, 5):
    tokens = ahead.generate([3, 2, 1], max_tokens=50, ignore_eos=True, **asked)
    got = [next(tokens) for _ in range(count)]
    tokens.close()
    assert got == answer(plain, ids=[3, 2, 1], max_tokens=count, **asked)
    follow = [3, 2, 1, *got, 7]
    assert answer(ahead, ids=follow, **asked) == answer(plain, ids=follow, **asked)

def test_error_during_answer(plain, ahead, forced, monkeypatch):
  """An error while the engine waits for a token ends the answer; the next one is right."""
  enqueue = forced.enqueue
  def broken(buffer, size):
    read = enqueue(buffer, size)
    def wait():
      if len(forced.events) > 7: raise RuntimeError("lost")
      return read()
    return wait
  with monkeypatch.context() as m:
    m.setattr(forced, "enqueue", broken)
    with pytest.raises(InputError, match="lost"): answer(ahead, ids=[3, 2, 1])
  assert answer(ahead) == answer(plain)

def test_damaged_logits(ahead, forced, monkeypatch):
  monkeypatch.setattr(forced, "enqueue", lambda buffer, size: lambda: b"\xff" * size)  # NaN
  with pytest.raises(InputError, match="logits: the largest is nan"): answer(ahead)

@pytest.mark.parametrize("n", [3, 4, 5, 13])
def test_random_numbers(plain, ahead, n):
  asked = {"ids": list(range(n)), "max_tokens": 40, "temperature": 2.0, "repeat_penalty": 1.2, "seed": n}
  assert answer(ahead, **asked) == answer(plain, **asked)

def test_later_process_finds_captured_steps(ahead, monkeypatch):
  """A later process finds both captured steps."""
  monkeypatch.setattr(llm_module, "is_asynchronous", lambda _: True)
  answer(ahead)
  again = load(str(ahead.path))
  start = time.perf_counter()
  assert again.engine.steps.restore_piece() and again.engine.steps.restore_decode(1)
  assert time.perf_counter() - start < 2

def test_decode_cost(plain, ahead):
  answer(ahead)
  answer(plain)
  assert (kernels := (ahead.decode_cost() or (0, 0))[0]) >= (plain.decode_cost() or (0, 0))[0] > 10
  assert kernels < 60

# *** on a device that runs asynchronously

def both(path: str) -> list:
  """For each setting: whether steps are launched ahead, and whether two answers equal the host's choices."""
  ahead, found = load(path), []
  llm_module.is_asynchronous = lambda _: False
  plain = load(path)
  for asked in SETTINGS:
    first = answer(ahead, max_tokens=40, **asked)
    tokens = ahead.generate([9, 8], ignore_eos=True, **asked)
    next(tokens), next(tokens)
    tokens.close()
    second = answer(ahead, ids=[*PROMPT, *first[:3], 1], **asked)
    found.append([isinstance(ahead.engine.steps, AheadSteps) and not plain.engine.steps.is_ahead,
                  first == answer(plain, max_tokens=40, **asked),
                  second == answer(plain, ids=[*PROMPT, *first[:3], 1], **asked)])
  return found

@pytest.mark.skipif(opencl() is None, reason="no OpenCL runtime")
def test_opencl(model_file):
  path = str(model_file(types="Q8_0", vocab=381, context=96))
  assert call(both, path, **opencl()).value == [[True, True, True]] * len(SETTINGS)
