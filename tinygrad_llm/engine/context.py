"""
Which tokens a model's KV cache and recurrent states hold, and which source of tokens (`Feed`, such as an answer) wrote
them last.
"""
from __future__ import annotations
import weakref
from collections.abc import Sequence
from itertools import takewhile
import numpy as np
from tinygrad_llm.engine.states import States
from tinygrad_llm.nn.cache.kv_cache import KVCache

class Feed:
  """A source of tokens for the KV cache: an answer, or the caller of prefill() and step()."""
  def __init__(self) -> None:
    self.tokens: list[int] = []  # all tokens fed, from position 0 on
    self.prompt = 0  # how many of these were fed in chunks (prefill)
    self.saved: Saved | None = None
    self.ended = False  # it feeds nothing more

class Saved:
  """
  A copy of the KV cache of a feed that another one interrupted: positions `first`.. of every layer, and its states.

  It has all that was fed token by token. Prefilling the same tokens in chunks would give keys and values that differ in
  the last bits.
  """
  def __init__(self, tokens: Sequence[int], first: int, layers: list[np.ndarray], states: list[np.ndarray]):
    self.tokens, self.first, self.layers, self.states = list(tokens), first, layers, states

class Context:
  """
  One slot of KV cache and recurrent states, which belongs to one feed at a time.

  tokens: those whose keys and values are in the cache, never more than were written. generation: counts the changes of
  owner. An interrupted feed is saved if the host can reach the device's memory; otherwise its tokens are fed again.
  """
  def __init__(self, caches: Sequence[KVCache], states: States):
    self.caches, self.states, self.tokens, self.generation = caches, states, list[int](), 0
    self._owner: weakref.ref[Feed] | None = None

  @property
  def owner(self) -> Feed | None:
    """The feed that fed last; None if it is gone."""
    return None if self._owner is None else self._owner()

  def take(self, feed: Feed, ids: Sequence[int]) -> int:
    """Makes `feed` the owner; returns how many of `ids`, its tokens, are then in the cache."""
    same = self.common(ids)
    if (before := self.owner) is not feed:
      if before is not None and not before.ended: before.saved = self._save(min(same, before.prompt))
      self._owner, self.generation = weakref.ref(feed), self.generation + 1
    return same

  def resume(self, feed: Feed, ids: Sequence[int]) -> int:
    """
    take() for tokens that are fed in chunks: how many of `ids` are in the cache and seen by the state of prompts.

    The feed has to feed the rest.
    """
    return self.states.resume(self.take(feed, ids))

  def restore(self, feed: Feed) -> None:
    """Copies the owner's saved keys and values back, if it has any. The positions before them must be right already."""
    if (saved := feed.saved) is None: return
    for cache, positions in zip(self.caches, saved.layers): cache.restore(saved.first, positions)
    self.states.restore(len(saved.tokens), saved.states)
    self.tokens, feed.saved = saved.tokens, None

  def forget(self) -> None:
    """Empties the cache; nobody owns it then."""
    self.tokens, self._owner, self.generation = [], None, self.generation + 1
    self.states.cut(0)

  def common(self, ids: Sequence[int]) -> int:
    """Length of the prefix of `ids` that the cache begins with."""
    return self._common(self.tokens, ids)

  def cut(self, position: int) -> None:
    """Truncates the cache to its first `position` tokens: the positions after them are about to be written."""
    del self.tokens[position:]
    self.states.cut(position)

  def _save(self, first: int) -> Saved | None:
    if first >= len(self.tokens): return None
    layers = [cache.save(first, len(self.tokens)) for cache in self.caches]
    kept, states = [x for x in layers if x is not None], self.states.save(len(self.tokens))
    return Saved(self.tokens, first, kept, states) if len(kept) == len(layers) and states is not None else None

  @staticmethod
  def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b)))
