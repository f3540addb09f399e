"""llm.stream() and llm.astream(): answers beside others equal generate()'s, and each ends by itself."""
import asyncio
import copy
import gc
import os
import pickle
import random
import sys
import threading
import time
from math import prod

import numpy as np
import pytest
from tests.support import child
from tests.support.extended import some
from tests.support.resident import resident
import tinygrad_llm
from tinygrad_llm import InputError
from tinygrad_llm.device.buffers import host_view
from tinygrad_llm.engine.batch import stream as stream_module
from tinygrad_llm.engine.batch.request import Request
from tinygrad_llm.engine.choice.logprobs import logprobs

VOCAB, CONTEXT = 379, 192
PROMPT = [5, 17, 300, 44]
HELLO = [{"role": "user", "content": "hi"}]
SETTINGS = [{}, {"temperature": 1.5, "seed": 3}, {"temperature": 0.9, "top_k": 40, "seed": 8}, {"repeat_penalty": 1.3},
            {"temperature": 2.0, "repeat_penalty": 1.2, "seed": 1}, {"presence_penalty": 0.5}]

def load(model_file): return tinygrad_llm.load(str(model_file(types="F32", vocab=VOCAB, context=CONTEXT)), chunk=32)

@pytest.fixture(scope="module")
def llm(model_file):
  """F32, so that rows are equal, to the bit, to steps alone. Nothing is compiled in a test that counts seconds."""
  (made := load(model_file)).prepare()
  return made

@pytest.fixture(autouse=True)
def all_blocks_come_back(request):
  yield
  if "llm" in request.fixturenames: idle(request.getfixturevalue("llm"))

def idle(llm, seconds: float = 1.0) -> None:
  """Waits until no sequence holds a block; a stream that nobody reads must end so soon."""
  gc.collect()
  with llm.lock: llm._by_hand.leave()
  end = time.perf_counter() + seconds
  def left() -> bool: return bool(llm.engine.pool.counts().referenced) or llm.engine.is_busy()
  while left() and time.perf_counter() < end: time.sleep(0.01)
  assert not left()

def asked(i: int, count: int = 24) -> tuple[list[int], dict]:
  rng = random.Random(i)
  prompt = PROMPT[:rng.randint(0, 4)] + [rng.randrange(VOCAB) for _ in range(rng.randint(1, 70))]
  return prompt, {"max_tokens": count, "ignore_eos": True, **SETTINGS[i % len(SETTINGS)]}

def alone(llm, i: int, count: int = 24) -> list[int]:
  prompt, settings = asked(i, count)
  return list(llm.generate(prompt, **settings))

# *** what answers are

def test_one_stream_is_generate(llm):
  for i in range(len(SETTINGS)):
    prompt, settings = asked(i)
    stream = llm.stream(prompt, **settings)
    assert list(stream) == alone(llm, i)
    assert stream.finish == stream.timing.finish == "length" and stream.tokens[:len(prompt)] == prompt
    assert stream.timing.tokens == 24 and stream.timing.prompt_tokens == len(prompt)

def test_threads_at_once_get_the_answers_alone(llm):
  """Also while another thread uses generate()."""
  want, got = {i: alone(llm, i) for i in range(12)}, dict[int, list[int]]()
  def ask(i: int) -> None:
    prompt, settings = asked(i)
    got[i] = list((llm.generate if i == 5 else llm.stream)(prompt, **settings))
  threads = [threading.Thread(target=ask, args=(i,)) for i in want]
  for thread in threads: thread.start()
  for thread in threads: thread.join(60)
  assert got == want

@pytest.mark.parametrize("count", some((50, 200), 0))
def test_random_company(llm, count):
  """Answers begin at random moments beside others, also by their common prefixes: each is as alone."""
  rng, want, running, got = random.Random(count), {}, {}, {}
  for i in range(count): want[i] = alone(llm, i, 1 + i % 30)
  waiting = [*want]
  while waiting or running:
    if waiting and rng.random() < 0.2:
      prompt, settings = asked(i := waiting.pop(0))
      settings["max_tokens"] = 1 + i % 30
      running[i], got[i] = llm.stream(prompt, **settings), []
    for i in rng.sample(list(running), min(3, len(running))):
      if (token := next(running[i], None)) is None: del running[i]
      else: got[i].append(token)
  differ = [i for i in want if got[i] != want[i]]
  for i in differ: assert near_tie(llm, asked(i)[0], got[i], want[i]), i
  assert len(differ) <= count // 50

def near_tie(llm, prompt: list[int], got: list[int], want: list[int]) -> bool:
  """Whether two greedy answers part where two tokens are almost equally likely."""
  at = next((k for k, (a, b) in enumerate(zip(got, want)) if a != b), None)
  if at is None: return False
  row = llm.logits([*prompt, *want[:at]])[-1]
  return abs(float(row[got[at]] - row[want[at]])) < 1e-3 * row.std()

def test_texts_are_those_of_chat(llm):
  for settings in ({}, {"temperature": 1.2, "seed": 4}):
    want = "".join(llm.chat(HELLO, max_tokens=30, **settings))
    assert "".join(llm.stream(HELLO, max_tokens=30, **settings)) == want

def test_second_turn_reuses_the_first(llm):
  first = llm.stream(HELLO, max_tokens=12)
  answer = "".join(first)
  more = [{"role": "assistant", "content": answer}, {"role": "user", "content": "and?"}]
  again = llm.stream([*HELLO, *more], max_tokens=4)
  list(again)
  assert again.timing.cached_tokens >= first.timing.prompt_tokens - 4

def test_exact_prefix_gives_equal_bits(llm):
  """The log-probabilities after an exact prefix equal a fresh read's, to the bit."""
  turn = [7, *range(100, 180)]
  answer = list(llm.stream(turn, max_tokens=20, ignore_eos=True))
  more = [*turn, *answer, 9, 8]
  stream = llm.stream(more, max_tokens=3, ignore_eos=True, logprobs=5, exact_prefix=True)
  tokens = list(stream)
  assert 64 <= stream.timing.cached_tokens <= len(turn)
  row = llm.prefill(more)
  for position, (token, found) in enumerate(zip(tokens, stream.logprobs, strict=True), len(more)):
    assert found == logprobs(row, token, 5, llm.tokenizer)
    row = llm.step(token, position)

def test_logprobs_are_those_of_the_logits(llm):
  stream = llm.stream(PROMPT, max_tokens=6, ignore_eos=True, logprobs=3, temperature=1.0, seed=2)
  tokens = list(stream)
  rows = llm.logits([*PROMPT, *tokens])[len(PROMPT) - 1:-1]
  for row, token, found in zip(rows, tokens, stream.logprobs, strict=True):
    want = logprobs(row, token, 3, llm.tokenizer)
    assert found.chosen.token == token and [x.token for x in found.top] == [x.token for x in want.top]
    np.testing.assert_allclose([x.logprob for x in found.top], [x.logprob for x in want.top], atol=1e-4)

def test_grammar(llm):
  pytest.importorskip("llguidance")
  streams = [llm.stream(PROMPT, regex="(ab|c){3}x", temperature=1.5, seed=i, max_tokens=40) for i in range(4)]
  for stream in streams: assert llm.tokenizer.decode(list(stream)).endswith("x") and stream.finish == "stop"
  with pytest.raises(InputError, match="regex"): llm.stream(PROMPT, regex="(")

# *** when they end

def test_ends_are_those_of_generate(llm, monkeypatch):
  whole = list(llm.generate(PROMPT, max_tokens=30, ignore_eos=True))
  text = llm.tokenizer.decode(whole)
  last = next(t for t in whole if t != whole[0])
  cases = [{"max_tokens": 7}, {"max_tokens": 30, "stop": [text[len(text) // 2:len(text) // 2 + 2]]},
           {"max_tokens": 30, "stop_ids": [last]}, {"max_tokens": 30, "stop_ids": [last], "min_tokens": 9},
           {"max_tokens": None, "ignore_eos": True}, {"max_tokens": -1, "ignore_eos": True}, {"max_tokens": 0},
           {"max_tokens": 1}]
  for settings in cases:
    want = llm.generate(PROMPT, **settings)
    stream = llm.stream(PROMPT, **settings)
    assert (list(stream), stream.finish) == (list(want), want.timing.finish), settings
    assert stream.finish == stream.timing.finish

def test_full_context(llm):
  for length in (CONTEXT, CONTEXT - 1, CONTEXT - 70):
    prompt = [i % VOCAB for i in range(length)]
    stream = llm.stream(prompt, max_tokens=None, ignore_eos=True)
    assert len(list(stream)) == CONTEXT - length + 1 and stream.finish == "context"
  with pytest.raises(InputError, match=f"context of {CONTEXT}"): llm.stream([1] * (CONTEXT + 1))

def test_bad_arguments_are_errors_of_the_call(llm):
  for prompt, settings, match in [
      (PROMPT, {"temperature": -1}, "temperature"), (PROMPT, {"logprobs": 21}, "logprobs"), (PROMPT, {"top": 1}, "top"),
      (PROMPT, {"min_tokens": 9, "max_tokens": 3}, "min_tokens"), ([], {}, "prompt"), ("text", {}, "prompt"),
      ([VOCAB], {}, "prompt"), (PROMPT, {"template": {}}, "template"), (PROMPT, {"stop_ids": [VOCAB]}, "stop_ids"),
      (5, {}, "prompt"), (None, {}, "prompt"), (PROMPT, {"pieces": "words"}, "pieces"), (PROMPT, {"stop": 0}, "stop"),
      (PROMPT, {"stop": "END"}, "stop"), (HELLO, {"stop": "END"}, "stop"), (HELLO, {"stop": None}, "stop"),
      (HELLO, {"stops": ["x"]}, "stops is no setting; .* json_schema, .* stop, ")]:
    with pytest.raises(InputError, match=match): llm.stream(prompt, **settings)
  for stop in ("END", None, ("",)):
    with pytest.raises(InputError, match="stop"): llm.chat(HELLO, stop=stop)

def test_an_odd_setting_hurts_nobody(llm):
  """Any object may stand for true or false."""
  other = llm.stream(PROMPT, max_tokens=40, ignore_eos=True)
  for odd in ("yes", None, [], 2): list(llm.stream([*PROMPT, 7], max_tokens=2, exact_prefix=odd, ignore_eos=odd))
  assert len([*other]) == 40

@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_are_refused(llm, how):
  """A copy would close the model, or cancel the answer, as it is dropped."""
  stream = llm.stream(PROMPT, max_tokens=9, ignore_eos=True)
  for whole in (llm, stream):
    with pytest.raises(TypeError, match="cannot be copied or pickled"): how(whole)
  assert len([*stream]) == 9

@pytest.mark.parametrize("how", ["cancel", "close", "drop", "break", "unread", "waiting"])
def test_left_streams_give_their_blocks_back(llm, how):
  """Blocks come back within a second; a cancelled stream ends as "cancelled"."""
  settings = {"max_tokens": None, "ignore_eos": True}
  if how == "break":
    for _ in llm.stream(PROMPT, **settings): break
    return
  streams = [llm.stream(PROMPT, **settings) for _ in range(12 if how == "waiting" else 3)]
  if how not in ("unread", "waiting"): next(streams[0])
  if how in ("cancel", "close"):
    for stream in streams: getattr(stream, how)()
    for stream in streams: assert len(list(stream)) < CONTEXT
    assert {stream.finish for stream in streams} <= {"cancelled", "context"}
  streams.clear()
  stream = None
  idle(llm)

def test_memory_of_damaged_answers_hurts_nobody(llm):
  """Numbers that are not finite, left in blocks that are free, are read by no later answer."""
  idle(llm)
  want = alone(llm, 1)
  while llm.engine.pool.tree.evict(): pass
  for pool in llm.engine.steps.pools: host_view(pool)[:, :, 1:] = np.nan
  assert list(llm.stream(asked(1)[0], **asked(1)[1])) == want

# *** asyncio

def test_asyncio_gather(llm):
  async def ask(i: int) -> list[int]:
    prompt, settings = asked(i)
    return [token async for token in llm.astream(prompt, **settings)]
  async def main(): return await asyncio.gather(*map(ask, range(10)))
  assert asyncio.run(main()) == [alone(llm, i) for i in range(10)]

def test_cancelled_task(llm):
  """The cancelled task's blocks come back; a stream beside it goes on; a closed loop hurts nobody."""
  async def read(stream, count: int = 10**6):
    found = []
    async for piece in stream:
      found.append(piece)
      if len(found) == count: break
    return found
  async def main():
    prompt, settings = asked(2)
    task = asyncio.create_task(read(llm.astream(PROMPT, max_tokens=None, ignore_eos=True)))
    other = asyncio.create_task(read(llm.astream(prompt, **settings)))
    await asyncio.sleep(0.02)
    task.cancel()
    left = llm.astream(PROMPT, max_tokens=None, ignore_eos=True)
    await read(left, 2)
    return await other, left
  found, left = asyncio.run(main())
  assert found == alone(llm, 2)
  assert list(llm.stream(*asked(2)[:1], **asked(2)[1])) == found  # while `left` still runs, without its loop
  del left

def test_texts_by_asyncio(llm):
  async def main(): return "".join([piece async for piece in llm.astream(HELLO, max_tokens=30)])
  assert asyncio.run(main()) == "".join(llm.chat(HELLO, max_tokens=30))

# *** what is told of all

def test_health(llm):
  """A thread that holds the model does not stop another one's question."""
  assert next(llm.stream(PROMPT)) in range(VOCAB)
  idle(llm)
  found = []
  held = threading.Thread(target=lambda: found.append(llm.health()))
  with llm.lock:
    held.start()
    held.join(5)
  assert found[0].state == "idle" and found[0].counts["open"] == 0 < found[0].counts["requests"]

@pytest.mark.parametrize("arch", ["llama", "lfm2"])
def test_memory_counts_the_pool_and_the_states_of_rows(model_file, arch):
  """Snapshots, at a prompt's last whole block and at an answer's end, count, too."""
  with tinygrad_llm.load(str(model_file(arch=arch, layers=3, vocab=315)), max_context=256, chunk=32) as llm:
    assert llm.health().state == "idle"
    assert len(list(llm.stream([1, 2], max_tokens=2, ignore_eos=True))) == 2
    first, pool = llm.memory(), llm.engine.steps
    assert first["kv_pool"] == pool.blocks * 64 * sum(2 * prod(c.shape(c._config, 1)) for c in llm.model.caches)
    states = llm.engine._states
    # two turns of eight slots, the prompt's, one on its way between places, a snapshot, and perhaps one that was parked
    assert first["row_states"] in ([19 * states.nbytes, 20 * states.nbytes] if arch == "lfm2" else [0])
    list(llm.stream([*range(100)], max_tokens=1, ignore_eos=True))
    assert llm.memory()["row_states"] - first["row_states"] == (2 * states.nbytes if states else 0)
  assert llm.health().state == "dead"

# *** faults

def broken_once(monkeypatch, owner, name: str, error: BaseException, after: int = 3):
  """The method raises once, at its call number `after`."""
  right, calls = getattr(owner, name), iter(range(10**6))
  def call(*args):
    if next(calls) == after: raise error
    return right(*args)
  monkeypatch.setattr(owner, name, call)

def test_damaged_row_ends_alone(llm, monkeypatch):
  right, prompt = Request.chose, asked(7)[0]
  def chose(self, key, logits, is_chosen=False):
    def damaged():
      (values := logits().copy())[3] = np.nan
      return values
    tokens = self.sequence.tokens
    return right(self, key, damaged if tokens[:len(prompt)] == prompt and len(tokens) > len(prompt) + 2 else logits)
  want = alone(llm, 1)
  monkeypatch.setattr(Request, "chose", chose)
  streams = [llm.stream(asked(i)[0], **asked(i)[1]) for i in (1, 7)]
  results = []
  for stream in streams:
    try: results.append(list(stream))
    except InputError as e: results.append(str(e))
  assert results[0] == want
  assert "largest is nan" in results[1] and streams[1].finish == "error"

@pytest.mark.parametrize("error", [RuntimeError("boom"), MemoryError(), SystemExit(1)])
def test_broken_step_ends_all_streams(llm, monkeypatch, error):
  """Each reader gets an error, and the next stream works."""
  want = alone(llm, 0)
  broken_once(monkeypatch, llm.engine.steps, "decode", error)
  streams = [llm.stream(PROMPT, max_tokens=None, ignore_eos=True) for _ in range(3)]
  for stream in streams:
    with pytest.raises((InputError, tinygrad_llm.errors.DeviceError)): list(stream)
    assert stream.finish == stream.timing.finish == "error"
  assert list(llm.stream(asked(0)[0], **asked(0)[1])) == want

@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_dead_thread_is_an_error_for_all_readers(llm, monkeypatch):
  """Readers that wait, in threads and in asyncio, get it within some seconds, and the next stream works."""
  def dies(*_): raise SystemExit
  want, began = alone(llm, 0), time.perf_counter()
  with monkeypatch.context() as m:
    m.setattr(type(llm.engine), "step", dies)
    stream = llm.stream(PROMPT)
    with pytest.raises(InputError, match="thread"): next(stream)
    async def main(): return [token async for token in llm.astream(PROMPT)]
    with pytest.raises(InputError, match="thread"): asyncio.run(main())
  assert time.perf_counter() - began < 6
  assert list(llm.stream(asked(0)[0], **asked(0)[1])) == want

def test_tokens_without_text_are_no_reason_to_wait(llm, monkeypatch):
  """A reader that comes late finds all tokens: none of them wakes it again, whether or not it has a text."""
  monkeypatch.setattr(stream_module, "PATIENCE", 1000)
  async def main() -> str:
    stream = llm.astream(PROMPT, max_tokens=200, ignore_eos=True, pieces="text", stop=["\0"])
    while not stream._request.outbox.ended: await asyncio.sleep(0.01)
    return "".join([piece async for piece in stream])
  want = "".join(llm.text(llm.generate(PROMPT, max_tokens=200, ignore_eos=True)))
  assert asyncio.run(asyncio.wait_for(main(), 20)) == want

@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork(llm):
  """A child has an engine of its own and no request; its parent's streams go on, and are an error in the child."""
  want, whole = alone(llm, 0), list(llm.generate(PROMPT, max_tokens=None, ignore_eos=True))
  other = llm.stream(PROMPT, max_tokens=None, ignore_eos=True)
  first = next(other)  # the fork comes while it goes on
  if (pid := os.fork()) == 0:
    code = 1
    try:
      try: list(other)
      except InputError as e: code = 2 if "forked" not in str(e) else 3
      if code == 3 and not llm.engine.pool.counts().referenced:
        code = 0 if list(llm.stream(asked(0)[0], **asked(0)[1])) == want else 4
    finally: os._exit(code)
  assert [first, *other] == whole
  assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

def test_closed_model(model_file):
  """Streams under way end as "cancelled"; a new one is an InputError."""
  with load(model_file) as llm:
    streams = [llm.stream(PROMPT, max_tokens=None, ignore_eos=True) for _ in range(3)]
    next(streams[0])
  for stream in streams:
    list(stream)
    assert stream.finish in ("cancelled", "context")
  with pytest.raises(InputError, match="closed"): llm.stream(PROMPT)

def aborted(path: str, count: int) -> tuple[list[int], int, int]:
  """Resident bytes after each tenth of `count` requests, of which 30% end at random moments; held blocks, errors."""
  rng, llm, running, found = random.Random(0), tinygrad_llm.load(path, chunk=32), [], []
  for i in range(count):
    prompt, settings = asked(i)
    running.append((llm.stream(prompt, **settings), rng.randrange(24) if rng.random() < 0.3 else None))
    while len(running) > 12 or i == count - 1 and running:
      stream, left = running.pop(rng.randrange(len(running)))
      for n, _ in enumerate(stream):
        if n == left: break
      if left is not None and rng.random() < 0.5: stream.cancel()
      del stream
    if i % (count // 10) == count // 10 - 1: found.append(resident())
  idle(llm)
  return found, llm.engine.pool.counts().referenced, llm.engine.counters["errors"]

@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.parametrize("count", some((60, 500), 0))
def test_aborted_requests_leak_nothing(model_file, count):
  """The pool's pages are touched once, so memory is compared from the fourth tenth on."""
  path = str(model_file(types="F32", vocab=VOCAB, context=CONTEXT))
  found, held, errors = child.call(aborted, path, count).value
  assert held == errors == 0 and max(found[4:]) <= 1.02 * found[3], found
