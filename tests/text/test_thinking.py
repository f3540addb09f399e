"""Thinking told apart from the answer, wherever the text is cut."""
import itertools
import random
import types

import pytest

from tinygrad_llm.engine.llm import LLM
from tinygrad_llm.text.thinking import Thinking
from tinygrad_llm.text.tokenizer import Tokenizer

def joined(parts):
  """Parts of a kind that follow each other are one."""
  return [(kind, "".join(text for _, text in group)) for kind, group in itertools.groupby(parts, lambda p: p[0])]

def split(pieces, prompt=""):
  """pieces: texts, or control tokens as tuples."""
  splitter, found = Thinking(prompt), []
  for piece in pieces: found += splitter.control(*piece) if isinstance(piece, tuple) else splitter.push(piece)
  assert all(text for _, text in found)
  return joined(found + splitter.flush())

# prompt's end, the answer's text, its parts
TEXTS = [
  ("", "Hello.\n\n  you ", [("answer", "Hello.\n\n  you ")]),
  ("", " \n", [("answer", " \n")]), ("", "", []), ("", "<thin", [("answer", "<thin")]),
  ("", "<think>\nA < b\n\n</think>\n\nYes.\n", [("thinking", "A < b"), ("answer", "Yes.\n")]),
  ("", "\n <think>a</thin </think>b", [("thinking", "a</thin"), ("answer", "b")]),
  ("", "<think>\n\n</think>\n\nYes.", [("answer", "Yes.")]),
  ("", "<think>never ends </thi", [("thinking", "never ends </thi")]),
  ("", "<think>a</think><think>b</think>", [("thinking", "a"), ("answer", "<think>b</think>")]),
  ("", "Use <think> and </think>.", [("answer", "Use <think> and </think>.")]),
  ("", "[THINK]a[/THINK]b", [("thinking", "a"), ("answer", "b")]),
  ("", "<seed:think>a</seed:think>b", [("thinking", "a"), ("answer", "b")]),
  ("", "<|channel>thought\na\n<channel|>b", [("thinking", "a"), ("answer", "b")]),
  ("<|im_start|>assistant\n<think>\n", "So \n it\n</think>\n\nis", [("thinking", "So \n it"), ("answer", "is")]),
  ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "Yes.", [("answer", "Yes.")]),
  ("<|channel|>analysis<|message|>", " so", [("thinking", "so")]),
]

@pytest.mark.parametrize(("prompt", "text", "parts"), TEXTS)
def test_every_cut(prompt, text, parts):
  assert split([text], prompt) == split(list(text), prompt) == parts
  for i, j in itertools.combinations(range(len(text) + 1), 2):
    assert split([text[:i], text[i:j], text[j:]], prompt) == parts

def channels(text: str) -> list:
  """A gpt-oss answer, as text and control tokens in turn."""
  pieces = text.replace("<|", "\0<|").replace("|>", "|>\0").split("\0")
  return [(p,) if p.startswith("<|") else p for p in pieces if p]

CHANNELS = [
  ("<|channel|>analysis<|message|>Hm. <think> it\n<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
   [("thinking", "Hm. <think> it"), ("answer", "Yes.")]),
  ("<|channel|>final<|message|>Yes.<|return|>", [("answer", "Yes.")]),
  ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>"
   "<|start|>assistant<|channel|>commentary<|message|>c<|end|><|start|>assistant<|channel|>final <|constrain|>json"
   "<|message|>{}", [("thinking", "a\n\nb"), ("answer", "c\n\n{}")]),
  ("<|channel|>analysis<|message|>cut of", [("thinking", "cut of")]), ("<|channel|>anal", []),
  ("no channel <|message|>at all<|end|>", [("answer", "no channel at all")]),
]

@pytest.mark.parametrize(("text", "parts"), CHANNELS)
def test_channels(text, parts):
  pieces = channels(text)
  assert split(pieces) == parts
  assert split([x for p in pieces for x in ([p] if isinstance(p, tuple) else p)]) == parts

def test_control_tokens_as_tags():
  """Magistral's, and Gemma 4's, whose mark is a token and a word."""
  assert split([("[THINK]",), "a", ("[/THINK]",), "b", ("[THINK]",)]) == [("thinking", "a"), ("answer", "b")]
  assert split([("<|channel>",), "tho", "ught\na", ("<channel|>",), "b"]) == [("thinking", "a"), ("answer", "b")]
  assert split([("<pad>",), "a"]) == [("answer", "a")]

# letters, <think> as user-defined tokens, and control tokens
TOKENS = [*"abcdefghijklmnopqrstuvwxyz<>/", "<think>", "</think>", "<|channel|>", "<|message|>", "<|end|>", "<|start|>"]
ID = {text: i for i, text in enumerate(TOKENS)}

@pytest.fixture(scope="module")
def tokenizer():
  return Tokenizer.from_gguf({
    "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.merges": [], "tokenizer.ggml.token_type": [1] * 29 + [4] * 2 + [3] * 4})

def parts(tokenizer, text, stop=(), prompt=""):
  """LLM.parts of the tokens of a text."""
  encode = lambda text: tokenizer.encode(text, parse_special=True)
  return joined(LLM.parts(types.SimpleNamespace(tokenizer=tokenizer), iter(encode(text)), stop, encode(prompt)))

def test_parts_of_tokens(tokenizer):
  assert parts(tokenizer, "<think>abc</think>de") == [("thinking", "abc"), ("answer", "de")]
  assert parts(tokenizer, "abc</think>de", prompt="xy<think>") == [("thinking", "abc"), ("answer", "de")]
  assert parts(tokenizer, "abc</think>de", prompt="<think></think>") == [("answer", "abc</think>de")]
  assert parts(tokenizer, "<think>abc</think>def", stop=["ef"]) == [("thinking", "abc"), ("answer", "d")]
  assert parts(tokenizer, "<think>abc</think>def", stop=["b"]) == [("thinking", "a")]
  harmony = "<|channel|>analysis<|message|>abc<|end|><|start|>assistant<|channel|>final<|message|>"
  assert parts(tokenizer, harmony + "de") == [("thinking", "abc"), ("answer", "de")]
  assert parts(tokenizer, harmony + "def", stop=["ef"]) == [("thinking", "abc"), ("answer", "d")]
  assert parts(tokenizer, harmony + "de", stop=["cx", "ey"]) == [("thinking", "abc"), ("answer", "de")]

def test_written_out_marks_of_channels_are_text(tokenizer):
  """Only control tokens count there: a model may write about them."""
  ids = [ID[c] for c in "<channel>a"]
  assert joined(LLM.parts(types.SimpleNamespace(tokenizer=tokenizer), ids)) == [("answer", "<channel>a")]

def test_random_streams_lose_nothing():
  """Without a tag at its beginning a text is the answer, whatever is in it."""
  rng = random.Random(0)
  for _ in range(300):
    text = "".join(rng.choices(["<think>", "</think>", "a", " ", "\n", "<", "[THINK]"], k=8))
    found = split(text if rng.random() < 0.5 else [text])
    opened = text.lstrip().startswith(("<think>", "[THINK]"))
    assert opened or found == [("answer", text)]
    assert all(kind == "answer" or opened for kind, _ in found)
