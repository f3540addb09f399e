"""A text that cannot fit a context is recognised by its bytes; no text that fits is refused."""
import random
import time
from types import SimpleNamespace
from typing import Any

import pytest
from tests.text.test_tokenizer import make, make_spm

from tinygrad_llm.engine.llm import LLM
from tinygrad_llm.errors import InputError
from tinygrad_llm.files.gguf import open_gguf
from tinygrad_llm.text.turn_marks import TurnMarks
from tinygrad_llm.files.hub import DEFAULT_MODEL
from tinygrad_llm.text.tokenizer import QUOTE, Tokenizer

SPACE = "\u2581"
PIECES = ["a", "th", " the", " ", "  ", "\n", SPACE, SPACE * 7, QUOTE, "\ud83d", "\ude00", "é", "日本", "😀", "\0",
          "<|im_end|>", "<s>", "<0x41>", "the" * 9, " " * 17, "\r\n", "1234", "▁▁the"]

def bundled() -> Tokenizer: return Tokenizer.from_gguf(open_gguf(DEFAULT_MODEL).kv)

TOKENIZERS = {"qwen2": make, "llama-bpe": lambda: make(pre="llama-bpe"), "spm": make_spm,
              "spm without a prefix": lambda: make_spm(add_space_prefix=False), "bundled": bundled}

@pytest.mark.parametrize("kind", TOKENIZERS)
def test_estimate_never_exceeds_token_count(kind):
  draw, tokenizer = random.Random(7), TOKENIZERS[kind]()
  own = [text for text in tokenizer._tokens if text]
  for _ in range(300):
    text = "".join(draw.choice(draw.choice((PIECES, own))) for _ in range(draw.randrange(40)))
    around = "".join(draw.choices(own, k=3)) + text + draw.choice(own)
    for special in (False, True):
      least = tokenizer.least_tokens(text)
      assert least <= len(tokenizer.encode(text, parse_special=special)), text
      assert least <= len(tokenizer.encode(around, parse_special=special)), text

def test_tightness_of_the_bound():
  """Bytes divided by the longest token's bytes, also where the token's spaces are written as 3-byte characters."""
  assert bundled().least_tokens("x" * 1300) == 100
  longest = max(make_spm()._tokens, key=len).replace(SPACE, " ")
  assert make_spm().least_tokens(longest * 100) >= 50

def test_no_bound_if_vocabulary_lacks_a_byte():
  """If the vocabulary lacks a byte, no number of characters is certain to give a token."""
  t = make(tokens=["a", "b"], token_type=[1, 1], merges=[], bos_token_id=None, eos_token_id=None, eot_token_id=None)
  assert t.encode("xyz" * 1000) == []
  assert t.least_tokens("xyz" * 1000) == 0

def llm(context: int, template: Any) -> LLM:
  made = LLM.__new__(LLM)
  made.tokenizer, made.template, made.max_context, made.turns = bundled(), template, context, TurnMarks()
  made.config = SimpleNamespace(context_length=512, dense_context=0)  # type: ignore[assignment]
  return made

@pytest.mark.parametrize("text", ["x" * (16 << 20), "é \n" * (4 << 20)])
def test_oversized_prompt_is_not_tokenized(text):
  """16 MB, the most that standard input may have, are refused within a second of processor time."""
  before = time.process_time()
  for content in (text, [{"type": "text", "text": text}]):
    with pytest.raises(InputError, match=r"^prompt: at least \d{7} tokens do not fit the context of 512; shorten it"):
      llm(512, None).prompt([{"role": "user", "content": content}])
    with pytest.raises(InputError, match=r"^prompt: at least \d{7} tokens do not fit the context of 512; shorten it"):
      llm(512, None).chat([{"role": "user", "content": content}, {"role": "user", "content": "hi"}])
  assert time.process_time() - before < 2

def test_fitting_prompt_is_tokenized():
  """Space that a template trims does not count, nor do messages that it may leave out."""
  template = SimpleNamespace(encode=lambda tokenizer, messages, *_: [1])
  for content in ("x" * 26 + " " * 1000, " \n" * 500):
    assert llm(2, template).prompt([{"role": "user", "content": content}]) == [1]
  assert llm(2, template).prompt([{"role": "user", "content": "x" * 999}, {"role": "user", "content": "hi"}]) == [1]
  for odd in ([], ["hi"], [{}], [{"role": "user", "content": None}], [{"role": "user", "content": [1, 2]}],
              [{"role": "user", "content": [{"image": 1}]}], [{"role": "tool", "content": "x" * 999}]):
    assert llm(2, template).prompt(odd) == [1]
