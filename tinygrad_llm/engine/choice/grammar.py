"""
Grammars: which tokens may come next, so that the answer is in a language. The library llguidance decides.

Source: https://github.com/guidance-ai/llguidance, its Python interface. JSON schemas, regular expressions in Rust's
syntax, and its dialect of Lark.
"""
from __future__ import annotations
import json
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary, ref
import numpy as np
from tinygrad_llm.engine.choice.digits import with_digits
from tinygrad_llm.errors import InputError
from tinygrad_llm.text.tokenizer import Tokenizer

SPACE = r"[ ]?|\n[ ]{0,20}"  # between JSON's parts, unless the schema has its own: endless white space is no answer

class DeadGrammar(InputError):
  """A grammar that allows no token: it ends its own sequence, and no other."""

class Grammar:
  """
  The grammar of one sequence, at its present place: mask(), then accept() the token, until is_over.

  One of json_schema (a mapping, or JSON as text; {} is any JSON), regex and lark is given. vocab_size: the model's, at
  least the tokenizer's. InputError if the grammar is wrong, or llguidance is not installed.
  """
  def __init__(self, tokenizer: Tokenizer, vocab_size: int, *, json_schema: Mapping[str, Any] | str | None = None,
               regex: str | None = None, lark: str | None = None):
    given = {"json_schema": json_schema, "regex": regex, "lark": lark}
    if len(names := [name for name, value in given.items() if value is not None]) != 1:
      raise InputError(f"grammar: {' and '.join(names) or 'nothing'} is given; give one of {', '.join(given)}")
    self._size, vocabulary = vocab_size, _vocabulary(tokenizer, vocab_size)
    library, self._name = _library(), names[0]
    try:
      if json_schema is not None:
        schema = json.dumps(with_digits(json.loads(json_schema) if isinstance(json_schema, str) else json_schema))
        source = library.LLMatcher.grammar_from_json_schema(schema, defaults={"whitespace_pattern": SPACE})
      elif regex is not None: source = library.LLMatcher.grammar_from_regex(regex)
      else: source = library.LLMatcher.grammar_from_lark(lark)
      self._matcher = library.LLMatcher(vocabulary, source, log_level=0)
    except (TypeError, ValueError, RecursionError) as e: raise InputError(f"{self._name}: {_line(str(e))}") from e
    if self._matcher.is_error(): raise InputError(f"{self._name}: {_line(self._matcher.get_error())}")

  def fork(self) -> Grammar:
    """A grammar at the same place, for another sequence."""
    other = object.__new__(Grammar)
    other._size, other._name, other._matcher = self._size, self._name, self._matcher.deep_copy()
    return other

  @property
  def is_over(self) -> bool:
    """Whether the answer is whole and no text may follow it. Then only end tokens are allowed."""
    return bool(self._matcher.is_stopped())

  @property
  def may_end(self) -> bool:
    """Whether the answer is whole, though more text may follow."""
    return bool(self._matcher.is_accepting())

  def mask(self) -> np.ndarray:
    """
    Which tokens may come next: uint32 (ceil(vocab_size / 32),), a bit for each token, the first in the lowest bit.

    DeadGrammar if there is none.
    """
    words = np.frombuffer(self._matcher.compute_bitmask(), "<u4")[:-(-self._size // 32)].astype(np.uint32)
    if self._size % 32: words[-1] &= np.uint32((1 << self._size % 32) - 1)
    self._check()
    if not words.any(): raise DeadGrammar(f"{self._name}: no token of the model continues the answer")
    return words

  def accept(self, token: int) -> None:
    """Goes on past a token. DeadGrammar if it is not allowed here."""
    if token >= self._size or not self._matcher.consume_token(token): self._check(f"token {token} is not allowed here")

  def forced(self) -> list[int]:
    """The tokens that must come next, in the tokenizer's own spelling; they are still to be accepted."""
    ids: list[int] = self._matcher.compute_ff_tokens()
    self._check()
    return ids[:self._matcher.validate_tokens(ids)]

  def _check(self, why: str = "") -> None:
    if why or self._matcher.is_error(): raise DeadGrammar(f"{self._name}: {why or _line(self._matcher.get_error())}")

def _line(error: str) -> str:
  """An error of the library in one line, without its dump of the parser."""
  return " ".join(error.split("\n<state>")[0].split())[:200]

def _library() -> Any:
  try: import llguidance
  except ImportError as e:
    raise InputError('grammar: llguidance is not installed; pip install "tinygrad_llm[serve]"') from e
  return llguidance

# the tokenizers of models in memory: {tokenizer: {(rows of the model, end tokens): llguidance's tokenizer}}
_made: WeakKeyDictionary[Tokenizer, dict[tuple[int, frozenset[int]], Any]] = WeakKeyDictionary()

def _vocabulary(tokenizer: Tokenizer, size: int) -> Any:
  """llguidance's form of a tokenizer, made once: a second for 128,256 tokens. A template may add an end token."""
  made, key = _made.setdefault(tokenizer, {}), (size, frozenset(tokenizer.stop_ids))
  if key not in made: made[key] = _library().LLTokenizer(_Words(tokenizer, size), eos_token=_ends(tokenizer, size))
  return made[key]

def _ends(tokenizer: Tokenizer, size: int) -> list[int]: return sorted(tokenizer.stop_ids) or [size]

class _Words:
  """A tokenizer as llguidance reads it. It keeps no tokenizer alive."""
  is_tokenizer_wrapper = True

  def __init__(self, tokenizer: Tokenizer, size: int):
    ends = _ends(tokenizer, size)  # a file without end tokens gets one beyond its vocabulary
    self.tokens = [tokenizer.shown_bytes(i) for i in range(max(size, ends[-1] + 1))]
    self.special_token_ids = [i for i in range(tokenizer.vocab_size) if tokenizer.control_text(i)]
    self.eos_token_id, self.bos_token_id, self._tokenizer = ends[0], tokenizer.bos, ref(tokenizer)

  def __call__(self, text: str | bytes) -> list[int]:
    """Token ids of a text that continues another, as the tokenizer would write it."""
    if (tokenizer := self._tokenizer()) is None: return []
    text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return tokenizer.encode_on(text)
