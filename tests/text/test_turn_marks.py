"""The marks that begin a turn in a template, and answers that continue with another turn."""
import itertools
import types

import pytest
from tests.support.synthetic_vocab import (CHATML_TEMPLATE, DEEPSEEK_TEMPLATE, GEMMA_TEMPLATE, GPT_OSS_TEMPLATE,
  LLAMA3_TEMPLATE, TURNS_TEMPLATE)

from tinygrad_llm.engine.llm import LLM
from tinygrad_llm.text.chat_template import PLAIN, ChatTemplate
from tinygrad_llm.text.tokenizer import CONTROL, NORMAL, UNUSED, USER_DEFINED, Tokenizer
from tinygrad_llm.text.turn_marks import TurnMarks, turn_marks

MISTRAL = ("{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]{% else %} "
           "{{ m.content }}</s>{% endif %}{% endfor %}")
LLAMA2 = ("{% for m in messages %}{% if m.role == 'user' %}{{ bos_token }}[INST] {{ m.content }} [/INST]{% else %} "
          "{{ m.content }} </s>{% endif %}{% endfor %}")
PHI = ("{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
       "{% if add_generation_prompt %}<|assistant|>\n{% else %}<|endoftext|>{% endif %}")
ALPACA = "{% for m in messages %}### {{ m.role | capitalize }}:\n{{ m.content }}\n\n{% endfor %}### Assistant:\n"
SEED = ("{% for m in messages %}{{ bos_token }}{{ m.role }}\n{{ m.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}{{ bos_token }}assistant\n{% endif %}")
MINIMAX = ("{{ ']~!b[' }}{% for m in messages %}{{ ']~b]' }}{{ 'ai' if m.role == 'assistant' else m.role }}\n"
           "{{ m.content }}[e~[\n{% endfor %}{% if add_generation_prompt %}{{ ']~b]ai\n<think>\n' }}{% endif %}")
THINKS = CHATML_TEMPLATE.replace("assistant\n", "assistant\n<think>\n")
REFUSES = "{{ raise_exception('one turn only') if messages | length > 1 }}{{ messages[0].content }}"
NAMES = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
         "[INST]", "[/INST]", "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>", "<|end|>",
         "<|endoftext|>", "<|start|>", "<|message|>", "<｜User｜>", "<｜Assistant｜>", "]~!b[", "]~b]", "[e~[",
         "<think>"]

def tokenizer(kind: int | None) -> Tokenizer:
  """A tokenizer whose marks are tokens of type `kind`; None: the marks are no tokens."""
  names = NAMES if kind is not None else NAMES[:2]
  tokens = [*map(chr, range(33, 127)), *names]
  kinds = [NORMAL] * 94 + [CONTROL] * 2 + ([kind] * (len(NAMES) - 3) + [NORMAL] if kind is not None else [])
  return Tokenizer.from_gguf({
    "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": tokens,
    "tokenizer.ggml.merges": [], "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.bos_token_id": 94,
    "tokenizer.ggml.eos_token_id": 95})

CASES = [  # (template, the marks if they are tokens without text, the marks if they are text)
  (CHATML_TEMPLATE, {"<|im_start|>"}, {"<|im_start|>user", "<|im_start|>assistant"}),
  (THINKS, {"<|im_start|>"}, {"<|im_start|>user", "<|im_start|>assistant"}),
  (LLAMA3_TEMPLATE, {"<|start_header_id|>"}, {"<|start_header_id|>user", "<|start_header_id|>assistant"}),
  (GEMMA_TEMPLATE, {"<start_of_turn>"}, {"<start_of_turn>user", "<start_of_turn>model"}),
  (TURNS_TEMPLATE, {"<|user|>", "<|assistant|>"}, {"<|user|>", "<|assistant|>"}),
  (PHI, {"<|user|>", "<|assistant|>"}, {"<|user|>", "<|assistant|>"}),
  (DEEPSEEK_TEMPLATE, {"<｜User｜>", "<｜Assistant｜>"}, {"<｜User｜>", "<｜Assistant｜>"}),
  (MINIMAX, {"]~b]"}, {"]~b]user", "]~b]ai"}),
  (MISTRAL, {"[INST]"}, {"[INST]"}), (LLAMA2, {"[INST]"}, {"[INST]"}),
  (PLAIN, None, {"\nUser:"}), (ALPACA, None, {"\n### User:"}), (SEED, {"<s>"}, set()),
  (GPT_OSS_TEMPLATE, None, set()), (REFUSES, None, set()), ("", None, {"\nUser:"})]

@pytest.mark.parametrize(("template", "names", "texts"), CASES)
def test_turn_marks_of_templates(template, names, texts):
  found = turn_marks(ChatTemplate({"default": template}, "<s>", "</s>"), tokenizer(CONTROL))
  assert found.names == (names or set()) and set(found.texts) == (texts if names is None else set())
  found = turn_marks(ChatTemplate({"default": template}, "<s>", "</s>"), tokenizer(None))
  assert set(found.texts) == texts and found.names == ({"<s>"} if template == SEED else set())

@pytest.mark.parametrize("kind", [CONTROL, USER_DEFINED, UNUSED, NORMAL])
@pytest.mark.parametrize(("template", "opening"), [
  (CHATML_TEMPLATE, ["<|im_start|>", *"user"]), (CHATML_TEMPLATE, ["<|im_start|>", *"assistant"]),
  (LLAMA3_TEMPLATE, ["<|start_header_id|>", *"user", "<|end_header_id|>"]), (TURNS_TEMPLATE, ["<|user|>"]),
  (GEMMA_TEMPLATE, ["<start_of_turn>", *"user"]), (MISTRAL, ["[INST]"])])
def test_answer_ends_when_it_opens_another_turn(template, opening, kind):
  tok = tokenizer(kind)
  ids = {**{chr(c): c - 33 for c in range(33, 127)}, **{name: 94 + i for i, name in enumerate(NAMES)}}
  chat = ChatTemplate({"default": template}, "<s>", "</s>")
  llm = types.SimpleNamespace(tokenizer=tok, turns=turn_marks(chat, tok))
  prompt = chat.encode(tok, [{"role": "user", "content": "hi"}])
  def said(tokens, prompt, **options):
    answer = [ids[t] for t in tokens]
    parts = [(k, "".join(t for _, t in group)) for k, group in itertools.groupby(
      LLM.parts(llm, answer, (), prompt, **options), lambda part: part[0])]
    assert "".join(LLM.text(llm, answer, (), prompt)).replace("<think>", "").replace("</think>", "") == "".join(
      text for _, text in parts)
    return parts
  assert said([*"42", *opening, *"Go"], prompt) == [("answer", "42")]
  assert said([*opening, *"Go"], prompt) == []
  rest = said([*"42", *opening, *"Go"], [1, 2])  # the prompt has no turns
  assert rest[0][1].startswith("42") and rest[0][1].endswith("Go")
  if kind == CONTROL:  # marks that are written out as text do not count
    assert said([*"42", *"".join(opening), *"Go"], prompt) == [("answer", f"42{''.join(opening)}Go")]
    assert said(["<think>", "a", *opening, *"Go"], prompt) == [("thinking", "a")]

def test_prompts_with_turns():
  tok = tokenizer(CONTROL)
  assert TurnMarks(frozenset({"<|user|>"})).opened(tok.encode("a<|user|>b", parse_special=True), tok)
  assert TurnMarks(texts=("\nUser:",)).opened(tok.encode("User:hi"), tok)
  assert not TurnMarks(frozenset({"<|user|>"}), ("[INST]",)).opened(tok.encode("a<|user|>b"), tok)
