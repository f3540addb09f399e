"""Why answers end: a stop string, another turn, an end-of-turn token, the limit of tokens, or a full context."""
import pytest
from tests.support.scripted_gguf import CHATML, CONTROL, build

import tinygrad_llm

MESSAGES = [{"role": "user", "content": "hi"}]
THOUGHT = "<think>Question: 6*7</think>"

@pytest.fixture(scope="module")
def llm(tmp_path_factory):
  path = tmp_path_factory.mktemp("scripted") / "thinks.gguf"
  script = ["<think>", "Question: 6*7", "</think>", "42 ", "Question: no", ("id", "<|im_start|>"), "user", "more"]
  build(path, script, [("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL)], CHATML)
  return tinygrad_llm.load(str(path))

def ids(llm): return llm.prompt(MESSAGES)

def test_a_stop_string_in_thinking_does_not_end_the_answer(llm):
  assert "".join(llm.chat(MESSAGES, 20, stop=["Question:"])) == f"{THOUGHT}42 "
  assert llm.timing.finish == "stop_string" and llm.timing.tokens == 5
  tokens = llm.generate(ids(llm), 20)
  assert list(llm.parts(tokens, ["Question:"], ids(llm))) == [("thinking", "Question: 6*7"), ("answer", "42 ")]
  assert llm.timing.finish == "stop_string"
  stopped = llm.generate(ids(llm), 20, stop=["Question:"])
  assert len(list(stopped)) == 5
  assert llm.timing.finish == "stop_string"

@pytest.mark.parametrize("stop", [[], ["<|im_start|>"], ["no<|im_start|>", "<|im_start|>user"]])
def test_turn_marker_ends_answer(llm, stop):
  text = f"{THOUGHT}42 Question: {'' if 'no<|im_start|>' in stop else 'no'}"
  assert "".join(llm.chat(MESSAGES, 20, stop=stop)) == text
  assert (llm.timing.finish, llm.timing.tokens) == ("stop_string", 6)
  assert "nousermore" in "".join(llm.text(llm.generate([1, 2], 20)))  # a prompt without turns
  assert len(list(llm.generate(ids(llm), 8, stop=stop))) == (6 if stop else 8)

def test_finish_reasons(llm, monkeypatch):
  assert len(list(llm.text(llm.generate(ids(llm), 2)))) == 2
  assert llm.timing.finish == "length"
  assert len(list(llm.text(llm.generate(ids(llm), 6, stop=["42"])))) == 4
  assert llm.timing.finish == "stop_string"
  room = llm.max_context - len(ids(llm)) + 1
  for count in (None, room + 5):
    list(llm.generate(ids(llm), count))
    assert (llm.timing.finish, llm.timing.tokens) == ("context", room)
  tokens = llm.generate(ids(llm), 20)
  next(tokens)
  assert llm.timing.finish == "cancelled"
  tokens.close()
  assert llm.timing.finish == "cancelled"
  monkeypatch.setattr(llm.tokenizer, "stop_ids", frozenset([llm.tokenizer.encode("42 ", parse_special=True)[0]]))
  last = list(llm.generate(ids(llm), 8))[-1]
  monkeypatch.setattr(llm.tokenizer, "stop_ids", frozenset({last}))
  list(llm.generate(ids(llm), 20))
  assert llm.timing.finish == "stop"
