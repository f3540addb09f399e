"""engine/states.py: recurrent layers start from the deepest state that fits; a state is never ahead of its tokens."""
import numpy as np
import pytest
import tinygrad_llm
from tests.support.read_at_once import reader
from tests.support.reference import Reference
from tinygrad_llm.device.buffers import fill, host_view
from tinygrad_llm.engine import lookahead, states
from tinygrad_llm.engine.lookahead import Lookahead
from tinygrad_llm.engine.states import States
from tinygrad_llm.nn.cache.state import State
from tinygrad_llm.nn.cache.state import PROMPT

CHUNK, EXACT = 16, 2e-3  # tokens; the limit of a logit's error in standard deviations
IDS = np.random.default_rng(8).integers(0, 320, 90).tolist()

@pytest.fixture(scope="module")
def path(model_file): return model_file(arch="lfm2", layers=3, vocab=320)

@pytest.fixture(scope="module")
def loaded(path): return tinygrad_llm.load(str(path), max_context=128, chunk=CHUNK)

@pytest.fixture
def llm(loaded):
  """The model with an empty context, and NaN in all memory that nothing has written yet."""
  loaded._context.forget()
  for cache in loaded.model.caches: fill(cache.kv, lambda memory: memory.fill(np.nan))
  for state in loaded.model.states:
    for held in (*state.turns, state.prompt):
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

@pytest.mark.parametrize("n", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 5])
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
  copies, copy = list[int](), states.copy
  monkeypatch.setattr(states, "copy", lambda to, of: (copies.append(len(llm._held)), copy(to, of)))
  for position in range(20, 30): llm.step(IDS[position], position)
  assert set(copies) == {20}

def test_step_far_back(llm, exact):
  """A step at a position of which no state is left feeds the tokens before it again."""
  llm.prefill(IDS[:40])
  for position in range(40, 46): llm.step(IDS[position], position)
  exact(llm.step(3, 30), [*IDS[:30], 3])
  exact(llm.step(5, 31), [*IDS[:30], 3, 5])

def fed(llm, monkeypatch) -> list[tuple[int, int]]:
  """Notes (position, tokens) of each chunk."""
  chunks, prefill = list[tuple[int, int]](), llm.steps.prefill
  def noted(tokens, position):
    chunks.append((position, len(tokens)))
    return prefill(tokens, position)
  monkeypatch.setattr(llm.steps, "prefill", noted)
  return chunks

def answered(llm, prompt: list[int], n: int = 6) -> list[int]: return list(llm.generate(prompt, n, ignore_eos=True))

def test_next_prompt_starts_at_end_of_last_one(llm, exact, monkeypatch):
  """A next turn that drops what was answered shares the last prompt; it is fed from its end, not from its start."""
  answered(llm, IDS[:37])
  chunks = fed(llm, monkeypatch)
  turn = [*IDS[:37], 4, 5, 6]
  answered(llm, turn)
  assert chunks == [(37, 3)] and llm.timing.cached_tokens == 37
  exact(llm.prefill(turn), turn)

def test_next_prompt_starts_at_end_of_answer(llm, exact, monkeypatch):
  """A prompt that continues the answer starts from the state after its last fed token."""
  whole = [*IDS[:21], *answered(llm, IDS[:21])]
  chunks = fed(llm, monkeypatch)
  answered(llm, [*whole, 8, 9])
  assert chunks == [(26, 3)]  # the last token of the answer was not fed
  exact(llm.prefill([*whole, 8, 9]), [*whole, 8, 9])

def test_changed_turn_starts_at_checkpoint(llm, exact, monkeypatch):
  """A prompt with another last turn starts from the end of the prompt before, or from a chunk's end inside it."""
  first, second = IDS[:40], [*IDS[:40], *IDS[50:60]]
  answered(llm, first)
  answered(llm, second)
  chunks = fed(llm, monkeypatch)
  third = [*IDS[:40], 9, 9, 9]
  answered(llm, third)
  assert chunks == [(40, 3)]
  chunks.clear()
  fourth = [*IDS[:35], 1, 1]
  answered(llm, fourth)
  assert chunks == [(32, 5)]
  exact(llm.prefill(fourth), fourth)

def test_same_prompt_again(llm, monkeypatch):
  """The same prompt again starts from its last full chunk, and gives the same answer."""
  want = answered(llm, IDS[:40])
  chunks = fed(llm, monkeypatch)
  assert answered(llm, IDS[:40]) == want and chunks == [(32, 8)]

def test_random_prompts(llm, exact):
  """Prompts and answers with prefixes of earlier ones, at random: each is like one from an empty context."""
  rng, texts = np.random.default_rng(3), [IDS[:10]]
  for _ in range(25):
    base = texts[rng.integers(len(texts))]
    ids = [*base[:rng.integers(0, len(base) + 1)], *rng.integers(0, 320, rng.integers(1, 30)).tolist()][:100]
    if rng.random() < 0.3: exact(llm.prefill(ids), ids)
    else:
      out = answered(llm, ids, int(rng.integers(1, 5)))
      exact(llm.step(11, len(llm._held)), [*llm._held[:-1], 11])
      ids = [*ids, *out]
    texts.append(ids)

def test_lookahead_runs_one_step_too_far(llm, exact, monkeypatch):
  """Where steps are launched ahead, the last one fed a token that is not held; a next prompt does not see it."""
  monkeypatch.setattr(lookahead, "reader", reader)
  plain = answered(llm, IDS[:25], 9)
  monkeypatch.setattr(llm, "_lookahead", Lookahead(llm.model, 512))
  end = plain[4]
  monkeypatch.setattr(llm.tokenizer, "stop_ids", frozenset({end}))
  cut = list(llm.generate(IDS[:25], 9))
  assert cut == plain[:plain.index(end)]
  turn = [*IDS[:25], *cut, 3, 2, 1]
  exact(llm.prefill(turn), turn)
  assert answered(llm, IDS[:25], 9) == plain

def test_checkpoints_are_bounded(llm):
  """Many prompts leave a few checkpoints, whose gaps grow with the distance from the end; their memory is reused."""
  ids, held = [*IDS, *IDS[:30]], llm._context.states
  for n in range(8, 120, 8): answered(llm, ids[:n], 1)
  ends = [c.tokens for c in held.checkpoints]
  gaps = np.diff([0, *ends, 112]).tolist()
  assert len(ends) == states.CHECKPOINTS and ends[-1] == 104 and gaps == sorted(gaps, reverse=True)
  taken = held.nbytes
  assert taken <= sum(s.nbytes for s in llm.model.states) * (3 + states.CHECKPOINTS) // 3
  for n in range(8, 120, 8): answered(llm, [5, *ids[:n]], 1)
  assert held.nbytes == taken

def test_long_prompt_is_kept_in_parts(llm, monkeypatch):
  """A prompt that shares a part of a long one starts from one of each few chunks' ends."""
  llm.prefill([*IDS, *IDS[:30]])
  chunks = fed(llm, monkeypatch)
  answered(llm, [*IDS[:80], 1, 2], 1)
  assert chunks == [(64, 16), (80, 2)]

# *** the bookkeeping alone

def values(held: States, turn: int) -> float:
  view = host_view(held._tensors(turn)[0])
  assert view is not None
  return float(view.flat[0])

@pytest.mark.parametrize("seed", range(4))
def test_random_events(seed):
  """
  Prompts, steps, cuts and captures in any order. A state's number is the hash of its tokens; what is loaded is right.
  """
  rng, held = np.random.default_rng(seed), States([State([(1, 1)])])
  tokens: list[int] = []
  def number(n: int) -> float: return float(np.float32(hash(tuple(tokens[:n])) % 100003 if n else 0))
  def put(turn: int, n: int) -> None: fill(held._tensors(turn)[0], lambda memory: memory.fill(number(n)))
  for _ in range(400):
    what = rng.random()
    if what < 0.3:  # a prompt that shares a prefix
      same = int(rng.integers(0, len(tokens) + 1))
      start = held.resume(same)
      assert start <= same and (not start or values(held, PROMPT) == number(start))
      del tokens[start:]
      held.cut(start)
      for _ in range(int(rng.integers(1, 4))):
        held.keep()
        tokens += rng.integers(0, 9, int(rng.integers(1, 6))).tolist()
        put(PROMPT, len(tokens))
        held.fed_prompt(len(tokens))
    elif what < 0.9:  # a step, perhaps back by one
      position = len(tokens) - int(rng.random() < 0.2 and len(tokens) > 0)
      if not held.is_ready(position): continue
      del tokens[position:]
      held.cut(position)
      held.before_decode(position)
      assert not position or values(held, position % 2) == number(position)
      tokens.append(int(rng.integers(0, 9)))
      put(1 - position % 2, position + 1)
      if rng.random() < 0.1: tokens.pop()  # a step that was launched too far
      else: held.decoded(position)
    elif what < 0.95:
      held.free_turns()
      for turn in (0, 1): fill(held._tensors(turn)[0], lambda memory: memory.fill(np.nan))
    else:
      assert len(held.checkpoints) <= states.CHECKPOINTS
      assert all(host_view(c.copies[0]).flat[0] == number(c.tokens) for c in held.checkpoints)  # type: ignore
