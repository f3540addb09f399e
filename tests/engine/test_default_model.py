"""The bundled model: its file, and answers that are about the question."""
import itertools
import re
import pytest
from tests.support.extended import sample
import tinygrad_llm
from tinygrad_llm.files.gguf import GGML_TYPES, open_gguf
from tinygrad_llm.files.hub import DEFAULT_MODEL

def test_model_file():
  file = open_gguf(DEFAULT_MODEL)
  assert DEFAULT_MODEL.stat().st_size <= 4_000_000
  assert file.kv["general.architecture"] == "llama"
  assert "tokenizer.chat_template" in file.kv
  assert {GGML_TYPES[t.type][0] for t in file.tensors.values() if len(t.shape) == 2} == {"Q4_K", "Q6_K"}

@pytest.fixture(scope="module")
def llm(): return tinygrad_llm.load()

def ask(llm, text: str, **sampling) -> str:
  return "".join(llm.chat([{"role": "user", "content": text}], **sampling))

@pytest.mark.parametrize(("topic", "temperature"), sample(
  itertools.product(["fox", "baker", "dragon", "lighthouse", "snail", "king"], [0.0, 0.7]),
  [("fox", 0.0), ("dragon", 0.7), ("snail", 0.0), ("lighthouse", 0.7)]))
def test_story_is_about_its_topic(llm, topic, temperature):
  story = ask(llm, f"Tell me a story about a {topic}.", temperature=temperature)
  assert 40 < llm.timing.tokens < llm.max_context - llm.timing.prompt_tokens  # it comes to an end
  assert topic in " ".join(re.split(r"(?<=[.!?])\s", story)[:2]).lower()
  assert story.rstrip()[-1] in '.!?"'
  words = re.findall(r"\w+", story.lower())
  assert len(set(words)) > 0.3 * len(words)  # it does not repeat itself

@pytest.mark.parametrize(("question", "answer"), [
  ("What colour is grass?", "green"), ("What is the opposite of hot?", "cold"), ("Hello!", "hello|hi"),
  ("What does a baker do?", "bread"), ("Where do fish live?", "water")])
def test_small_questions(llm, question, answer): assert re.search(answer, ask(llm, question).lower())

def test_follow_up(llm):
  messages = [{"role": "user", "content": "Tell me a story about a fox."}]
  messages.append({"role": "assistant", "content": "".join(llm.chat(messages))})
  messages.append({"role": "user", "content": "Tell me another one."})
  assert len("".join(llm.chat(messages)).split()) > 20
  assert llm.timing.cached_tokens > 30  # the first turn's keys and values were still cached
