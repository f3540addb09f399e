"""generate() and chat(): the tokens and texts they yield, when they end, what they refuse."""
import pathlib

from tests.support import child
import numpy as np
import pytest
import tinygrad_llm
from tinygrad_llm import InputError
from tinygrad_llm.engine import steps
from tinygrad_llm.engine.steps import positions_for

PROMPT = [5, 17, 300, 44]

@pytest.fixture(scope="module")
def llm(model_file):
  return tinygrad_llm.load(str(model_file(types="Q8_0", vocab=371, context=96)), max_context=4096, chunk=16)

def greedy(llm, ids, count):
  ids = list(ids)
  for _ in range(count): ids.append(int(llm.logits(ids)[-1].argmax()))
  return ids[-count:]

def test_context_is_capped_by_the_model(llm): assert llm.max_context == 96

def test_cache_bucket_sizes(monkeypatch):
  """
  A bucket is 512 * 2^n, at most twice the request above 512. If memory is not lazy, it is at most 511 more than the
  request. It is never more than the model's own context.
  """
  contexts = (1, 511, 512, 513, 1025, 1537, 5000)
  assert [positions_for(n, 1 << 20) for n in contexts] == [512, 512, 512, 1024, 2048, 2048, 8192]
  assert [positions_for(n, 1000) for n in (300, 513, 1000)] == [512, 1000, 1000] and positions_for(96, 96) == 96
  monkeypatch.setattr(steps, "is_lazy", lambda: False)
  assert [positions_for(n, 1 << 20) for n in contexts] == [512, 512, 512, 1024, 1536, 2048, 5120]

def test_context_is_as_requested(model_file):
  """The context is the requested one, although the cache has room for more."""
  llm = tinygrad_llm.load(str(model_file(types="Q8_0", vocab=371, context=96)), max_context=40, chunk=16)
  assert llm.max_context == 40 and len(list(llm.generate(PROMPT, max_tokens=None, ignore_eos=True))) == 40 - 4 + 1
  with pytest.raises(InputError, match="context of 40"): llm.logits(list(range(41)))
  for position in (40, 41, -1):
    with pytest.raises(InputError, match="position"): llm.step(1, position)
  with pytest.raises(InputError, match="context of 40"): llm.prefill([1] * 41, 36)

def test_unused_cache_positions_take_no_memory(model_file):
  """The cache has 2^19 positions for a request of 2^18 + 1; unused ones take no memory."""
  path = model_file(types="Q8_0", vocab=371, context=1 << 20)
  code = f"""import tinygrad_llm
def resident(): return int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1])
tinygrad_llm.load({str(path)!r}, max_context=8)
before = resident()
llm = tinygrad_llm.load({str(path)!r}, max_context=(1 << 18) + 1)
caches = llm.engine.steps.nbytes
print(resident() - before << 10, caches, llm.model.ropes[0].nbytes())"""
  if not pathlib.Path("/proc/self/status").exists(): pytest.skip("no /proc here")
  grown, caches, rope = map(int, child.run(code, DEV="CPU").stdout.split())
  assert caches > 2 ** 19 * 64 and grown < 0.75 * rope + 2 ** 24 < caches

def test_greedy_follows_the_logits(llm):
  assert list(llm.generate(PROMPT, max_tokens=8, ignore_eos=True)) == greedy(llm, PROMPT, 8)

def test_logits_start_from_an_empty_context(llm):
  first = llm.logits(PROMPT)
  list(llm.generate([9, 8, 7], max_tokens=3, ignore_eos=True))
  np.testing.assert_array_equal(llm.logits(PROMPT), first)

def test_max_tokens(llm):
  assert list(llm.generate(PROMPT, max_tokens=0)) == []
  assert len(list(llm.generate(PROMPT, max_tokens=1, ignore_eos=True))) == 1
  assert llm.timing.tokens == 1

def test_generation_ends_at_context_limit(llm):
  """The last position still gives a token: 96 positions, 4 of them in the prompt, make 93 tokens."""
  assert len(list(llm.generate(PROMPT, max_tokens=None, ignore_eos=True))) == 96 - 4 + 1
  assert len(list(llm.generate(list(range(96)), max_tokens=None, ignore_eos=True))) == 1

def test_common_prefix_is_reused(llm):
  long = [*PROMPT, 1, 2, 3, 4, 5, 6]
  def forget():
    with llm.lock:
      while llm.engine.pool.tree.evict(): pass
  forget()
  fresh = list(llm.generate(long, max_tokens=6, ignore_eos=True))
  assert llm.timing.cached_tokens == 0
  forget()
  llm.logits(PROMPT)
  assert list(llm.generate(long, max_tokens=6, ignore_eos=True)) == fresh
  assert llm.timing.cached_tokens == len(PROMPT)
  assert list(llm.generate(long, max_tokens=6, ignore_eos=True)) == fresh
  assert llm.timing.cached_tokens == len(long) - 1

def test_abandoned_answer_leaves_no_state(llm):
  whole = list(llm.generate(PROMPT, max_tokens=6, ignore_eos=True))
  tokens = llm.generate([3, 2, 1], max_tokens=50, ignore_eos=True)
  for _ in range(4): next(tokens)
  tokens.close()
  assert list(llm.generate(PROMPT, max_tokens=6, ignore_eos=True)) == whole

def test_seed(llm):
  def sample(seed): return list(llm.generate(PROMPT, max_tokens=12, temperature=1.5, seed=seed, ignore_eos=True))
  assert sample(1) == sample(1)
  assert sample(1) != sample(2)

def test_only_token_ids_are_copied_to_host(llm, monkeypatch):
  sizes, steps = list[int](), llm.engine.steps
  def counted(reading):
    def found(tensor):
      sizes.append(int(tensor.numel()))
      return reading(tensor)
    return found
  want = greedy(llm, PROMPT, 9)
  for name in ("_reading", "_numbers"): monkeypatch.setattr(steps, name, counted(getattr(steps, name)))
  assert list(llm.generate(PROMPT, max_tokens=9, ignore_eos=True)) == want
  assert sizes == [1] * 8
  sizes.clear()
  assert len(list(llm.generate(PROMPT, max_tokens=9, repeat_penalty=1.2, ignore_eos=True))) == 9
  assert sizes == [1, 371] * 8

def test_end_of_turn(llm, monkeypatch):
  whole = list(llm.generate(PROMPT, max_tokens=10, ignore_eos=True))
  last = next(t for t in whole if t != whole[0])
  monkeypatch.setattr(llm.tokenizer, "stop_ids", frozenset({last}))
  assert list(llm.generate(PROMPT, max_tokens=10)) == whole[:whole.index(last)]

def test_stop_string(llm):
  whole = list(llm.generate(PROMPT, max_tokens=10, ignore_eos=True))
  text = llm.tokenizer.decode(whole)
  stop = text[len(text) // 2:len(text) // 2 + 2]
  cut = list(llm.generate(PROMPT, max_tokens=10, ignore_eos=True, stop=[stop]))
  assert cut == whole[:len(cut)]
  assert stop in llm.tokenizer.decode(cut)
  assert stop not in llm.tokenizer.decode(cut[:-1])
  assert "".join(llm.text(whole, [stop])) == text[:text.index(stop)]

def test_text_is_the_decoded_tokens(llm):
  tokens = list(llm.generate(PROMPT, max_tokens=40, temperature=2.0, seed=3, ignore_eos=True))
  assert "".join(llm.text(tokens)) == llm.tokenizer.decode(tokens)

def test_chat_is_generate_on_the_prompt(llm):
  messages = [{"role": "user", "content": "hi"}]
  expected = "".join(llm.text(llm.generate(llm.prompt(messages), max_tokens=9), llm.template.stop))
  assert "".join(llm.chat(messages, max_tokens=9)) == expected

def test_fit_drops_the_oldest_turns(llm):
  messages = [{"role": "system", "content": "s"}]
  for i in range(20): messages += [{"role": "user", "content": f"{i}"}, {"role": "assistant", "content": "ok"}]
  messages.append({"role": "user", "content": "last"})
  kept = llm.fit(messages)
  assert len(llm.prompt(kept)) <= 96 * 3 // 4
  assert kept[0]["role"] == "system"
  assert kept[1]["role"] == "user"
  assert kept == [messages[0], *messages[-(len(kept) - 1):]]
  assert llm.fit(messages[:2]) == messages[:2]
  assert llm.fit([]) == []
  one_more = [messages[0], *messages[-(len(kept) + 1):]]  # no more is left out than needed
  assert len(llm.prompt(one_more)) > 96 * 3 // 4

@pytest.mark.parametrize(("system", "asked", "words"), [
  (9, 100, "the message: "), (200, 9, "the system message with this one: "), (200, 200, "the message: ")])
def test_fit_names_what_is_too_long(llm, system, asked, words):
  turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
  messages = [{"role": "system", "content": "s" * system}, *turns, {"role": "user", "content": "u" * asked}]
  with pytest.raises(InputError, match=f"{words}[0-9]+ tokens do not fit the context of 96"): llm.fit(messages)

def test_decode_cost(llm):
  list(llm.generate(PROMPT, max_tokens=1, ignore_eos=True))
  kernels, moved = llm.decode_cost() or (0, 0)
  weights = sum(w.nbytes for names, w in llm.weights.items() if names != ("token_embd.weight",))  # one row is read
  assert 10 < kernels < 60  # 2 layers, with 8-bit activations
  assert weights < moved < 1.5 * weights  # a tiny model: activations and the cache count, too

@pytest.mark.parametrize(("ids", "words"), [([], "no tokens"), ([0, 371], "token 371"), ([-1], "token -1"),
                                            ([0] * 97, "97 tokens do not fit")])
def test_bad_prompts_are_refused_before_any_compute(model_file, ids, words):
  llm = tinygrad_llm.load(str(model_file(types="Q8_0", vocab=371, context=96)))
  for call in (llm.logits, llm.generate):
    with pytest.raises(InputError, match=words): call(ids)
  assert llm.engine.steps._piece.captured is None

@pytest.mark.parametrize("arguments", [{"temperature": -1}, {"top_p": 2}, {"top_k": -1}, {"repeat_penalty": 0},
                                       {"stop": "text"}, {"stop": [""]},
                                       {"presence_penalty": None}, {"frequency_penalty": np.nan}, {"min_tokens": -1},
                                       {"min_tokens": 1.5}, {"min_tokens": 9, "max_tokens": 8}, {"stop_ids": [384]},
                                       {"stop_ids": 3}, {"logit_bias": {371: 1}}, {"logit_bias": {-1: 1}},
                                       {"logit_bias": [1]}, {"logit_bias": {1: 101}}])
def test_bad_arguments(llm, arguments):
  with pytest.raises(InputError): list(llm.generate(PROMPT, **arguments))

def test_biases_and_penalties(llm):
  ids = list(llm.generate(PROMPT, 20, ignore_eos=True))
  assert set(llm.generate(PROMPT, 20, ignore_eos=True, logit_bias={9: 100})) == {9}
  assert ids[0] not in llm.generate(PROMPT, 20, ignore_eos=True, logit_bias={ids[0]: -np.inf})
  for penalty in ("presence_penalty", "frequency_penalty"):
    assert len({*llm.generate(PROMPT, 20, ignore_eos=True, **{penalty: 1e9})} - {*PROMPT}) == 20  # none comes twice
    assert {*llm.generate(PROMPT, 20, ignore_eos=True, **{penalty: -1e9})} <= {*PROMPT}

def test_stop_ids_and_min_tokens(llm, monkeypatch):
  """A stop id ends the answer and is not in it; before min_tokens, neither kind of end is chosen."""
  ids = list(llm.generate(PROMPT, 20, ignore_eos=True))
  at = next(i for i, token in enumerate(ids) if i and token not in ids[:i])
  for asked in ({"ignore_eos": True, "stop_ids": [ids[at]]}, {}):
    if not asked: monkeypatch.setattr(llm.tokenizer, "stop_ids", frozenset({ids[at]}))
    assert list(llm.generate(PROMPT, 20, **asked)) == ids[:at] and llm.timing.finish == "stop"
    found = list(llm.generate(PROMPT, 20, min_tokens=at + 1, **asked))
    assert found[:at] == ids[:at] and found[at] != ids[at] and len(found) > at
    found = list(llm.generate(PROMPT, 20, min_tokens=20, **asked))
    assert len(found) == 20 and ids[at] not in found and llm.timing.finish == "length"
