"""Steps that a caller runs in its own thread, one after the other: prompts with all their rows, and single tokens."""
from __future__ import annotations
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar
import numpy as np
from tinygrad_llm.engine.batch.engine import Engine, snapshot_at
from tinygrad_llm.engine.batch.residents import run_length
from tinygrad_llm.engine.batch.sequence import Sequence as BatchSequence
from tinygrad_llm.errors import InputError

T = TypeVar("T")

class ByHand:
  """
  A sequence in the engine's pool whose steps are no requests. All calls are made with the engine's lock held.

  Between calls it is a guest of the pool: requests that need its blocks take them. It reads again whatever it lost.
  """
  def __init__(self, engine: Engine, exact: bool = False):
    """exact: what is read again reuses only what was read as a prompt."""
    self._engine, self._exact, self._s = engine, exact, BatchSequence([], 0)

  @property
  def tokens(self) -> list[int]:
    """All tokens that were fed."""
    return self._s.tokens

  def pieces(self, ids: Sequence[int], first: int = 0) -> Iterator[int]:
    """
    Reads ids[first:] after ids[:first] as a prompt; yields each piece's number of tokens while the steps hold its rows.

    Tokens of ids[:first] that the pool has lost are read again before. The lock may be let go between two pieces.
    """
    while first < len(ids):
      s = self._take(ids, first)
      if s.fed < first: self._read(s, first)
      before = s.fed
      self._read(s, len(ids), once=True)
      self._engine.pool.guests.append(s)
      first = s.fed  # others may take its blocks before the next piece
      yield first - before

  def prompt(self, ids: Sequence[int], first: int = 0) -> np.ndarray:
    """The same; float32 (vocab_size,): the logits after the last token."""
    count = [*self.pieces(ids, first)][-1]
    found: np.ndarray = self._engine.steps.last_logits(count)
    return found

  def step(self, before: Sequence[int], token: int) -> np.ndarray:
    """Feeds a token after others, as far as these are not fed; float32 (vocab_size,): the logits after it."""
    s = self._take([*before, token], len(before))
    self._read(s, len(before))
    self._engine.pool.grow(s, len(s.tokens))  # a window's block can be had just before its step
    logits = self._doing(s, partial(self._engine.feed_one, s))
    self._engine.pool.guests.append(s)
    found: np.ndarray = self._engine.steps.logits(logits, 0)
    return found

  def leave(self) -> None:
    """Gives the blocks back. Their prefix stays in the pool as long as there is room."""
    if self._s in self._engine.pool.guests: self._engine.pool.leave(self._s)

  def drop(self) -> None:
    """The same without the lock, after the last call: the blocks go when the next sequence begins."""
    self._s.cancelled = True

  def _take(self, ids: Sequence[int], fed: int) -> BatchSequence:
    """The sequence, with room for `ids`. It begins with the first `fed` of them, as far as the pool has them."""
    pool, s = self._engine.pool, self._s
    if s in pool.guests and s.fed == fed and s.tokens[:fed] == [*ids[:fed]]:
      pool.guests.remove(s)
      s.tokens = [*ids]
    else:
      self.leave()
      self._s = s = BatchSequence([*ids[:fed + 1]], len(ids), exact_prefix=self._exact)
      pool.begin(s)
      s.tokens = [*ids]
    while not pool.grow(s, len(ids)):
      if self._engine.scheduler.preempt(): continue
      pool.release(s)
      raise InputError(f"prompt: {len(ids)} tokens do not fit beside the streams that run; wait for them")
    return s

  def _read(self, s: BatchSequence, end: int, once: bool = False) -> None:
    """Feeds pieces up to a position; once: one piece."""
    engine = self._engine
    while s.fed < end:
      count = min(end - s.fed, run_length(s.table, s.fed, engine.chunk), engine.chunk)
      if engine.is_stateful and s.fed < (kept := snapshot_at(s)): count = min(count, kept - s.fed)
      count = engine.pool.piece(s, count)
      self._doing(s, partial(engine.feed, s, count))
      if once: return

  def _doing(self, s: BatchSequence, step: Callable[[], T]) -> T:
    """A step's result. After an error nobody knows what the sequence has written."""
    try: found = step()
    except BaseException as e:
      s.error = e if isinstance(e, Exception) else InputError("engine: interrupted")
      self._engine.pool.release(s)
      raise
    self._engine.pool.entered(s)
    return found
