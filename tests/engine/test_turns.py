"""Interleaved answers of one model, by one thread or several: each answer is the same as alone, and later ones are."""
import gc
import itertools
import os
import random
import threading
import time

import numpy as np
import pytest
from tests.support.extended import some
import tinygrad_llm
from tests.support.read_at_once import reader
from tinygrad_llm import InputError
from tinygrad_llm.engine import llm as llm_module
from tinygrad_llm.engine.answer import AHEAD
from tinygrad_llm.engine.batch import row_ahead, row_states, row_steps

PROMPTS = [[5, 17, 300, 44], [5, 17, 9], [7] * 20, [5, 17, 300, 44, 8, 2, 1, 100, 33]]
ASKED = [{}, {"temperature": 1.5, "seed": 3}, {"temperature": 0.9, "top_k": 40, "seed": 8}, {"repeat_penalty": 1.3},
         {"temperature": 2.0, "repeat_penalty": 1.2, "seed": 1}]

@pytest.fixture(scope="module", params=["stepwise", "ahead", "recurrent", "recurrent ahead"])
def llm(request, model_file):
  # F32 where states are fed again: with int8 activations, a prompt and single tokens lead to slightly other states
  kind = {"arch": "lfm2", "layers": 3, "types": "F32"} if "recurrent" in request.param else {"types": "Q8_0"}
  with pytest.MonkeyPatch.context() as m:
    if "ahead" in request.param:
      m.setattr(llm_module, "is_asynchronous", lambda _: True)
      m.setattr(row_ahead, "reader", reader)
    yield tinygrad_llm.load(str(model_file(vocab=373, context=96, **kind)), max_context=4096, chunk=16)

def start(llm, i: int, count: int = 20):
  return llm.generate(PROMPTS[i % len(PROMPTS)], max_tokens=count, ignore_eos=True, **ASKED[i % len(ASKED)])

def forget(llm) -> None:
  """Empties the tree of prefixes."""
  with llm.lock:
    while llm.engine.pool.tree.evict(): pass

def alone(llm, i: int) -> list[int]:
  forget(llm)
  return list(start(llm, i))

def held_is_written(llm) -> None:
  """Blocks that an answer and its prompt have left are reused as if they were fresh."""
  ids = [*PROMPTS[2], *alone(llm, 2)[:12], 3, 200]
  got = list(llm.generate(ids, max_tokens=4, ignore_eos=True))
  forget(llm)
  assert got == list(llm.generate(ids, max_tokens=4, ignore_eos=True))

@pytest.mark.parametrize("seed", some(range(4), 2))
def test_random_interleaving_of_answers(llm, seed):
  """Answers begin, go on, end and are dropped in any order, with logits and prefills in between."""
  rng, want = random.Random(seed), {i: alone(llm, i) for i in range(5)}
  running, got = dict[int, object](), dict[int, list[int]]()
  for _ in range(160):
    i, what = rng.randrange(5), rng.random()
    if what < 0.03: llm.logits(rng.choice(PROMPTS))
    elif what < 0.06: llm.prefill(rng.choice(PROMPTS))
    elif what < 0.08 and i in running: running.pop(i).close()
    elif what < 0.10 and i in running:
      del running[i]
      gc.collect()
    elif i not in running: running[i], got[i] = start(llm, i), []
    else:
      for _ in range(rng.choice([1, 1, 1, 2, 5])):
        if (token := next(running[i], None)) is None:
          assert got[i] == want[i]
          del running[i]
          break
        got[i].append(token)
        assert got[i] == want[i][:len(got[i])]
  held_is_written(llm)

def test_interruption_reads_nothing_again(llm, monkeypatch):
  """An answer goes on after others, and after prompts by hand, from its own blocks and states."""
  want, fed = alone(llm, 2), []
  answer = start(llm, 2)
  first = [next(answer) for _ in range(8)]
  list(llm.generate([9, 8], max_tokens=2))
  llm.logits([4, 4, 4])
  piece = llm.engine.steps.piece
  monkeypatch.setattr(llm.engine.steps, "piece", lambda *of: (fed.append(of), piece(*of)))
  assert first + list(answer) == want and fed == []

@pytest.mark.parametrize("seed", some(range(4), 1))
def test_logits_whose_blocks_others_take(llm, seed):
  """Between two pieces of a prompt by hand, a stream may take its blocks: each position still has one row of logits."""
  rng = random.Random(seed)
  ids = [rng.randrange(373) for _ in range(rng.randrange(80, 96))]
  want, first, got = llm.logits(ids), rng.randrange(30), list[np.ndarray]()
  for rows in llm.iter_logits(ids, first):
    got.append(rows)
    with llm.lock:
      if rng.random() < 0.7: llm.engine.pool.leave(next(iter(llm.engine.pool.guests), None))
    if rng.random() < 0.7: forget(llm)
  np.testing.assert_array_equal(np.concatenate(got), want[first:])

def test_dropped_logits_keep_no_blocks(llm):
  """An iterator that is dropped between two pieces: its blocks are given back when another answer begins."""
  def held(below: float) -> int:
    list(start(llm, 0, 2))
    end = time.perf_counter() + 20  # the engine lets an answer go a moment after its last token
    while (found := llm.pool_counts().referenced) >= below and time.perf_counter() < end: time.sleep(0.001)
    return found
  before = held(3)
  next(rows := llm.iter_logits([2] * 90))
  assert llm.pool_counts().referenced > before
  del rows
  assert held(before + 1) == before

def test_memory_out_of_the_hosts_reach(llm, monkeypatch):
  for module in (row_steps, row_states): monkeypatch.setattr(module, "host_view", lambda tensor: None)
  want = [alone(llm, i) for i in range(2)]
  assert [list(x) for x in zip(*zip(start(llm, 0), start(llm, 1)))] == want
  held_is_written(llm)

def test_answer_waits_for_its_reader(llm):
  """The engine is a few tokens ahead of a reader, and idle then; a full pool takes the answer's blocks."""
  want, answer = alone(llm, 0), start(llm, 0)
  got = [next(answer), next(answer)]
  end = time.perf_counter() + 30
  while llm.health().state != "idle" and time.perf_counter() < end: time.sleep(0.01)
  assert llm.health().state == "idle" and answer._request.outbox.unread == AHEAD
  assert len(answer._request.sequence.tokens) == len(PROMPTS[0]) + 2 + AHEAD
  assert answer.tokens == [*PROMPTS[0], *got]
  with llm.lock: assert llm.engine.scheduler.preempt() and not llm.engine.scheduler.preempt()
  assert got + list(answer) == want

def test_answers_in_parallel_threads(llm):
  want, got = [alone(llm, i) for i in range(4)], [list[int]() for _ in range(4)]
  def read(i): got[i].extend(start(llm, i))
  threads = [threading.Thread(target=read, args=[i]) for i in range(4)]
  for t in threads: t.start()
  for t in threads: t.join()
  assert got == want
  held_is_written(llm)

def test_one_answer_shared_by_threads(llm):
  want, answer, got = alone(llm, 1), start(llm, 1), []
  def read(): got.extend(itertools.islice(answer, 5))
  for _ in range(4):
    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
  assert got == want

def test_each_answer_has_its_own_timing(llm):
  a, b = start(llm, 0, 3), start(llm, 1, 5)
  next(a), next(b)
  assert llm.timing is b.timing and a.timing.finish == b.timing.finish == "cancelled"
  list(b), list(a)
  assert (a.timing.tokens, b.timing.tokens, a.timing.prompt_tokens, b.timing.prompt_tokens) == (3, 5, 4, 3)

def test_finish_reason(llm, monkeypatch):
  def finish(**asked):
    answer = llm.generate(PROMPTS[0], **asked)
    tokens = list(answer)
    return len(tokens), answer.timing.finish
  whole = alone(llm, 0)
  assert finish(max_tokens=3, ignore_eos=True) == (3, "length")
  assert finish(max_tokens=0) == (0, "length")
  assert finish(max_tokens=-1, ignore_eos=True) == finish(max_tokens=None, ignore_eos=True) == (93, "context")
  assert finish(max_tokens=93, ignore_eos=True) == (93, "length")
  monkeypatch.setattr(llm.tokenizer, "stop_ids", frozenset({whole[-1]}))
  assert finish(max_tokens=50) == (whole.index(whole[-1]), "stop")

def test_prefill_and_step(llm):
  """By hand, between other users of the model: what was fed goes on, and what is lost is read again."""
  ids = [1, 2, 3, 4, 5, 6]
  want = llm.logits([*ids, 7])
  llm.prefill(ids[:4])
  llm.prefill(ids, 4)
  near = np.abs(llm.step(7, 6) - want[-1]).max()
  assert near < 0.05 * want.std()
  def lose() -> None:
    with llm.lock: llm.engine.pool.leave(llm.engine.pool.guests[0])
    while llm.engine.pool.tree.evict(): pass
  for other in (lambda: list(start(llm, 0, 3)), lambda: llm.logits([2, 2, 2]), lambda: next(start(llm, 2)),
                lambda: llm.logits([2] * 20), lose):
    llm.prefill(ids)
    other()
    assert np.abs(llm.step(7, 6) - want[-1]).max() <= 2 * near + 1e-6
    other()
    assert np.abs(llm.prefill([*ids, 7], 6) - want[-1]).max() <= 2 * near + 1e-6
    assert np.abs(llm.step(7, 6) - want[-1]).max() <= 2 * near + 1e-6
  assert np.abs(llm.prefill([*ids, 7]) - want[-1]).max() <= near + 1e-6
  with pytest.raises(InputError, match="step: position 8"): llm.step(7, 8)

WRONG = ["123", b"12", [1.7], [True], ["1"], [None], [[1, 2]], 5, None, [float("nan")], {1: 2}, [373], [-1], []]

@pytest.mark.parametrize("ids", WRONG, ids=repr)
def test_rejects_wrong_ids(llm, ids):
  for call in (llm.generate, llm.logits, llm.prefill):
    with pytest.raises(InputError, match="prompt: "): call(ids)

def test_accepts_whole_numbers_of_any_type(llm):
  want = alone(llm, 0)[:4]
  for ids in (np.array(PROMPTS[0]), tuple(map(np.int16, PROMPTS[0])), [float(x) for x in PROMPTS[0]], iter(PROMPTS[0])):
    assert list(llm.generate(ids, max_tokens=np.float32(4.0), top_k=np.uint8(0), ignore_eos=True)) == want

@pytest.mark.parametrize("name", ["max_tokens", "top_k", "seed"])
@pytest.mark.parametrize("value", [True, "3", 1.7, np.bool_(True), float("inf"), [3], -2], ids=repr)
def test_rejects_wrong_numbers(llm, name, value):
  with pytest.raises(InputError, match=f"^{name}: "): llm.generate(PROMPTS[0], **{name: value})
  for call in (lambda: llm.step(value, 0), lambda: llm.step(1, value), lambda: llm.prefill([1, 2], value)):
    if not np.isscalar(value) or not (isinstance(value, int) and value >= 0) or value is True:
      with pytest.raises(InputError): call()

@pytest.mark.parametrize("name", ["max_context", "chunk"])
@pytest.mark.parametrize("value", [True, "3", 1.7, 0, None], ids=repr)
def test_rejects_wrong_load_sizes(model_file, name, value):
  with pytest.raises(InputError, match=f"^{name}: "):
    tinygrad_llm.load(str(model_file(types="Q8_0", vocab=373, context=96)), **{name: value})

@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork_while_another_thread_holds_lock(llm):
  want, held, leave = alone(llm, 0), threading.Event(), threading.Event()
  def hold():
    with llm.lock:
      held.set()
      leave.wait(30)
  thread = threading.Thread(target=hold)
  thread.start()
  held.wait(30)
  if (pid := os.fork()) == 0: os._exit(0 if list(start(llm, 0)) == want else 1)
  leave.set()
  thread.join()
  assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
