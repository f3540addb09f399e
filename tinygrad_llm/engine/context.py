"""What a model's KV cache holds, and who fed it last."""
from __future__ import annotations
import weakref
from collections.abc import Sequence
from itertools import takewhile
import numpy as np
from tinygrad_llm.nn.kv_cache import KVCache

class Feed:
  """Somebody who feeds tokens: an answer, or the caller of prefill() and step()."""
  def __init__(self) -> None:
    self.tokens: list[int] = []  # all that was fed, from position 0 on
    self.prompt = 0  # of these, how many came by the chunk
    self.saved: Saved | None = None
    self.ended = False  # it will feed nothing more

class Saved:
  """
  A copy of the cache of a feed that another one interrupted: positions `first`.. of every layer, with all that was fed
  token by token. By the chunk the same tokens have other keys and values in the last bits.
  """
  def __init__(self, tokens: Sequence[int], first: int, layers: list[np.ndarray]):
    self.tokens, self.first, self.layers = list(tokens), first, layers

class Context:
  """
  One slot of KV cache, which belongs to one feed at a time.

  tokens: those whose keys and values are in the cache, never more than were written. generation: counts the changes of
  owner. The feed before is saved where the host reaches the device's memory; elsewhere its tokens are fed again.
  """
  def __init__(self, caches: Sequence[KVCache]):
    self.caches, self.tokens, self.generation = caches, list[int](), 0
    self._owner: weakref.ref[Feed] | None = None

  @property
  def owner(self) -> Feed | None:
    """Who fed last, if it is still there."""
    return None if self._owner is None else self._owner()

  def take(self, feed: Feed, ids: Sequence[int]) -> int:
    """Makes `feed` the owner; returns how many of `ids`, its tokens, are in the cache then. The rest is its to feed."""
    if self.owner is feed: return self.common(ids)
    same = self.common(ids)
    if (before := self.owner) is not None and not before.ended: before.saved = self._save(min(same, before.prompt))
    self._owner, self.generation = weakref.ref(feed), self.generation + 1
    return same

  def restore(self, feed: Feed) -> None:
    """Puts back what was saved of the owner, whose tokens before that are in the cache."""
    if (saved := feed.saved) is None: return
    for cache, positions in zip(self.caches, saved.layers): cache.restore(saved.first, positions)
    self.tokens, feed.saved = saved.tokens, None

  def forget(self) -> None:
    """Nothing is in the cache, and nobody owns it."""
    self.tokens, self._owner, self.generation = [], None, self.generation + 1

  def common(self, ids: Sequence[int]) -> int:
    """How many of `ids` the cache begins with."""
    return self._common(self.tokens, ids)

  def cut(self, position: int) -> None:
    """The cache holds no more than the first `position` tokens: what comes after is about to be written."""
    del self.tokens[position:]

  def _save(self, first: int) -> Saved | None:
    if first >= len(self.tokens): return None
    layers = [cache.save(first, len(self.tokens)) for cache in self.caches]
    kept = [x for x in layers if x is not None]
    return Saved(self.tokens, first, kept) if len(kept) == len(layers) else None

  @staticmethod
  def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b)))
