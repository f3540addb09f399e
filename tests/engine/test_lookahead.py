"""engine/lookahead.py: the next step is launched before a token is read, and nothing else changes."""
import math
import pathlib
import time

import numpy as np
import pytest
from tests.support.extended import extended
import tinygrad_llm
from tests.support.child import call
from tests.gpu.gpu_numbers import opencl
from tests.tools.kernel_cases import missing
from tinygrad import Device
from tinygrad.uop.ops import Ops, UOp, sym_infer
from tinygrad_llm.analysis.programs import compiled
from tinygrad_llm.device.async_read import is_asynchronous
from tinygrad_llm.device.buffers import without_memory
from tinygrad_llm.device.captured import scheduled
from tinygrad_llm.device.device import open_target
from tinygrad_llm.engine import lookahead
from tinygrad_llm.engine.llm import LLM
from tinygrad_llm.engine.lookahead import Lookahead
from tinygrad_llm.engine.sampling import Sampler
from tinygrad_llm.engine.steps import Steps
from tinygrad_llm.errors import InputError
from tinygrad_llm.files.gguf import open_gguf
from tinygrad_llm.nn.reader import read_config
from tinygrad_llm.nn.model import Model
from tinygrad_llm.weights.loader import Loader

PROMPT = [5, 17, 300, 44]
SETTINGS = ({}, {"temperature": 1.5, "seed": 3}, {"temperature": 0.9, "top_k": 40, "top_p": 0.9, "seed": 2**40},
            {"temperature": 2.0, "min_p": 0.05, "repeat_penalty": 1.3}, {"repeat_penalty": 1.5})

def load(path: str) -> LLM: return tinygrad_llm.load(path, max_context=4096, chunk=16)

def answer(llm, ids=PROMPT, **asked) -> list[int]:
  return list(llm.generate(ids, **{"max_tokens": 20, "ignore_eos": True, **asked}))

class Forced:
  """A reader for a device that has none. `events` records launches and reads in order."""
  def __init__(self): self.events: list[str] = []
  def __call__(self, *_): return self.enqueue
  def enqueue(self, buffer):
    self.events.append("launch")
    data = bytes(buffer.as_memoryview())
    def wait() -> bytes:
      self.events.append("read")
      return data
    return wait

@pytest.fixture(scope="module")
def plain(model_file): return load(str(model_file(types="Q8_0", vocab=384, context=96)))

@pytest.fixture
def forced(monkeypatch):
  monkeypatch.setattr(lookahead, "reader", found := Forced())
  return found

@pytest.fixture(scope="module")
def _ahead(model_file):
  llm = load(str(model_file(types="Q8_0", vocab=384, context=96)))
  llm._lookahead = Lookahead(llm.model, llm.max_context)
  return llm

@pytest.fixture
def ahead(_ahead, forced): return _ahead

@pytest.mark.skipif(Device.DEFAULT != "CPU", reason="another device")
def test_disabled_on_cpu(plain):
  assert not is_asynchronous("CPU") and plain._lookahead is None

@pytest.mark.parametrize("asked", SETTINGS, ids=str)
def test_tokens_match_plain_decoding(plain, ahead, asked):
  assert answer(ahead, **asked) == answer(plain, **asked)
  assert ahead._held == plain._held

NOT_ON_DEVICE = ({"presence_penalty": 1.5}, {"frequency_penalty": 0.4, "temperature": 1.2, "seed": 5},
                 {"logit_bias": {7: 100}}, {"min_tokens": 3})

@pytest.mark.parametrize("asked", NOT_ON_DEVICE, ids=str)
def test_settings_that_the_device_lacks(plain, ahead, forced, asked):
  """Nothing is launched ahead for them; answers before and after are launched ahead, and all are right."""
  for settings, count in (({}, 20), (asked, 0), (SETTINGS[3], 20)):
    forced.events.clear()
    assert answer(ahead, **settings) == answer(plain, **settings)
    assert forced.events.count("read") == (count and count - 1)
  turns = [llm.generate(PROMPT, 9, ignore_eos=True, **how) for llm in (plain, ahead) for how in ({}, asked)]
  a, b, c, d = zip(*zip(*turns))
  assert a == c and b == d

def test_next_step_is_launched_before_read(ahead, forced):
  """The next step comes before the read. No step follows the last token that is requested or fits the context."""
  for n, asked in ((6, {"max_tokens": 6}), (96 - 4 + 1, {"max_tokens": None})):
    forced.events.clear()
    assert len(answer(ahead, **asked)) == n
    assert forced.events == ["launch"] + ["launch", "read"] * (n - 2) + ["read"]
  for n in (0, 1):
    forced.events.clear()
    assert len(answer(ahead, max_tokens=n)) == n and forced.events == []
  assert len(answer(ahead, ids=list(range(96)), max_tokens=None)) == 1 and forced.events == []
  tokens = ahead.generate(PROMPT, max_tokens=9, ignore_eos=True)
  next(tokens), next(tokens)
  assert forced.events == ["launch", "launch", "read"]  # when the caller gets a token, the next step is already running

def test_extra_step_leaves_no_state(plain, ahead, monkeypatch):
  whole = answer(plain)
  end = next(t for t in whole if t != whole[0])
  for llm in (plain, ahead): monkeypatch.setattr(llm.tokenizer, "stop_ids", frozenset({end}))
  cut = list(ahead.generate(PROMPT, max_tokens=20))
  assert cut == whole[:whole.index(end)]
  assert ahead._held == [*PROMPT, *cut]  # the end token was fed, but is not counted as held
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

def test_ctrl_c_during_answer(plain, ahead, forced, monkeypatch):
  """Ctrl-C while an answer waits for a token."""
  def interrupted(buffer):
    read = Forced.enqueue(forced, buffer)
    def wait():
      if len(forced.events) > 7: raise KeyboardInterrupt
      return read()
    return wait
  forced.events.clear()
  with monkeypatch.context() as m:
    m.setattr(forced, "enqueue", interrupted)
    with pytest.raises(KeyboardInterrupt): answer(ahead, ids=[3, 2, 1])
  assert answer(ahead) == answer(plain)

def test_damaged_logits(ahead, forced, monkeypatch):
  monkeypatch.setattr(forced, "enqueue", lambda buffer: lambda: b"\xff" * 8)  # NaN
  with pytest.raises(InputError, match="logits: the largest is nan"): answer(ahead)

def test_random_numbers_are_refilled_in_time(plain, forced, monkeypatch):
  monkeypatch.setattr(lookahead, "RANDOMS", 8)
  llm = load(str(plain.path))
  llm._lookahead = Lookahead(llm.model, llm.max_context)
  for n in (3, 4, 5, 13):
    asked = {"ids": list(range(n)), "max_tokens": 40, "temperature": 2.0, "repeat_penalty": 1.2, "seed": n}
    assert answer(llm, **asked) == answer(plain, **asked)

def test_later_process_finds_captured_steps(plain, forced):
  """A later process finds both captured steps, whatever the settings."""
  answer(plain)
  again = Lookahead(plain.model, plain.max_context)
  again.compile(Sampler(temperature=1.0), 0)
  assert again.linear is not None
  start = time.perf_counter()
  Lookahead(plain.model, plain.max_context).compile(Sampler(temperature=0.5, top_k=3), 0)
  assert time.perf_counter() - start < 2

def test_decode_cost(plain, ahead):
  answer(ahead)
  answer(plain)
  assert (kernels := (ahead.decode_cost() or (0, 0))[0]) >= (plain.decode_cost() or (0, 0))[0] > 10
  assert kernels < 60

# *** on a device that runs asynchronously

def both(path: str) -> list:
  """For each setting: whether lookahead is used, and whether two answers are the same with and without it."""
  llm, found = load(path), []
  ahead = llm._lookahead
  for asked in SETTINGS:
    llm._lookahead = ahead
    first = answer(llm, max_tokens=40, **asked)
    tokens = llm.generate([9, 8], ignore_eos=True, **asked)
    next(tokens), next(tokens)
    tokens.close()
    second = answer(llm, ids=[*PROMPT, *first[:3], 1], **asked)
    llm._lookahead = None
    found.append([ahead is not None, first == answer(llm, max_tokens=40, **asked),
                  second == answer(llm, ids=[*PROMPT, *first[:3], 1], **asked)])
  return found

@pytest.mark.skipif(opencl() is None, reason="no OpenCL runtime")
def test_opencl(model_file):
  path = str(model_file(types="Q8_0", vocab=384, context=96))
  assert call(both, path, **opencl()).value == [[True, True, True]] * len(SETTINGS)

def kernels(path: str, target: str) -> list[list[float]]:
  """Operations per thread of each kernel in a decode step, in a step launched ahead, and in one that also samples."""
  open_target(target)
  file = open_gguf(pathlib.Path(path))
  with without_memory(), Loader(file, progress=False) as loader:
    steps = Steps(model := Model(read_config(file), loader, 64), 64, 16)
    ahead, position = Lookahead(model, 64), UOp.variable("start", 0, 63).bind(5)
  jits = (steps._decodes[0], steps._token), (ahead._greedy[0],), (ahead._sampled[0],)
  linears = [compiled(scheduled(jit.fxn, *inputs, position)[0]) for jit, *inputs in jits]
  assert all(call.src[0].op is Ops.PROGRAM for linear in linears for call in linear.src)
  return [[serial(call.src[0]) for call in linear.src] for linear in linears]

def serial(program: UOp) -> float:
  sizes, ops = program.arg.launch_dims({v.expr: 5 for v in program.arg.vars}), program.src[0].arg.estimates.ops
  total = int(sym_infer(ops, {v.expr: 5 for v in program.arg.vars}))
  return total / math.prod(math.prod(dims) for dims in sizes)

@extended
@pytest.mark.parametrize("target", ["CUDA:sm_90", "METAL:Apple9"])
def test_sampling_kernels_on_gpus(model_file, target):
  """
  The greedy choice on the device needs no kernel of its own; sampling from a few thousand tokens needs at most six.
  """
  if why := missing(target): pytest.skip(why)
  path = str(model_file(types="Q8_0", vocab=384, context=96))
  decode, greedy, sampled = call(kernels, path, target).value
  assert 10 < len(greedy) <= len(decode) < len(sampled) <= len(greedy) + 6
  assert max(*decode, *greedy, *sampled) < 5000  # no kernel leaves all work to one thread
