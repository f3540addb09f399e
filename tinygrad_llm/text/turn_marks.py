"""Turn marks: how a model's template begins a turn. A model that generates one has started a turn of its own accord."""
from __future__ import annotations
import re
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from os.path import commonprefix
from typing import NamedTuple
from tinygrad_llm.errors import InputError
from tinygrad_llm.text.chat_template import ChatTemplate
from tinygrad_llm.text.thinking import TAGS
from tinygrad_llm.text.tokenizer import Tokenizer

ASKED, SAID, AGAIN = "Qzxq", "Qzxw", "Qzxv"
MESSAGES = ("<|start|>", "<|end|>", "<|begin|>", "<|open|>")  # may also begin or end messages inside one answer
MARK = re.compile(r"(?:[<\[][^\s<>\[\]]*[>\]]|\]~\w+\])\w*")  # <|user|>, [INST], <start_of_turn>user, ]~b]user
WORDS = re.compile(r"\w+:|#.+")  # User: or ### Instruction: at the beginning of a line
HALF = re.compile(r"(?:[<\[][^\s<>\[\]]*|\]~\w+\]\w*|\](?:~\w*)?|#.*)\Z")  # an incomplete MARK or heading

class TurnMarks(NamedTuple):
  """
  The texts that begin a turn in a model's template.

  names: names of tokens without text, as the vocabulary writes them.

  texts: beginnings of turns that are plain text, to be used as stop strings.
  """
  names: frozenset[str] = frozenset()
  texts: tuple[str, ...] = ()

  def opened(self, prompt: Sequence[int], tokenizer: Tokenizer) -> bool:
    """Whether a prompt has one of these marks."""
    if any(tokenizer.control_text(i) in self.names for i in prompt): return True
    if not self.texts: return False
    text = b"".join(tokenizer.token_bytes(i) for i in prompt if i < tokenizer.vocab_size).decode("utf-8", "replace")
    return any(mark.strip() in text for mark in self.texts)

def turn_marks(template: ChatTemplate, tokenizer: Tokenizer) -> TurnMarks:
  """
  The turn marks of a template, found by rendering.

  The user's mark is the text between an answer and the next message, less the text after a last answer. The assistant's
  mark is the text before an answer. No marks for a template that refuses two turns.
  """
  turns = [{"role": role, "content": text} for role, text in (("user", ASKED), ("assistant", SAID), ("user", AGAIN))]
  try:
    one, two = template.render(turns[:2], False), template.render(turns, False)
    asked = template.render(turns, True)
  except InputError: return TurnMarks()
  after, between = one.rpartition(SAID)[2], two.rpartition(AGAIN)[0].rpartition(SAID)[2]
  user, answer = _mark(_rest(between, after), tokenizer), _mark(_rest(asked, two), tokenizer)
  texts = dict.fromkeys(text for text, name in (user, answer) if not name and MARK.fullmatch(text))
  if not user[1] and WORDS.fullmatch(user[0]): texts[f"\n{user[0]}"] = None
  return TurnMarks(frozenset(text for text, name in (user, answer) if name and text), tuple(texts))

def _rest(text: str, before: str) -> str:
  """A text without the prefix that it shares with another one; a mark is not cut in two."""
  return text[len(HALF.sub("", commonprefix([text, before]))):]

def _mark(opening: str, tokenizer: Tokenizer) -> tuple[str, bool]:
  """The mark in a text that begins a turn, and whether it is the name of a token without text."""
  pieces = [(text, name) for name, run in groupby(tokenizer.pieces(opening), itemgetter(1))
            for text in ([t for t, _ in run] if name else ["".join(t for t, _ in run).strip()]) if text]
  while pieces and pieces[0][1] and pieces[0][0] in tokenizer.end_texts: del pieces[0]
  bos = tokenizer.control_text(tokenizer.bos) if tokenizer.bos is not None else ""
  if len(pieces) > 1 and pieces[0] == (bos, True) and (pieces[1][1] or MARK.match(pieces[1][0])): del pieces[0]
  text, name = pieces[0] if pieces else ("", True)
  if text.startswith((*TAGS, *MESSAGES)): return "", True
  if name: return text, True
  return (m[0] if (m := MARK.match(text)) else text.splitlines()[0].strip()), False
