"""
SentencePiece tokenizers ("llama" in a GGUF file): Llama 2, Mistral, TinyLlama.

The text is one run of characters, with spaces written as U+2581. Neighbours that together are a token are merged, best
score first and the leftmost of equals, until there are none. Files do hold equal scores: the runs of spaces of Llama 2,
or every token of some converters. The `tokenizers` library wants a list of merges, which cannot say that two pairs are
equal. Hence our own merge loop.
Source: SentencePiece (https://arxiv.org/abs/1808.06226). Where a file leaves a choice, llama.cpp is the reference.
"""
from __future__ import annotations
from collections.abc import Iterator, Mapping
from functools import lru_cache
from heapq import heappop, heappush
import numpy as np

SPACE = "\u2581"
CACHED_WORDS, CACHED_LENGTH = 10_000, 64
PAIR_BITS = 22   # size of a hash of two characters; a collision only means that a text is cut less often

def _pair_hashes(text: str) -> np.ndarray:
  """(len(text) - 1,) uint32 below 2^PAIR_BITS: a hash of each character and the next."""
  codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.dtype("<u4")).astype(np.uint32)
  return (codes[:-1] * np.uint32(0x9e3779b1) + codes[1:] * np.uint32(0x85ebca6b)) >> np.uint32(32 - PAIR_BITS)

class SentencePiece:
  """
  Merges characters into the tokens of a vocabulary.

  vocab: {text: id} of the tokens that text may become.

  scores: a score for each id; higher scores merge first.

  byte_ids: {byte: id} of the byte tokens, which write a character that is no token.

  unknown: the id for a character that the byte tokens cannot write.

  space_prefix: whether to put a space before each text, so that its first word gets the same token as elsewhere.
  """
  def __init__(self, vocab: Mapping[str, int], scores: list[float], byte_ids: Mapping[int, int], unknown: int,
               space_prefix: bool = True):
    self.prefix = " " if space_prefix else ""
    self._vocab, self._scores, self._byte_ids, self._unknown = vocab, scores, byte_ids, unknown
    self._joined = np.zeros(1 << PAIR_BITS, np.bool_)   # by pair hash: whether the pair occurs inside a token
    self._joined[_pair_hashes("\0".join(vocab))] = True
    self._cached_word = lru_cache(CACHED_WORDS)(self._word)

  def encode(self, text: str) -> list[int]:
    """Token ids of a text at the beginning of a prompt or after a special token."""
    if not text: return []
    ids: list[int] = []
    for word in self._words((self.prefix + text).replace(" ", SPACE)):
      ids += (self._cached_word if len(word) <= CACHED_LENGTH else self._word)(word)
    return ids

  @property
  def writes_all(self) -> bool:
    """Whether no text is left out: always true, as there is an unknown token."""
    return True

  def text_bytes(self, text: str) -> bytes:
    """The bytes that a normal token's text stands for."""
    return text.replace(SPACE, " ").encode("utf-8", "surrogatepass")

  def _words(self, text: str) -> Iterator[str]:
    """Cuts where no token can span. The ids stay the same, but words recur and are cached (prose: 11 times as fast)."""
    start = 0
    for i in (np.flatnonzero(~self._joined[_pair_hashes(text)]) + 1).tolist():
      yield text[start:i]
      start = i
    yield text[start:]

  def _word(self, word: str) -> list[int]:
    ids: list[int] = []
    for part in self._merge(word):
      values = part.encode()
      if part in self._vocab: ids.append(self._vocab[part])
      elif self._byte_ids.keys() >= {*values}: ids += [self._byte_ids[b] for b in values]
      else: ids.append(self._unknown)
    return ids

  def _merge(self, word: str) -> Iterator[str]:
    """The parts of a word after all merges. O(n log n) for n characters and tokens of bounded length."""
    parts, end = list(word), len(word)   # indexed by first character; a part that was merged away has after[i] = -1
    before, after = list(range(-1, end - 1)), list(range(1, end + 1))
    heap: list[tuple[float, int, int, int]] = []   # order, left part, right part, length of both

    def offer(left: int, right: int) -> None:
      if left < 0 or right == end: return
      both = parts[left] + parts[right]
      if (i := self._vocab.get(both)) is not None: heappush(heap, (-self._scores[i], left, right, len(both)))

    for i in range(1, end): offer(i - 1, i)
    while heap:
      _, left, right, length = heappop(heap)
      if after[left] != right or len(parts[left]) + len(parts[right]) != length: continue   # stale: a part changed
      parts[left] += parts[right]
      after[left], after[right] = after[right], -1
      if after[left] < end: before[after[left]] = left
      offer(before[left], left)
      offer(left, after[left])
    i = 0
    while i < end:
      yield parts[i]
      i = after[i]
