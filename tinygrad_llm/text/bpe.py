"""
Byte pair encoding with a list of merges ("gpt2" and "gemma4" in a GGUF file), by the `tokenizers` library.

Sources: byte-level BPE as in GPT-2 (https://github.com/openai/gpt-2/blob/master/src/encoder.py), the `tokenizers`
library (https://huggingface.co/docs/tokenizers). Where a file leaves a choice, llama.cpp is the reference.
"""
from __future__ import annotations
from collections.abc import Iterator, Set
from itertools import chain
from typing import cast
from tokenizers import Regex, Tokenizer as Pipeline, models, pre_tokenizers
from tinygrad_llm.errors import InputError, warn
from tinygrad_llm.text.pretokenizers import PreType
from tinygrad_llm.text.sentencepiece import SPACE

def _byte_characters() -> dict[str, int]:
  """{character: byte} of a byte-level vocabulary. Printable bytes stand for themselves, the others are U+0100 on."""
  printable = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
  rest = [b for b in range(256) if b not in printable]
  return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(rest)}

_BYTE_OF = _byte_characters()
_NEVER = {0xc0, 0xc1, *range(0xf5, 0x100)}  # bytes that UTF-8 never has

def _pairs(vocab: dict[str, int], tokens: Set[str], merges: list[str]) -> tuple[list[tuple[str, str]], dict[str, int]]:
  """Merges as pairs, and ids for texts that they need but the vocabulary lacks. Warns of merges that are not pairs."""
  parts = [tuple(merge.split(" ")) for merge in merges]
  texts = chain(map("".join, parts), chain.from_iterable(parts))  # no Python loop over 300,000 merges
  if {*map(len, parts)} <= {2} and len({*merges}) == len(merges) and all(map(vocab.__contains__, texts)):  # most files
    return cast(list[tuple[str, str]], parts), {}
  never = tokens - vocab.keys()
  first, beyond, pairs = max(vocab.values(), default=-1) + 1, dict[str, int](), list[tuple[str, str]]()
  without, broken = list[str](), list[str]()
  for merge in dict.fromkeys(merges):   # the first of equal merges counts
    cut = merge.find(" ", 1)            # a part may itself begin with a space
    left, right = merge[:cut], merge[cut + 1:]
    if cut < 0 or not right: broken.append(merge)
    elif never.isdisjoint(three := {left, right, left + right}):
      pairs.append((left, right))
      if not vocab.keys() >= three: without.append(merge)
      for text in (left, right, left + right):
        if text not in vocab: beyond.setdefault(text, len(beyond) + first)
  for wrong, what in ((broken, "are not pairs of texts and are left out"),
                      (without, "need texts that are no tokens; where these remain, they are spelt in bytes")):
    if wrong: warn(f"tokenizer.ggml.merges: {len(wrong)} of {len(merges)}, such as {ascii(wrong[0])[:80]}, {what}")
  return pairs, beyond

class BPE:
  """
  Splits words into bytes, or into characters with a byte fallback, and merges them into tokens.

  vocab: {text: id} of the tokens that text may become.

  tokens: the texts of all tokens. Merges with a text that is a token but not in `vocab`, as control tokens, are
  ignored.

  merges: pairs of texts, a space between them, in the order in which they are applied. As in llama.cpp, a merge may
  make a text that is no token, and a later merge may use it. Such a text that remains becomes the tokens of its bytes.

  lowercase: whether each character is replaced by its lower case before the words are cut.
  """
  prefix = ""

  def __init__(self, vocab: dict[str, int], tokens: Set[str], merges: list[str], pre: PreType, lowercase: bool = False):
    self._byte_level, self._drops_spaces, self._lowercase = pre.byte_level, pre.drops_spaces, lowercase
    self._vocab, self._spelt = vocab, dict[int, list[int]]()
    pairs, beyond = _pairs(vocab, tokens, merges)
    ids = vocab | beyond
    try:
      model = models.BPE(vocab=ids, merges=pairs, ignore_merges=pre.ignore_merges, byte_fallback=not pre.byte_level)
      if beyond:  # a word that equals one of these texts is no token, so its merges must not be ignored
        plain = models.BPE(vocab=ids, merges=pairs, byte_fallback=not pre.byte_level)
        self._spelt = {i: [j for token in plain.tokenize(text) for j in self._spell(token.value)]
                       for text, i in beyond.items()}
    except Exception as e:
      raise InputError("tokenizer.ggml.tokens: texts that are not Unicode; convert the model again") from e
    self._pipeline = Pipeline(model)
    if pre.drops_spaces: steps = [pre_tokenizers.Split(Regex(r"\s+"), "removed")]
    else: steps = [pre_tokenizers.Split(Regex(split), "isolated") for split in pre.splits]
    as_bytes = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)] if pre.byte_level else []
    self._pipeline.pre_tokenizer = pre_tokenizers.Sequence([*steps, *as_bytes])  # type: ignore[assignment]

  def encode(self, text: str) -> list[int]:
    """Token ids of a text without special tokens."""
    if self._lowercase: text = "".join(c.lower()[:1] for c in text)
    if not self._byte_level and not self._drops_spaces: text = text.replace(" ", SPACE)
    ids = self._pipeline.encode(text, add_special_tokens=False).ids
    return [j for i in ids for j in self._spelt.get(i, (i,))] if self._spelt else ids

  def _spell(self, text: str) -> Iterator[int]:
    """The id of a text's token, or the ids of its bytes' tokens; bytes without a token are left out."""
    spelling = text if self._byte_level else [f"<0x{b:02X}>" for b in text.encode()]
    for part in [text] if text in self._vocab else spelling:
      if (i := self._vocab.get(part)) is not None: yield i

  @property
  def writes_all(self) -> bool:
    """Whether no text is left out: every byte has a token, white space included."""
    if self._drops_spaces: return False
    names = _BYTE_OF if self._byte_level else {f"<0x{b:02X}>": b for b in range(256)}
    return all(name in self._vocab for name, b in names.items() if b not in _NEVER)

  def text_bytes(self, text: str) -> bytes:
    """The bytes that a normal token's text stands for."""
    if self._byte_level and all(c in _BYTE_OF for c in text): return bytes(_BYTE_OF[c] for c in text)
    marked = not self._byte_level and not self._drops_spaces
    return (text.replace(SPACE, " ") if marked else text).encode("utf-8", "surrogatepass")
