"""Admission of sequences to the pool's blocks, and preemption of the youngest where blocks run out."""
from __future__ import annotations
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol
from tinygrad_llm.engine.batch.sequence import Sequence
from tinygrad_llm.errors import InputError
from tinygrad_llm.nn.cache.place import BLOCK

MARGIN = 128  # positions of an answer that must have room beside others when a prompt is admitted

class Pool(Protocol):
  """
  The blocks of the KV cache, as the scheduler uses them; begin() fills `table` and `fed`, grow() makes room.

  piece(): how many of the next positions of a prompt, at most `count`, a piece can feed.
  """
  def begin(self, s: Sequence) -> None: ...
  def grow(self, s: Sequence, positions: int) -> bool: ...
  def piece(self, s: Sequence, count: int) -> int: ...
  def entered(self, s: Sequence) -> None: ...
  def release(self, s: Sequence) -> None: ...
  def free(self) -> int: ...

@dataclass(eq=False)
class Entry:
  """A sequence that has not ended. number: order of arrival; arrived: the scheduler's clock then, in seconds."""
  sequence: Sequence
  number: int
  arrived: float

  @property
  def rest(self) -> int: return len(self.sequence.tokens) - self.sequence.fed
  @property
  def decodes(self) -> bool:
    """
    Whether it is fed by decode steps now. One that is alone reads its prompt by pieces and its answer by decode steps,
    also when it reads them again: both round as they did the first time.
    """
    return self.sequence.fed >= self.sequence.prompt if self.sequence.alone else self.rest <= 1
  @property
  def is_paused(self) -> bool: return self.sequence.is_paused

class Residents:
  """
  The sequences that have not ended: `running` ones hold blocks, `waiting` ones do not.

  ended: sequences that left, for the caller to take out. A sequence joins with what it needs next: a prompt with blocks
  for all of it, a decoding one a position at a time.
  """
  def __init__(self, pool: Pool, context: int):
    self.pool, self.context = pool, context
    self.running, self.waiting, self.ended = list[Entry](), list[Entry](), list[Sequence]()
    self.preemptions = 0
    self._arrivals = 0
    self._changes = 0  # events that may give a waiting prompt room
    self._refused: tuple[Entry, int, int] | None = None  # who found no room last, free blocks and changes then

  def add(self, s: Sequence, clock: float) -> None:
    """A sequence arrives; one with a table, such as a fork, runs at once."""
    if len(s.tokens) > self.context: s.error = InputError(
      f"prompt: {len(s.tokens)} tokens are too many for a context of {self.context}; shorten it or raise max_context")
    self._arrivals += 1
    (self.running if s.table else self.waiting).append(Entry(s, self._arrivals, clock))

  def decoding(self) -> list[Entry]:
    """The sequences that get a token in the next turn, the oldest first."""
    return sorted((e for e in self.running if e.decodes and not e.is_paused), key=_number)

  def prompts(self) -> bool:
    """Whether a prompt is to be read."""
    return any(not e.is_paused for e in self.waiting) or any(not e.decodes for e in self.running)

  def let_go(self) -> None:
    """Cancelled, finished and failed sequences leave, and full ones, unless a step of them is under way."""
    for e in (*self.running, *self.waiting):
      s = e.sequence
      if s.launched: continue  # a step still writes to its blocks
      if s.finish is None and s.error is None:
        if s.cancelled: s.finish = "cancelled"
        elif s.fed >= self.context: s.finish = "context"
        else: continue
      self._end(e)

  def go_on(self, sequences: Iterable[Sequence]) -> bool:
    """
    Whether all of these, which decode, stay for another step, and have blocks and readers for it.

    The pool is asked for each new block: what is read again may have one in `table`, but none in `window`.
    """
    for s in sequences:
      fed = s.fed
      if s.finish or s.error or s.cancelled or fed >= self.context or not fed % BLOCK: return False
      if s.room is not None and s.is_paused: return False
    return True

  def read(self) -> None:
    """A prompt has been read to its end, so that others may share all of it."""
    self._changes += 1

  def goes_on(self, e: Entry) -> bool:
    """Whether a decoding sequence takes part in the step behind the launched ones, as far as that is known now."""
    s = e.sequence
    if s.is_paused: return False
    if not s.launched: return True
    is_last = s.max_tokens is not None and len(s.tokens) + s.launched - s.prompt >= s.max_tokens
    return not (s.cancelled or s.finish or s.error or is_last or s.fed + s.launched >= self.context)

  def has_room(self, e: Entry) -> bool:
    """
    Makes room for one more position at the cost of the youngest, which may be the sequence itself.

    Paused ones go first.
    """
    while not self.pool.grow(e.sequence, e.sequence.fed + 1):
      youngest = max(self.running, key=lambda other: (other.is_paused, other.number))
      if len(self.running) > 1: self._preempt(youngest)
      else:
        e.sequence.finish = "context"
        self._end(e)
      if youngest is e: return False
    return True

  def preempt_paused(self) -> bool:
    """Lets the youngest paused sequence give its blocks back; False: there is none."""
    paused = [e for e in self.running if e.is_paused and not e.sequence.launched]
    if paused: self._preempt(max(paused, key=_number))
    return bool(paused)

  def reader(self, order: Callable[[Entry], tuple[float, int]]) -> Entry | None:
    """The entry of the prompt that is read next, the least by `order`, with its prefix and blocks for the rest."""
    first = min((e for e in self.running if not e.decodes), key=order, default=None)
    while waiting := [e for e in self.waiting if not e.is_paused]:
      e = min(waiting, key=order)
      if first and order(first) < order(e): break
      if self._admit(e): return e
      if self.preempt_paused(): continue
      if self.running: break
      e.sequence.error = InputError(f"prompt: {len(e.sequence.tokens)} tokens do not fit into the KV cache's blocks; "
                                    "shorten it or raise max_context")
      self._end(e)
    return first

  def _admit(self, e: Entry) -> bool:
    s, free = e.sequence, self.pool.free()
    if self._refused and self._refused[0] is e and self._refused[2] == self._changes and free <= self._refused[1]:
      return False
    left = MARGIN if s.max_tokens is None else min(MARGIN, s.max_tokens - len(s.tokens) + s.prompt)
    end = min(self.context, len(s.tokens) + left) if self.running else len(s.tokens)
    self.pool.begin(s)
    if -(-end // BLOCK) - len(s.table) > self.pool.free() or not self.pool.grow(s, len(s.tokens)):
      self.pool.release(s)
      s.fed, self._refused = 0, (e, free, self._changes)
      return False
    self.waiting.remove(e)
    self.running.append(e)
    return True

  def _preempt(self, e: Entry) -> None:
    self._give_back(e)
    e.sequence.fed = 0
    self.waiting.append(e)
    self.preemptions += 1

  def _end(self, e: Entry) -> None:
    if e in self.running: self._give_back(e)
    else: self.waiting.remove(e)
    self.ended.append(e.sequence)

  def _give_back(self, e: Entry) -> None:
    self.running.remove(e)
    self.pool.release(e.sequence)
    self._changes += 1

def _number(e: Entry) -> int: return e.number

def run_length(table: list[int], position: int, most: int) -> int:
  """Positions from `position` to the end of its run of neighbouring blocks; the search ends after `most` positions."""
  i = position // BLOCK
  end = i + 1
  while end < len(table) and end * BLOCK < position + most and table[end] == table[end - 1] + 1: end += 1
  return end * BLOCK - position
