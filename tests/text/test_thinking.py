"""Thinking is split from the answer, wherever the text is cut into pieces."""
import itertools
import random
import re
import types

import pytest

from tinygrad_llm.engine.llm import LLM
from tinygrad_llm.engine.stopping import answer_text
from tinygrad_llm.text.thinking import Thinking
from tinygrad_llm.text.tokenizer import Tokenizer

def joined(parts):
  """Joins adjacent parts of the same kind."""
  return [(kind, "".join(text for _, text in group)) for kind, group in itertools.groupby(parts, lambda p: p[0])]

def split(pieces, prompt=""):
  """The joined parts of an answer. pieces: texts, or control tokens as tuples."""
  splitter, found = Thinking(prompt), []
  for piece in pieces: found += splitter.control(*piece) if isinstance(piece, tuple) else splitter.push(piece)
  assert all(text for _, text in found)
  return joined(found + splitter.flush())

# (end of the prompt, text of the answer, its parts)
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
  ("", "<|channel>thought\n<channel|>b <|tool_call>c{<|\"|>d<|\"|>}<tool_call|>",
   [("answer", 'b <|tool_call>c{<|"|>d<|"|>}<tool_call|>')]),
  ("", "<|START_THINKING|>a<|END_THINKING|><|START", [("thinking", "a"), ("answer", "<|START")]),
  ("", "<mm:think>a</think></mm:think>\nb", [("thinking", "a</think>"), ("answer", "b")]),
  ("<|CHATBOT_TOKEN|><|START_THINKING|>", "a<|END_THINKING|>b", [("thinking", "a"), ("answer", "b")]),
  ("<|Bot|><think:opensource>", "a</think:opensource>b", [("thinking", "a"), ("answer", "b")]),
  ("<|im_start|>assistant\n<think>\n", "So \n it\n</think>\n\nis", [("thinking", "So \n it"), ("answer", "is")]),
  ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "Yes.", [("answer", "Yes.")]),
  ("<|channel|>analysis<|message|>", " so", [("thinking", "so")]),
]

@pytest.mark.parametrize(("prompt", "text", "parts"), TEXTS)
def test_every_split_of_the_stream(prompt, text, parts):
  assert split([text], prompt) == split(list(text), prompt) == parts
  for i, j in itertools.combinations(range(len(text) + 1), 2):
    assert split([text[:i], text[i:j], text[j:]], prompt) == parts

def channels(text: str) -> list:
  """Cuts a gpt-oss answer into texts and control tokens."""
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
def test_channel_marks(text, parts):
  pieces = channels(text)
  assert split(pieces) == parts
  assert split([x for p in pieces for x in ([p] if isinstance(p, tuple) else p)]) == parts

def test_control_tokens_as_tags():
  """Magistral's marks are control tokens; Gemma 4's opening mark is a token and a word."""
  assert split([("[THINK]",), "a", ("[/THINK]",), "b", ("[THINK]",)]) == [("thinking", "a"), ("answer", "b")]
  assert split([("<|channel>",), "tho", "ught\na", ("<channel|>",), "b"]) == [("thinking", "a"), ("answer", "b")]
  cohere = [("<|START_THINKING|>",), "a", ("<|END_THINKING|>",), ("<|START_RESPONSE|>",), "b", ("<|END_RESPONSE|>",)]
  assert split(cohere) == [("thinking", "a"), ("answer", "b")]
  assert split([("<pad>",), "a"]) == [("answer", "a")]

# letters, <think> and </think> as user-defined tokens, and tokens without text
TOKENS = [*"abcdefghijklmnopqrstuvwxyz<>/", "<think>", "</think>", "<|channel|>", "<|message|>", "<|end|>", "<|start|>",
          "<pad>", "<unk>", "<unused>"]
ID = {text: i for i, text in enumerate(TOKENS)}

@pytest.fixture(scope="module")
def tokenizer():
  return Tokenizer.from_gguf({
    "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.merges": [], "tokenizer.ggml.token_type": [1] * 29 + [4] * 2 + [3] * 5 + [2] + [5]})

def parts(tokenizer, text, stop=(), prompt=""):
  """The result of LLM.parts for a text's tokens, with adjacent parts joined."""
  encode = lambda text: tokenizer.encode(text, parse_special=True)
  return joined(LLM.parts(types.SimpleNamespace(tokenizer=tokenizer), iter(encode(text)), stop, encode(prompt)))

def test_parts_from_tokens(tokenizer):
  assert parts(tokenizer, "<think>abc</think>de") == [("thinking", "abc"), ("answer", "de")]
  assert parts(tokenizer, "abc</think>de", prompt="xy<think>") == [("thinking", "abc"), ("answer", "de")]
  assert parts(tokenizer, "abc</think>de", prompt="<think></think>") == [("answer", "abc</think>de")]
  assert parts(tokenizer, "<think>abc</think>def", stop=["ef"]) == [("thinking", "abc"), ("answer", "d")]
  for stop in ("b", "<think>", "think", "</think>", "c<"):
    assert parts(tokenizer, "<think>abc</think>def", stop=[stop]) == [("thinking", "abc"), ("answer", "def")]
  assert parts(tokenizer, "<think>abc</think>xbcd", stop=["bc"]) == [("thinking", "abc"), ("answer", "x")]
  assert parts(tokenizer, "abc</think>xbcd", stop=["bc"], prompt="<think>") == [("thinking", "abc"), ("answer", "x")]
  harmony = "<|channel|>analysis<|message|>abc<|end|><|start|>assistant<|channel|>final<|message|>"
  assert parts(tokenizer, harmony + "de") == [("thinking", "abc"), ("answer", "de")]
  assert parts(tokenizer, harmony + "def", stop=["ef"]) == [("thinking", "abc"), ("answer", "d")]
  assert parts(tokenizer, harmony + "de", stop=["cx", "ey", "b", "<|channel|>"]) == [
    ("thinking", "abc"), ("answer", "de")]
  again = "<|end|><|start|>assistant<|channel|>final<|message|>fg"
  assert parts(tokenizer, harmony + "de" + again, stop=["ef"]) == [("thinking", "abc"), ("answer", "de\n\nfg")]
  assert parts(tokenizer, harmony + "de" + again, stop=["<|end|>"]) == [("thinking", "abc"), ("answer", "de")]
  assert parts(tokenizer, harmony + "de<|end|><|start|>user<|message|>fg") == [("thinking", "abc"), ("answer", "de")]

@pytest.mark.parametrize(("text", "stop", "wanted"), [
  ("<think>abc</think>xbcd", "bc", "<think>abc</think>x"), ("<think>abc</think>def", "b", "<think>abc</think>def"),
  ("<think>abc", "ab", "<think>abc"), ("abcd", "cd", "ab"), ("abcd", "cx", "abcd"), ("<thin", "<t", ""),
  ("ab<|end|>cd", "b<|end|>", "a"), ("ab<|end|>cd", "bc", "a"), ("ab<unused>cd", "<unused>", "ab"),
  ("ab<unk>cd", "b<unk>c", "a"), ("ab<pad>cd", "bc", "a"), ("<|end|>ab", "<|end|>", ""), ("ab<unk>", "<unk>c", "ab"),
  ("<think>a<unk>b</think>c<unk>d", "<unk>", "<think>ab</think>c"),
  ("<|channel|>analysis<|message|>abc<|end|><|start|>assistant<|channel|>final<|message|>abc", "bc",
   "analysisabcassistantfinala"),
  ("<|channel|>final<|message|>abc<|end|><|start|>user<|message|>def", "x", "finalabc")])
def test_stop_strings_match_in_answer_only(tokenizer, text, stop, wanted):
  """Stop strings match in the answer only. They may include the names of tokens without text, which are never shown."""
  ids = [ID[t] for t in re.findall(r"<\|?\w+\|?>|</think>|.", text)] if text != "<thin" else [ID[c] for c in text]
  llm = types.SimpleNamespace(tokenizer=tokenizer)
  assert "".join(LLM.text(llm, iter(ids), [stop])) == wanted
  assert "".join(LLM.text(llm, ids)) == tokenizer.decode(ids) or "user" in text
  answer = answer_text(llm, (), [stop])
  def stops(token: int) -> bool:
    answer.push(token)
    return answer.stopped
  until = ids[:next((i for i, token in enumerate(ids, 1) if stops(token)), len(ids))]  # as generate() ends it
  assert "".join(LLM.text(llm, until[:-1])).startswith(wanted[:-1]) and "".join(LLM.text(llm, until, [stop])) == wanted

def test_spelt_out_channel_marks_are_text(tokenizer):
  """Channel marks count only as control tokens, because a model may write about them."""
  ids = [ID[c] for c in "<channel>a"]
  assert joined(LLM.parts(types.SimpleNamespace(tokenizer=tokenizer), ids)) == [("answer", "<channel>a")]

def test_random_streams_lose_nothing():
  """A text without a tag at its beginning is all answer, whatever it contains."""
  rng = random.Random(0)
  for _ in range(300):
    text = "".join(rng.choices(["<think>", "</think>", "a", " ", "\n", "<", "[THINK]"], k=8))
    found = split(text if rng.random() < 0.5 else [text])
    opened = text.lstrip().startswith(("<think>", "[THINK]"))
    assert opened or found == [("answer", text)]
    assert all(kind == "answer" or opened for kind, _ in found)

def test_random_cuts_and_stops():
  """Streaming gives the same as splitting and cutting the whole text at once; shown text is never taken back."""
  rng = random.Random(1)
  class Stream:
    def push(self, text): return text
    def flush(self): return ""
  llm = types.SimpleNamespace(tokenizer=types.SimpleNamespace(control_text=lambda t: "", stream=Stream))
  for _ in range(400):
    text = "".join(rng.choices(["<think>", "</think>", "a", "b", " ", "<", "th", "\n"], k=9))
    stops = ["".join(rng.choices("ab <", k=rng.randint(1, 3))) for _ in range(2)]
    cuts = sorted(rng.choices(range(len(text) + 1), k=4))
    tokens = [text[i:j] for i, j in itertools.pairwise([0, *cuts, len(text)])]
    answer = "".join(piece for kind, piece in split([text]) if kind == "answer")
    ends = [(at + len(s), at) for s in stops if (at := answer.find(s)) >= 0]
    left = len(answer) - min(ends)[1] if ends else 0
    assert "".join(LLM.text(llm, tokens, stops)) == text[:len(text) - left]
    assert "".join(p for k, p in LLM.parts(llm, tokens, stops) if k == "answer") == answer[:len(answer) - left]
