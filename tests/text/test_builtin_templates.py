"""Built-in templates render the same text as llama.cpp's templates of the same names."""
import json
import pathlib

import pytest
from tinygrad_llm.text.builtin_templates import BUILTIN, CHATML, OTHERS, PLAIN
from tinygrad_llm.text.chat_template import ChatTemplate

# results of llama_chat_apply_template in llama.cpp b9130 (llama-cpp-python 0.3.36): for TALK and for TALK without the
# system message, both with the beginning of an answer, and for the first exchange alone
RECORDED = json.loads((pathlib.Path(__file__).parents[1] / "data" / "llama_cpp_templates.json").read_text())
TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi there"},
        {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Why?"}]

def test_every_template_is_recorded(): assert RECORDED.keys() == BUILTIN.keys() and not OTHERS & BUILTIN.keys()

@pytest.mark.parametrize("name", BUILTIN)
def test_matches_llama_cpp(name, capfd):
  t = ChatTemplate({"default": name})
  got = [t.render(TALK), t.render(TALK[1:]), t.render(TALK[1:3], add_generation_prompt=False)]
  assert got == RECORDED[name]
  assert capfd.readouterr().err == ""

@pytest.mark.parametrize("source", ["", " \n", "openchat"])
def test_unknown_template_names(source, capfd):
  assert ChatTemplate({"default": source}, fallback=CHATML).render(TALK[1:2]).startswith("<|im_start|>user\nHi there")
  assert ChatTemplate({"default": source}).stop == ("\nUser:",) and PLAIN
  assert capfd.readouterr().err.startswith("warning: tokenizer.chat_template: ")
