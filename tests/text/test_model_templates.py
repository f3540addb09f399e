"""Each template of llama.cpp's collection: a chat of three turns, every variable that it reads, ends, and thinking."""
import pathlib
import re

import pytest
from tests.support.synthetic_vocab import byte_chars
from tests.tools.fetch_vectors import VECTORS

from tinygrad_llm.text.chat_template import ChatTemplate
from tinygrad_llm.text.thinking import TAGS, THINKING, Thinking
from tinygrad_llm.text.tokenizer import MARK, Tokenizer
from tinygrad_llm.text.turn_marks import turn_marks

TALK = [{"role": "user", "content": "First question?"},
        {"role": "assistant", "content": "First answer.", "reasoning_content": "First thought."},
        {"role": "user", "content": "Second question?"}]
# the values that models' cards name
VALUES = {
  "enable_thinking": (True, False), "thinking": (True, False), "preserve_thinking": (True, False),
  "clear_thinking": (True, False), "truncate_history_thinking": (True, False), "drop_thinking": (True, False),
  "keep_past_thinking": (True, False), "preserved_thinking": (True, False), "add_vision_id": (True, False),
  "thinking_mode": ("enabled", "disabled", "adaptive"), "thinking_budget": (0, 512), "thinking_effort": ("low", "max"),
  "reasoning_effort": ("low", "high"), "reasoning_strength": ("low", "high"),
  "documents": ([], [{"title": "Facts", "text": "Water is wet."}])}
# templates that do not show how an answer ends: the file's eos token or one of the END_TEXTS alone ends it
NO_END = {"Kimi-K3", "llama-cpp-rwkv-world", "tencent-Hy3"}
# thinking is open at the end of the prompt: by default, with the switch on
OPEN = {
  "Bielik-11B-v3.0-Instruct": (False, True), "Cohere2MoE": (True, True),
  "GLM-4.7-Flash": (True, True), "MiniMax-M2": (True, True), "MiniMax-M3": (False, True),
  "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (True, True), "NVIDIA-Nemotron-Nano-v2": (True, True),
  "Qwen-QwQ-32B": (False, True), "Qwen3.5-4B": (True, True), "Reka-Edge": (False, True),
  "Spark2.5": (True, True), "StepFun3.5-Flash": (True, True),
  "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": (True, True), "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": (False, True),
  "deepseek-ai-DeepSeek-V3.1": (False, True), "deepseek-ai-DeepSeek-V3.2": (False, True),
  "deepseek-ai-DeepSeek-V4-Flash-0731": (False, True), "deepseek-ai-DeepSeek-V4": (False, True),
  "inclusionai-ling-3.0-flash": (True, True), "llama-cpp-deepseek-r1": (True, True),
  "llama-cpp-rwkv-world": (False, True), "openbmb-MiniCPM5-1B": (False, True),
  "poolside-Laguna-S-2.1": (True, True), "poolside-Laguna-XS-2.1": (False, True), "poolside-Laguna-XS.2": (False, True)}
PATHS = sorted(VECTORS.glob("*.jinja")) or [None]

def metadata(source: str) -> dict:
  """A vocabulary of bytes with all marks of a template, and the marks that templates build from parts."""
  marks = {*MARK.findall(source), *TAGS, *TAGS.values(), "[e~["} - {"<|channel>thought", "<s>", "</s>"}
  tokens = [*byte_chars(), "ab", "<s>", "</s>", *sorted(marks)]
  kv = {"model": "gpt2", "pre": "qwen2", "merges": ["a b"], "tokens": tokens, "bos_token_id": 257, "eos_token_id": 258,
        "token_type": [1] * 257 + [3] * 2 + [4 if x in {*TAGS, *TAGS.values()} else 3 for x in sorted(marks)]}
  return {f"tokenizer.ggml.{key}": value for key, value in kv.items()} | {"tokenizer.chat_template": source}

def in_order(text: str, messages: list[dict]) -> bool:
  return re.search(".*".join(re.escape(m["content"]) for m in messages), text, re.DOTALL) is not None

@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem if path else "none")
def test_template_of_a_real_model(path: pathlib.Path | None):
  if path is None: pytest.skip(f"no templates in {VECTORS}: run `make vectors`")
  kv = metadata(path.read_text(encoding="utf-8"))
  template, tokenizer = ChatTemplate.from_gguf(kv), Tokenizer.from_gguf(kv)
  try:
    reads, plain = template.variables(), [{k: v for k, v in m.items() if k in ("role", "content")} for m in TALK]
    for given in ({}, *({name: value} for name in VALUES.keys() & reads for value in VALUES[name])):
      for talk in (plain, TALK):
        assert in_order(template.render(talk, **given), talk), given
    assert "Water is wet." in template.render(plain, documents=VALUES["documents"][1]) or "documents" not in reads
    ids = template.encode(tokenizer, plain)
    names = {tokenizer.control_text(i) for i in tokenizer.stop_ids} - {"</s>", "[e~["}
    ends = bool(names) or any(x in template.after_answer() for x in ("</s>", "[e~["))
    assert ends != (path.stem in NO_END), names
    marks = turn_marks(template, tokenizer)
    assert not marks.names & {*tokenizer.end_texts}
    assert ids and (marks == ((), ()) or marks.opened(ids, tokenizer) or not (marks.names or marks.texts))
    modes = [Thinking(template.render(plain, **template.thinking(on) if on is not None else {})).mode == THINKING
             for on in (None, True, False)]
    assert (modes[0], modes[1]) == OPEN.get(path.stem, (False, False)) and not modes[2]
  finally: template.close()
