"""llm.streams(): answers to one prompt, which is read once; and the times of answers that were preempted."""
import asyncio
import random
import time

import pytest
from tests.engine.batch.test_faults import Gate, idle
from tests.support.extended import extended, sample
from tests.support.history_engine import HistoryEngine, answer
from tests.support.model_cases import MODELS

import tinygrad_llm
from tinygrad_llm import InputError
from tinygrad_llm.engine.llm import LLM

VOCAB = 317

@pytest.fixture
def engine():
  """An engine that ends at the end of its test."""
  made = HistoryEngine()
  yield made
  made.close()

def prompt(length: int, seed: int = 0) -> list[int]: return random.Random(seed).choices(range(97), k=length)

# *** with history as KV

@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 128, 300])
def test_prompt_is_read_once(engine, length):
  """Each fork has the answer of its own seed, and has fed no token of the prompt."""
  streams = engine.streams(prompt(length), 30, 11)
  assert [list(stream) for stream in streams] == [answer(prompt(length), 30, i) for i in range(11)]
  assert sum(engine.steps.fed) == (length if length > 1 else 0)  # a prompt of one token is read by a decode step
  cached = [stream.timing.cached_tokens for stream in streams]
  assert cached == [0] + [length] * 10
  assert all(stream.timing.finish == "length" and stream.timing.tokens == 30 for stream in streams)
  idle(engine)
  assert engine.counters == {"requests": 11, "errors": 0}

@pytest.mark.parametrize("blocks", [7, 9])
def test_forks_without_room_wait(blocks):
  """Six answers of 4 blocks each over a pool of 6 or 8: forks wait, or are preempted, and all are right."""
  engine = HistoryEngine(blocks)
  streams = engine.streams(prompt(100), 120, 6)
  assert [list(stream) for stream in streams] == [answer(prompt(100), 120, i) for i in range(6)]
  assert engine.scheduler.preemptions
  idle(engine)
  engine.close()

def test_forks_go_on_without_the_first(engine):
  """The stream that reads the prompt is cancelled, as is one that waits: the others read it themselves, once."""
  with Gate(engine) as gate:
    other = engine.stream([1, 2], 9)
    assert gate.reached.wait(5)
    streams = engine.streams(prompt(300), 20, 5)
    for left in (0, 1, 3): streams[left].cancel()
  assert list(other) == answer([1, 2], 9)
  for i, stream in enumerate(streams):
    assert list(stream) == ([] if i in (0, 1, 3) else answer(prompt(300), 20, i))
    assert stream.finish == ("cancelled" if i in (0, 1, 3) else "length")
  idle(engine)
  assert sum(engine.steps.fed) == 302

def test_errors_of_the_prompt_are_those_of_all(engine):
  """A prompt that does not fit, and one whose logits are not finite."""
  for damage, length, match in ((0, 1025, "1025 tokens"), (1, 20, "nan")):
    engine.steps.damage = damage
    for stream in engine.streams(prompt(length), 5, 3):
      with pytest.raises(InputError, match=match): list(stream)
      assert stream.finish == "error"
  idle(engine)
  assert engine.counters["errors"] == 6

def test_forks_by_asyncio(engine):
  from tinygrad_llm.engine.batch.stream import AsyncStream
  async def read(stream): return [token async for token in stream]
  async def main(): return await asyncio.gather(*map(read, engine.streams(prompt(70), 20, 4, AsyncStream)))
  assert asyncio.run(main()) == [answer(prompt(70), 20, i) for i in range(4)]

def test_times_of_a_preempted_answer():
  """Reading on after a preemption is no reading of the prompt: `cached_tokens` and `prefill` stay as they were."""
  engine = HistoryEngine(9)
  engine.steps.before = lambda name: time.sleep(0.002 if name == "piece" else 2e-4)
  with engine.lock: streams = [engine.stream(prompt(100, i), 200) for i in range(3)]
  for stream in streams: next(stream)
  early = [(stream.timing.cached_tokens, stream.timing.prefill, stream.timing.first_token) for stream in streams]
  assert all(cached == 0 and 0.002 <= prefill <= first for cached, prefill, first in early)
  for i, stream in enumerate(streams): assert list(stream) == answer(prompt(100, i), 200)[1:]
  assert engine.scheduler.preemptions and sum(engine.steps.fed) > 300
  assert early == [(s.timing.cached_tokens, s.timing.prefill, s.timing.first_token) for s in streams]
  engine.close()

@pytest.mark.parametrize("length", [1, 64, 65, 66, 100])
def test_cached_tokens(engine, length):
  """The last token is fed, also where a decode step does it; what another request has read is not."""
  for want in (0, length - 1):
    stream = engine.stream(prompt(length), 3)
    list(stream)
    idle(engine)
    assert stream.timing.cached_tokens == want and 0 < stream.timing.prefill <= stream.timing.first_token

def test_prompt_that_is_preempted_while_it_is_read(engine):
  """Tokens that were fed twice count once."""
  request = engine.stream(prompt(10), 1)._request
  request.timing.tokens, request._fed, request._own = 0, 0, 0
  for first, count in ((64, 100), (64, 50), (114, 186)): request.read(first, count, 0.1)  # 64 were cached
  assert request._own == 236

# *** with a model

@pytest.mark.parametrize("name", sample(("llama", "lfm2", "qwen35", "gemma3"), ("llama", "lfm2")))
def test_forks_are_streams_with_their_seeds(model_file, name):
  """Equal to streams one by one, with company; of models with recurrent layers, too."""
  model = {"types": "F32", "vocab": VOCAB} | (MODELS.get(name) or {"arch": name, "layers": 3})
  with tinygrad_llm.load(str(model_file(**model)), max_context=256, chunk=32) as llm:
    for length in (1, 70):
      ids = [i % VOCAB for i in prompt(length)]
      settings = {"temperature": 1.3, "seed": 5, "max_tokens": 12, "ignore_eos": True}
      want = [list(llm.generate(ids, **settings | {"seed": 5 + i})) for i in range(5)]
      streams = llm.streams(iter(ids), 5, **settings)
      assert [list(stream) for stream in streams] == want
      assert len({*map(tuple, want)}) == 5
      assert streams[4].timing.cached_tokens == length
    for n in (0, 129, "x"):
      with pytest.raises(InputError, match="n:"): llm.streams(ids, n)

@extended
@pytest.mark.parametrize("name,count", [(n, c) for n in ("llama", "lfm2", "qwen35") for c in (10, 60)])
def test_tiny_pool_of_a_model(model_file, monkeypatch, name, count):
  """
  Random forks and cancels over 7 blocks, which preempt each other all the time: tokens are right or missing.

  A re-read rounds as a prompt does, so answers are compared in floats, where this model's choices are no near ties.
  """
  monkeypatch.setattr(LLM, "_pool_blocks", lambda _: 8)
  rng = random.Random(count)
  model = {"types": "F32", "vocab": VOCAB} | (MODELS.get(name) or {"arch": name, "layers": 3})
  with tinygrad_llm.load(str(model_file(**model)), max_context=256, chunk=32) as llm:
    asked = [(prompt(rng.choice([1, 2, 63, 64, 65, rng.randint(3, 130)]), rng.randrange(4)),
              {"temperature": 1.2, "seed": i, "max_tokens": rng.choice([1, 5, 40, 90]), "ignore_eos": True})
             for i in range(count)]
    counts = [rng.choice([1, 1, 3]) for _ in asked]
    want = [[list(llm.generate(ids, **settings | {"seed": settings["seed"] + i})) for i in range(n)]
            for (ids, settings), n in zip(asked, counts)]
    streams = [llm.streams(ids, n, **settings) for (ids, settings), n in zip(asked, counts)]
    for of in streams:
      if rng.random() < 0.2: rng.choice(of).cancel()
    for of, answers in zip(streams, want):
      for stream, tokens in zip(of, answers):
        found = list(stream)
        assert found == tokens[:len(found)] and (stream.finish == "cancelled" or found == tokens)
    assert llm.engine.scheduler.preemptions
    idle(llm.engine)

def test_texts_and_grammars(model_file):
  """Each answer has its own text and its own place in the grammar."""
  messages = [{"role": "user", "content": "hi"}]
  with tinygrad_llm.load(str(model_file(types="F32", vocab=384, context=192)), chunk=32) as llm:
    settings = {"temperature": 1.5, "max_tokens": 20}
    want = ["".join(llm.stream(messages, seed=i, **settings)) for i in range(3)]
    assert ["".join(stream) for stream in llm.streams(messages, 3, **settings)] == want
    async def read(stream): return "".join([piece async for piece in stream])
    async def main(): return await asyncio.gather(*map(read, llm.astreams(messages, 3, **settings)))
    assert asyncio.run(main()) == want
    assert [s.finish for s in llm.streams([1, 2], 3, max_tokens=0)] == ["length"] * 3
    pytest.importorskip("llguidance")
    for stream in llm.streams([5, 17], 3, regex="(ab|c){3}x", temperature=1.5, max_tokens=40):
      assert llm.tokenizer.decode(list(stream)).endswith("x") and stream.finish == "stop"
