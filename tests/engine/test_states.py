"""Recurrent layers start from the deepest snapshot that fits, and a state is never ahead of its tokens."""
import numpy as np
import pytest
import tinygrad_llm
from tests.support.read_at_once import reader
from tests.support.reference import Reference
from tinygrad_llm.device.buffers import fill
from tinygrad_llm.engine import llm as llm_module
from tinygrad_llm.engine.batch import engine, row_ahead, row_states

CHUNK, EXACT = 32, 2e-3  # tokens; the limit of a logit's error in standard deviations
IDS = np.random.default_rng(8).integers(0, 315, 250).tolist()

@pytest.fixture(scope="module")
def path(model_file): return model_file(arch="lfm2", layers=3, vocab=315)

@pytest.fixture(scope="module", params=["stepwise", "ahead"])
def loaded(path, request):
  """Where steps are launched ahead, the last one of an answer may have fed a token that is none of it."""
  with pytest.MonkeyPatch.context() as m:
    m.setattr(engine, "SPACED", 64)
    if request.param == "ahead":
      m.setattr(llm_module, "is_asynchronous", lambda _: True)
      m.setattr(row_ahead, "reader", reader)
    yield tinygrad_llm.load(str(path), max_context=320, chunk=CHUNK)

@pytest.fixture
def llm(loaded):
  """The model with nothing in its pool, and NaN in all states. Blocks are cleared, as they are after an error."""
  pool, states = loaded.engine.pool, [state.pool for state in loaded.model.states]
  with loaded.lock:
    loaded._by_hand.leave()
    while pool.tree.evict(): pass
    assert not pool.blocks.referenced and not len(pool.tree.snapshots)
    for held in (part for state in states for part in (*state.turns, state.prompt)):
      for x in held: fill(x, lambda memory: memory.fill(np.nan))
  return loaded

@pytest.fixture(scope="module")
def exact(path):
  """exact(ids): the reference's logits after the last token."""
  reference = Reference(path)
  spread = reference.logits(IDS).std()
  def check(logits: np.ndarray, ids: list[int]) -> None:
    assert np.abs(logits - reference.logits(ids)[-1]).max() <= EXACT * spread
  return check

@pytest.mark.parametrize("n", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 63, 64, 65, 3 * CHUNK + 5, 200])
def test_lengths(llm, exact, n):
  """Prompts of any length, from memory that holds NaN, and a step after them."""
  exact(llm.prefill(IDS[:n]), IDS[:n])
  exact(llm.step(IDS[n], n), IDS[:n + 1])

def test_step_runs_again(llm, exact):
  """A step at one position may run again, with the same token and with another one."""
  llm.prefill(IDS[:20])
  for token in (IDS[20], IDS[20], 7): exact(llm.step(token, 20), [*IDS[:20], token])
  for position in (21, 22): exact(llm.step(IDS[position], position), [*IDS[:20], 7, *IDS[21:position + 1]])
  exact(llm.step(9, 21), [*IDS[:20], 7, 9])  # one token back: the state before it is still there

def test_steps_copy_no_state(llm, monkeypatch):
  """Steps by hand, one after another, copy states once: from where prompts keep them."""
  llm.prefill(IDS[:20])
  copies, copy = list[int](), row_states.copy
  monkeypatch.setattr(row_states, "copy", lambda to, of: (copies.append(position), copy(to, of)))
  for position in range(20, 30): llm.step(IDS[position], position)
  assert set(copies) == {20}

def test_step_far_back(llm, exact):
  """A step at a position of which no state is left feeds the tokens before it again."""
  llm.prefill(IDS[:40])
  for position in range(40, 46): llm.step(IDS[position], position)
  exact(llm.step(3, 30), [*IDS[:30], 3])
  exact(llm.step(5, 31), [*IDS[:30], 3, 5])

def fed(llm, monkeypatch) -> list[tuple[int, int]]:
  """Notes (position, tokens) of each piece."""
  pieces, piece = list[tuple[int, int]](), llm.engine.steps.piece
  def noted(tokens, position, *tables):
    pieces.append((position, len(tokens)))
    return piece(tokens, position, *tables)
  monkeypatch.setattr(llm.engine.steps, "piece", noted)
  return pieces

def answered(llm, prompt: list[int], n: int = 6) -> list[int]: return list(llm.generate(prompt, n, ignore_eos=True))

def test_next_prompt_starts_in_the_last_one(llm, exact, monkeypatch):
  """A next turn that drops what was answered shares the last prompt; it is fed from the last whole block on."""
  answered(llm, IDS[:150])
  pieces = fed(llm, monkeypatch)
  turn = [*IDS[:150], 4, 5, 6]
  answered(llm, turn)
  assert pieces == [(128, 25)] and llm.timing.cached_tokens == 128
  exact(llm.prefill(turn), turn)

@pytest.mark.parametrize("n", [21, 58, 59, 60, 122])
def test_next_prompt_starts_at_end_of_answer(llm, exact, monkeypatch, n):
  """A prompt that continues the answer starts from the state after its last fed token, also within a block."""
  whole = [*IDS[:n], *answered(llm, IDS[:n])]
  pieces = fed(llm, monkeypatch)
  turn = [*whole, 8, 9]
  answered(llm, turn)
  assert pieces[0][0] == n + 5 and sum(count for _, count in pieces) == 3  # the answer's last token was not fed
  exact(llm.prefill(turn), turn)

@pytest.mark.parametrize("how", ["end token", "closed"])
def test_answers_that_stop(llm, exact, monkeypatch, how):
  """An answer that ends before its limit leaves the state of the tokens that it has, or none."""
  plain = answered(llm, IDS[:70], 9)
  if how == "end token": monkeypatch.setattr(llm.tokenizer, "stop_ids", frozenset({plain[4]}))
  answer = llm.generate(IDS[:70], 9, ignore_eos=how == "closed")
  cut = [next(answer) for _ in range(plain.index(plain[4]))]
  if how == "closed": answer.close()
  else: assert next(answer, None) is None
  turn = [*IDS[:70], *cut, 3, 2, 1]
  assert llm.generate(turn, 1).__next__() == llm.logits(turn)[-1].argmax()
  exact(llm.prefill(turn), turn)
  monkeypatch.undo()
  assert answered(llm, IDS[:70], 9) == plain

def test_changed_turn_starts_at_a_snapshot(llm, exact, monkeypatch):
  """A prompt with another last turn starts from a snapshot inside the longer one."""
  answered(llm, [*IDS[:200], *IDS[50:60]])
  pieces = fed(llm, monkeypatch)
  for same in (195, 130, 70):
    pieces.clear()
    turn = [*IDS[:same], 9, 9, 9]
    answered(llm, turn)
    assert pieces[0][0] == same // 64 * 64 and sum(count for _, count in pieces) == same % 64 + 3
    exact(llm.prefill(turn), turn)

def test_same_prompt_again(llm, monkeypatch):
  want = answered(llm, IDS[:150])
  pieces = fed(llm, monkeypatch)
  assert answered(llm, IDS[:150]) == want and pieces == [(128, 22)]

def test_random_prompts(llm, exact):
  """Prompts and answers with prefixes of earlier ones, at random: each is like one from an empty pool."""
  rng, texts = np.random.default_rng(3), [IDS[:10]]
  for _ in range(25):
    base = texts[rng.integers(len(texts))]
    ids = [*base[:rng.integers(0, len(base) + 1)], *rng.integers(0, 315, rng.integers(1, 90)).tolist()][:250]
    exact(llm.prefill(ids, int(rng.integers(0, len(ids)))), ids)
    if rng.random() < 0.7:
      ids = [*ids, *answered(llm, ids, int(rng.integers(1, 9)))]
      exact(llm.prefill(ids, len(ids) - 1), ids)
    texts.append(ids)

def test_snapshots_are_bounded(llm, monkeypatch):
  """Many prompts keep no more bytes of states than the budget has, and begin from those that are left."""
  snapshots = llm.engine.pool.tree.snapshots
  size = llm.engine._states.nbytes
  monkeypatch.setattr(snapshots, "budget", 3 * size)
  for n in range(70, 240, 8): answered(llm, IDS[:n], 1)
  assert snapshots.nbytes == 3 * size
  assert answered(llm, IDS[:232], 1) == [int(llm.logits(IDS[:232])[-1].argmax())]
  assert llm.memory()["row_states"] >= snapshots.nbytes

def test_no_memory_for_a_snapshot(llm, exact, monkeypatch):
  """The blocks of a sequence come back all the same, and the next prompt has right numbers."""
  def none(*_): raise MemoryError
  llm.prefill(IDS[:40])
  monkeypatch.setattr(llm.engine._states, "snapshot", none)
  with llm.lock: llm._by_hand.leave()
  assert not llm.engine.pool.counts().referenced
  monkeypatch.undo()
  exact(llm.prefill(IDS[:45]), IDS[:45])
