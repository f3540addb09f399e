"""
Marks of models that fill in the middle of a text, and the prompt that they make of its two sides.

Source: llama.cpp, whose /infill has prompts of this form (https://github.com/ggml-org/llama.cpp/tree/master/tools/server),
and the Qwen2.5-Coder report for those with several files (https://arxiv.org/abs/2409.12186).
"""
from __future__ import annotations
from collections.abc import Mapping, Sequence
from typing import Any
from tinygrad_llm.errors import InputError

# by their names in a file (tokenizer.ggml.fim_pre_token_id, ..): before the text, the rest and the gap, ..
PARTS: dict[str, tuple[str, ...]] = {
  "pre": ("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>",
          "<|prefix|>"),
  "suf": ("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>",
          "<|suffix|>"),
  "mid": ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>",
          "<|middle|>")}
# .. and these end an answer: padding, and what comes before a repository's and a file's name
ENDS: dict[str, tuple[str, ...]] = {
  "pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
  "rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"), "sep": ("<|file_sep|>",)}
NAMES = (*PARTS, *ENDS)
FILL_MARKS = frozenset(text for texts in PARTS.values() for text in texts)
FILL_ENDS = frozenset(text for texts in ENDS.values() for text in texts)
KINDS = {"pre": "prefix", "suf": "suffix", "mid": "middle"}  # in words, which are older files' names, too
WINDOW = 2048  # tokens of the text around a gap at most, as in llama-server: three quarters are before it
CHARACTERS = 64 * WINDOW  # of each side that are looked at
SNIPPET = "\n\n--- snippet ---\n\n"  # before another file, for models without a mark for it

def fill_ids(marks: Mapping[str, int]) -> dict[str, int]:
  """{name: id} of the marks that a vocabulary has by a well-known text."""
  found = dict[str, int]()
  for name, texts in {**PARTS, **ENDS}.items():
    for text in texts:
      if text in marks: found.setdefault(name, marks[text])
  return found

def fill_prompt(tokenizer: Any, before: str, after: str, room: int, begun: str = "",
                files: Sequence[tuple[str, str]] = ()) -> list[int]:
  """
  The token ids that ask for the text between `before` and `after`; at most `room` of them, without `begun`.

  begun: the begin of that text. files: (name, text) of others that may help; their last tokens fill what room is left.
  Three quarters of the window are for the end of `before`, the rest for the begin of `after`.

  InputError if the vocabulary has no marks for it.
  """
  fill, encode = tokenizer.fill, tokenizer.encode
  if missing := [kind for name, kind in KINDS.items() if name not in fill]:
    raise InputError(f"this model fills in no text, its vocabulary has no mark for the {', the '.join(missing)}")
  first, last, middle = encode(before[-CHARACTERS:]), encode(after[:CHARACTERS]), encode(begun)
  quarter = max(0, min(WINDOW, room - 4)) // 4
  first, last = first[max(0, len(first) - 3 * quarter):], last[:max(0, quarter - 2 - len(middle))]
  start = [tokenizer.bos] if tokenizer.add_bos and tokenizer.bos is not None else []
  sides = [*start, fill["pre"], *first, *middle, fill["suf"], *last, fill["mid"]]
  others = _others(tokenizer, files)
  return [*others[max(0, len(others) - max(0, room - len(sides))):], *sides]

def _others(tokenizer: Any, files: Sequence[tuple[str, str]]) -> list[int]:
  """The ids of other files, each after its name where the vocabulary has a mark for it."""
  fill, ids = tokenizer.fill, list[int]()
  if "rep" in fill: ids += [fill["rep"], *tokenizer.encode("myproject\n")]
  for name, text in files:
    ids += [fill["sep"], *tokenizer.encode(name + "\n")] if "sep" in fill else tokenizer.encode(SNIPPET)
    ids += tokenizer.encode(text[-CHARACTERS:])
  if "sep" in fill: ids += [fill["sep"], *tokenizer.encode("filename\n")]
  return ids
