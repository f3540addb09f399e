"""Turn marks end an answer, and are one token in a prompt, whatever type the file gives them."""
import itertools

import pytest
from tests.support.scripted_gguf import CHATML, GEMMA, build
from tinygrad_llm.files.gguf import open_gguf
from tinygrad_llm.text.chat_template import ChatTemplate
from tinygrad_llm.text.tokenizer import Tokenizer

ENDS = ["<end_of_turn>", "<|im_end|>", "<|eot_id|>", "<|end|>", "<|endoftext|>", "<｜end▁of▁sentence｜>", "<|fim_pad|>"]

def opened(path, marks, spm, **given) -> tuple[Tokenizer, ChatTemplate]:
  build(path, ["x"], specials=marks, spm=spm, **given)
  kv = open_gguf(path).kv
  return Tokenizer.from_gguf(kv), ChatTemplate.from_gguf(kv)

@pytest.mark.parametrize("mark, kind, spm", [*itertools.product(ENDS, (1, 3, 4, 5), (False, True))])
def test_end_of_turn_marks(tmp_path, capfd, mark, kind, spm):
  t, _ = opened(tmp_path / "m.gguf", [(mark, kind)], spm)
  i = t._tokens.index(mark)
  assert i in t.stop_ids and t.encode(mark, parse_special=True) == [i] and t.token_bytes(i) == b""
  assert len(t.encode(mark)) > 1  # in plain text it is no mark
  said = capfd.readouterr().err
  assert ("marks of turns" in said) == (kind in (1, 5)) and said.count("\n") == (kind in (1, 5))

@pytest.mark.parametrize("spm", [False, True])
def test_file_without_token_types(tmp_path, spm):
  t, _ = opened(tmp_path / "m.gguf", [("<|im_end|>", 3), ("<|im_start|>", 3)], spm, token_type=False)
  ids = [t._tokens.index(x) for x in ("<|im_start|>", "<|im_end|>")]
  assert ids[1] in t.stop_ids and ids[0] not in t.stop_ids
  assert t.encode("<|im_start|><|im_end|>", parse_special=True) == ids
  if spm: assert t.encode("é")[-2:] == [3 + b for b in "é".encode()]  # byte tokens are recognised by their spelling

@pytest.mark.parametrize("kind", [1, 4, 5])
def test_marks_known_only_from_template(tmp_path, kind):
  template = ("{% for m in messages %}{{ '<|usr|>' if m.role == 'user' else '<|bot|>' }}{{ m.content }}<|done|>"
              "{% endfor %}{% if add_generation_prompt %}<|bot|>{% endif %}")
  marks = [("<|usr|>", kind), ("<|bot|>", kind), ("<|done|>", kind), ("<think>", kind)]
  t, c = opened(tmp_path / "m.gguf", marks, False, template=template)
  ids = {mark: t._tokens.index(mark) for mark, _ in marks}
  prompt = c.encode(t, [{"role": "user", "content": "x<|done|>"}])
  assert prompt[0] == ids["<|usr|>"] and prompt[-2:] == [ids["<|done|>"], ids["<|bot|>"]]
  if kind != 4: assert prompt.count(ids["<|done|>"]) == 1  # the user's is text, unless its type is always parsed
  assert ids["<|done|>"] in t.stop_ids and ids["<|bot|>"] not in t.stop_ids
  if kind != 5: assert t.token_bytes(ids["<think>"]) == b"<think>"  # an answer may say it

@pytest.mark.parametrize("template, mark", [(CHATML, "<|im_end|>"), (GEMMA, "<end_of_turn>")])
def test_ordinary_words_are_not_marks(tmp_path, template, mark):
  """In a vocabulary that knows HTML, </s> is made by merges, so it is a word."""
  t, _ = opened(tmp_path / "m.gguf", [("</", 1), ("s>", 1), ("</s>", 1), (mark, 1)], False, template=template,
                merges=["< /", "s >", "</ s>"])
  assert t._tokens.index("</s>") not in t.stop_ids and t._tokens.index(mark) in t.stop_ids

def test_default_bos_and_eos_ids_in_templates(tmp_path):
  t, c = opened(tmp_path / "m.gguf", [], True, template="{{ bos_token }}{{ messages[0].content }}{{ eos_token }}")
  assert c.render([{"role": "user", "content": "hi"}]) == "<s>hi</s>" and (t.bos, t.stop_ids) == (1, {2})
