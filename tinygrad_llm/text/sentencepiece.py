"""
SentencePiece vocabularies ("llama" in a GGUF file): Llama 2, Mistral, TinyLlama.

The text is one run of characters, spaces written as U+2581. Of all neighbours that together are a token, the pair whose
token has the best score is merged, the leftmost of equals, until no pair is left. Files do hold equal scores (the runs
of spaces of Llama 2, every token of some converters), and a list of merges, as the `tokenizers` library wants it,
cannot say that two pairs are equal: hence a merge loop of our own.
Source: SentencePiece (https://arxiv.org/abs/1808.06226). Where a file leaves a choice, llama.cpp is the reference.
"""
from __future__ import annotations
from collections.abc import Iterator, Mapping
from functools import lru_cache
from heapq import heappop, heappush
import numpy as np

SPACE = "\u2581"
CACHED_WORDS, CACHED_LENGTH = 10_000, 64
PAIR_BITS = 22   # of a hash of two characters; where others have the same, a text is cut less often than it could be

def _pair_hashes(text: str) -> np.ndarray:
  """(len(text) - 1,) uint32 below 2^PAIR_BITS: a hash of each character and the next."""
  codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.dtype("<u4")).astype(np.uint32)
  return (codes[:-1] * np.uint32(0x9e3779b1) + codes[1:] * np.uint32(0x85ebca6b)) >> np.uint32(32 - PAIR_BITS)

class SentencePiece:
  """
  Merges characters into the tokens of a vocabulary.

  vocab: the ids of the tokens that text may become.
  scores: a score for each id, higher is merged sooner.
  byte_ids: the ids of the byte tokens, by byte; a character that is no token is written with them.
  unknown: the id for a character that they cannot write.
  space_prefix: whether a space is put before each text, so that its first word is the token it is elsewhere.
  """
  def __init__(self, vocab: Mapping[str, int], scores: list[float], byte_ids: Mapping[int, int], unknown: int,
               space_prefix: bool = True):
    self.prefix = " " if space_prefix else ""
    self._vocab, self._scores, self._byte_ids, self._unknown = vocab, scores, byte_ids, unknown
    self._joined = np.zeros(1 << PAIR_BITS, np.bool_)   # by the hash of two neighbours: whether they are inside a token
    self._joined[_pair_hashes("\0".join(vocab))] = True
    self._cached_word = lru_cache(CACHED_WORDS)(self._word)

  def encode(self, text: str) -> list[int]:
    """Token ids of a text that stands at the beginning or after a special token."""
    if not text: return []
    ids: list[int] = []
    for word in self._words((self.prefix + text).replace(" ", SPACE)):
      ids += (self._cached_word if len(word) <= CACHED_LENGTH else self._word)(word)
    return ids

  @property
  def writes_all(self) -> bool:
    """Whether no text is left out: it is not, as there is an unknown token."""
    return True

  def text_bytes(self, text: str) -> bytes:
    """The bytes that a normal token's text stands for."""
    return text.replace(SPACE, " ").encode("utf-8", "surrogatepass")

  def _words(self, text: str) -> Iterator[str]:
    """Cuts where no token reaches across: the same ids, but words recur and are cached (prose: 11 times as fast)."""
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
    """The parts of a word when all merges are done. O(n log n) for n characters and tokens of bounded length."""
    parts, end = list(word), len(word)   # a part is known by its first character; one merged into another has no next
    before, after = list(range(-1, end - 1)), list(range(1, end + 1))
    heap: list[tuple[float, int, int, int]] = []   # order, left part, right part, length of both

    def offer(left: int, right: int) -> None:
      if left < 0 or right == end: return
      both = parts[left] + parts[right]
      if (i := self._vocab.get(both)) is not None: heappush(heap, (-self._scores[i], left, right, len(both)))

    for i in range(1, end): offer(i - 1, i)
    while heap:
      _, left, right, length = heappop(heap)
      if after[left] != right or len(parts[left]) + len(parts[right]) != length: continue   # one has changed since
      parts[left] += parts[right]
      after[left], after[right] = after[right], -1
      if after[left] < end: before[after[left]] = left
      offer(before[left], left)
      offer(left, after[left])
    i = 0
    while i < end:
      yield parts[i]
      i = after[i]
