"""
The choice of the next step: a token for each decoding sequence every turn, pieces of prompts between the turns.

Pure bookkeeping over measured times, without tensors. A caller does one action after the other:

  while action := scheduler.next():
    ..  # it runs the step, appends tokens, raises `fed`, may set `finish` or `error` of a sequence
    scheduler.done(action, seconds)

Where a device works while the host does, ahead() gives the step behind one that is launched: see Scheduler.
"""
from __future__ import annotations
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Numbers
from dataclasses import dataclass
from tinygrad_llm.engine.batch.prompt_share import PromptShare
from tinygrad_llm.engine.batch.residents import Entry, Pool, Residents, run_length
from tinygrad_llm.engine.batch.sequence import Sequence
from tinygrad_llm.engine.batch.step_times import LAST
from tinygrad_llm.nn.cache.place import BLOCK

@dataclass(frozen=True)
class Piece:
  """A prompt step that feeds tokens[first : first + count]; at the end of `tokens` it gives the next token."""
  sequence: Sequence
  first: int
  count: int

@dataclass(frozen=True)
class Decode:
  """A step that feeds one token of each sequence."""
  sequences: tuple[Sequence, ...]

@dataclass
class Counts:
  """The actions of a scheduler. prompt_tokens: fed by pieces; tokens: fed by decode steps."""
  pieces: int = 0
  decode_steps: int = 0
  prompt_tokens: int = 0
  tokens: int = 0

class Scheduler:
  """
  Chooses the next step of many sequences over one pool.

  Prompts. While a sequence decodes, prompts get `prompt_share` of the time. The pieces between two turns take at most
  2.75 turns or 0.1 s, whichever is longer, by a running fit of measured times. Otherwise a piece is as long as can be.
  Sizes that were not measured twice count 1.2 times. Then no gap between two tokens is longer than 4 steps or 150 ms.
  Where times vary by 10%, it may be 15% longer: 14% in 10,000 random mixes, and longer at all in 253 of them.
  The shortest rest is first, by seconds; a waiting second counts as a second less. So a prompt that needs S seconds
  alone is overtaken only by prompts that arrive within S seconds after it.

  Blocks. A prompt is admitted when all of it has blocks, and an answer's first 128 positions beside others. If the pool
  is full in a turn, the youngest sequence gives its blocks back and waits again, with its age; nothing of it is lost.
  A sequence that has the pool for itself and finds no room ends with `finish` "context", and so does one at `context`
  positions. A prompt that is too long for the context or for the whole pool ends with an InputError in `error`.

  Company. A sequence that is `alone` has steps of its own. One whose reader has no room is paused: it gets no token,
  and gives its blocks back before others do.

  End. A sequence that is cancelled, or has `finish` or `error`, leaves before the next action: the pool gets its blocks
  back. `ended` lists sequences that left, for the caller to take out. A cancelled one has `finish` "cancelled".

  Ahead. A caller that has launched a Decode raises `launched` of its sequences. Before it knows their tokens, it may
  ask ahead() for the step behind, which counts on nothing that is not sure. A sequence that ends keeps its blocks, and
  is not let go, until the caller has lowered `launched` to 0.

  rows: most sequences of a step, a power of two; it may be raised at any time. sizes: lengths of pieces, rising. A
  shorter piece ends its prompt, or a run of neighbouring blocks, or is all that the time allows. ends_at: a position
  of a sequence at which a piece ends.
  """
  def __init__(self, pool: Pool, context: int, rows: int = 8, prompt_share: float = 0.35,
               sizes: Numbers[int] = (16, 32, 64, 128, 256), ends_at: Callable[[Sequence], int] | None = None):
    self._ends_at = ends_at
    self.rows, self.sizes, self.counts = rows, tuple(sizes), Counts()
    self._pool, self._residents, self._share = pool, Residents(pool, context), PromptShare(prompt_share)
    self._last: list[Entry] = []  # the last turn in its order
    self._turn: list[Entry] = []  # the part of it that has had no token yet
    self._again: Decode | None = None  # the last action, if it fed all sequences that there are
    self._times = deque[float](maxlen=LAST)  # seconds that it took, the last ones
    self._earlier = 0.0           # seconds of those before
    self._clock = 0.0
    self._beside = False          # whether somebody decodes beside the last piece

  @property
  def running(self) -> int: return len(self._residents.running)
  @property
  def waiting(self) -> int: return len(self._residents.waiting)
  @property
  def preemptions(self) -> int: return self._residents.preemptions
  @property
  def ended(self) -> list[Sequence]: return self._residents.ended

  def preempt(self) -> bool:
    """Lets a sequence that no reader waits for give its blocks back; False: there is none."""
    self._again = None
    return self._residents.preempt_paused()

  def submit(self, s: Sequence) -> None:
    """Takes a sequence in. One with a table, such as a fork, runs at once; all others wait for blocks."""
    self._residents.add(s, self._clock)
    self._end_company()

  def next(self) -> Piece | Decode | None:
    """The next step; None: there is nothing to do until another submit()."""
    if self._again is not None and self._residents.go_on(self._again.sequences): return self._again
    self._end_company()
    self._residents.let_go()
    while True:
      if not self._turn:
        decoding = self._residents.decoding()
        if self._residents.prompts():
          if piece := self._piece(len(decoding)): return piece
          decoding = self._residents.decoding()
        if not decoding: return None
        self._begin_turn(decoding)
        self._share.turn(prompts=self._residents.prompts())
      if rows := self._decode_rows():
        decode = Decode(rows)
        if len(rows) == self.running and not self.waiting: self._again = decode
        return decode

  def ahead(self) -> Decode | None:
    """
    The step behind a launched Decode whose tokens are not known yet; None: they must be known first.

    That is so while there are prompts to read, if blocks run out, and if nobody is sure to go on.
    """
    self._end_company()
    self._residents.let_go()
    running, pool = self._residents.running, self._residents.pool
    if self._residents.prompts(): return None
    def going(turn: list[Entry]) -> list[Entry]: return [e for e in turn if e in running and self._residents.goes_on(e)]
    if not (rest := going(self._turn)):
      if not (rest := going(self._residents.decoding())): return None
      self._begin_turn(rest)
      self._share.turn(prompts=False)
      rest = self._turn
    # those that are alone come last in a turn
    rows = rest[:1] if rest[0].sequence.alone else [e for e in rest[:self.rows] if not e.sequence.alone]
    if not all(pool.grow(e.sequence, e.sequence.fed + e.sequence.launched + 1) for e in rows): return None
    self._turn = rest[len(rows):]
    return Decode(tuple(e.sequence for e in rows))

  def done(self, action: Piece | Decode, seconds: float) -> None:
    """An action took so long; the caller has appended its tokens and raised `fed`. The pool hears of full blocks."""
    self._clock += seconds
    if isinstance(action, Decode):
      for s in action.sequences:
        if not s.fed % BLOCK: self._pool.entered(s)
      if action is self._again:
        if len(self._times) == LAST: self._earlier += self._times[0]
        self._times.append(seconds)
      else: self._share.decoded(len(action.sequences), seconds, self._stall)
      self.counts.decode_steps += 1
      self.counts.tokens += len(action.sequences)
    else:
      self._pool.entered(action.sequence)
      self._share.read(action.count, seconds, self._stall() if self._beside else None, action.first)
      self.counts.pieces += 1
      self.counts.prompt_tokens += action.count
      if len(action.sequence.tokens) - action.sequence.fed <= 1: self._residents.read()

  def _end_company(self) -> None:
    """The next action is chosen anew. While the last one came again and again, there were no prompts."""
    if self._again is None: return
    self._share.repay(self._earlier)
    for seconds in self._times:
      self._share.turn(prompts=False)
      self._share.decoded(len(self._again.sequences), seconds, self._stall)
    self._times.clear()
    self._earlier, self._again = 0.0, None

  def _stall(self) -> float: return self._share.stall(max(1, len(self._residents.decoding())), self.rows)

  def _begin_turn(self, decoding: list[Entry]) -> None:
    """Each of them gets a token."""
    if decoding != self._last:
      kept = [e for e in self._last if e in decoding]
      self._last = kept + [e for e in decoding if e not in kept]  # a newcomer moves nobody to a later step
    self._turn = sorted(self._last, key=lambda e: e.sequence.alone)  # one that steps alone splits no step of others

  def _decode_rows(self) -> tuple[Sequence, ...]:
    """The turn's next sequences, each with room for a token; () if the turn's last ones had to go."""
    rows, running = list[Entry](), self._residents.running
    while self._turn and len(rows) < self.rows:
      if rows and (self._turn[0].sequence.alone or rows[0].sequence.alone): break
      e = self._turn.pop(0)
      if e in running and self._residents.has_room(e): rows.append(e)
    return tuple(e.sequence for e in rows if e in running)  # a later one may have needed an earlier one's blocks

  def _piece(self, decoding: int) -> Piece | None:
    """The next piece beside so many; None if a turn comes first, or nobody has a prompt that can be read."""
    self._share.look()
    room = self._share.room(self._share.stall(decoding, self.rows)) if decoding else None
    if room is not None and room <= 0 or (e := self._residents.reader(self._order)) is None or e.decodes: return None
    s = e.sequence
    self._pool.begin(s)  # again: others may have read more of the same prompt meanwhile
    if e.decodes: return None
    most = min(e.rest, run_length(s.table, s.fed, self.sizes[-1]))
    if s.alone: most = min(most, s.prompt - s.fed)
    if self._ends_at is not None and (end := self._ends_at(s)) > s.fed: most = min(most, end - s.fed)
    if not (count := min(most, self._size(most, room, s.fed))): return None
    count = _in_company(e.rest, self._pool.piece(s, _in_company(e.rest, count)))
    self._beside = room is not None
    return Piece(s, s.fed, count)

  def _order(self, e: Entry) -> tuple[float, int]:
    return self._share.pieces.seconds(e.rest, e.sequence.fed) + e.arrived, e.number

  def _size(self, most: int, room: float | None, first: int) -> int:
    """The size of a piece of at most `most` tokens from `first` on within `room` seconds; 0: the turn comes first."""
    if room is None: return self.sizes[-1]
    times = self._share.pieces
    for size in reversed(self.sizes):
      if times.sure(min(size, most), first) <= room: return size
    if self._share.stalled: return 0
    shorter = range(min(most, self.sizes[0], times.most(room, first)), 0, -1)
    return next((n for n in shorter if times.sure(n, first) <= room), 0) or max(1, self.sizes[0] // 4)  # it must go on

def _in_company(rest: int, count: int) -> int:
  """A piece that leaves one token of a prompt leaves two: a piece reads the last one, alone or in company."""
  return count - (rest - count == 1 < count)
