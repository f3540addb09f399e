"""The states of recurrent layers for many sequences: which one is where, and moves between these places."""
from __future__ import annotations
from collections.abc import Callable
from collections.abc import Sequence as Items
from weakref import WeakKeyDictionary
from tinygrad import Tensor, UOp
from tinygrad_llm.device.captured import captured
from tinygrad_llm.engine.batch.sequence import Sequence
from tinygrad_llm.device.buffers import copy, empty, host_view
from tinygrad_llm.nn.cache.state import State

class RowStates:
  """
  A decode step of n rows has a turn t: it reads slots 0 to n - 1 of turn t and writes the same slots of turn 1 - t.

  Row b of a step is slot b. A sequence that comes from a prompt, or from a step of another turn, is copied once; then
  it stays in its slot, and the turns alternate. States of sequences that a step does not feed, and would overwrite, are
  parked in memory of their own. Prompts share one state, and an interrupted prompt's is parked, too.

  before_host: called before the host may touch a state, while a step may be under way. Such a step counts as done: a
  state of a sequence that goes on has seen just the tokens that the sequence gets.
  """
  def __init__(self, states: Items[State], before_host: Callable[[], None] = lambda: None):
    self._before_host = before_host
    pools = [state.pool for state in states]
    self.turns = tuple([x for pool in pools for x in pool.turns[turn]] for turn in range(2))
    self.prompt = [x for pool in pools for x in pool.prompt]
    self._between = alike(self.prompt)
    self._puts, self._takes = ([captured(f, held, self._between) for held in self.turns] for f in (_put, _take))
    self._places = WeakKeyDictionary[Sequence, tuple[int, int]]()  # (turn, slot)
    self._parked = WeakKeyDictionary[Sequence, list[Tensor]]()
    self._spare = list[list[Tensor]]()  # memory that nothing is parked in
    self._reading: Sequence | None = None  # whose tokens the prompts' state has seen
    self.turn = 0  # of the next step

  @property
  def nbytes(self) -> int:
    """Bytes of one sequence's state."""
    return sum(x.nbytes() for x in self.prompt)

  @property
  def held(self) -> int:
    """Bytes of all states, also of parked ones."""
    memory = (*self.turns, self.prompt, self._between, *self._parked.values(), *self._spare)
    return sum(int(x.nbytes()) for held in memory for x in held)

  def before_piece(self, s: Sequence) -> None:
    """Puts the state where the piece of a prompt reads it."""
    if not s.fed or s.snapshot is not None: self.forget(s)  # it begins, perhaps once more
    if self._reading is s: return
    if self._reading is not None: self._park(self._reading, self.prompt)
    if s in self._places: self._leave_slot(s)
    self._load(s, self.prompt)
    self._reading = s

  def snapshot(self, s: Sequence) -> list[Tensor]:
    """A copy of the state of a sequence. If a launched step feeds one more token, it is the state before."""
    self._before_host()
    if s in self._parked: of = self._parked[s]
    elif s is self._reading: of = self.prompt
    else:
      turn, slot = self._places[s]
      self._take(1 - turn if s.launched else turn, slot)
      of = self._between
    copies = alike(of)
    copy_all(copies, of)
    return copies

  def holds(self, s: Sequence) -> bool:
    """Whether there is a state of a sequence."""
    return s is self._reading or s in self._places or s in self._parked

  def before_decode(self, sequences: Items[Sequence], rows: int) -> list[Sequence | None]:
    """
    Puts the states where a decode step of so many rows reads them; returns the sequence of each row, None: idle.
    """
    for s in sequences:
      if s.snapshot is not None: self.forget(s)
    mine = [self._places[s][0] for s in sequences if s in self._places]
    self.turn = turn = max((0, 1), key=mine.count)
    placed = list[Sequence | None]([None] * rows)
    for s in sequences:
      if (at := self._places.get(s)) is not None and at[0] == turn and at[1] < rows: placed[at[1]] = s
    fed = set(sequences)
    for other, (_, slot) in list(self._places.items()):
      if other not in fed and slot < rows: self._leave_slot(other)
    for s in sequences:
      if s in placed: continue
      self._before_host()
      if s in self._places: self._leave_slot(s)
      if s is self._reading:
        copy_all(self._between, self.prompt)
        self._reading = None
      else: self._load(s, self._between)
      slot = placed.index(None)
      self._put(turn, slot)
      placed[slot] = s
    return placed

  def decoded(self, placed: Items[Sequence | None]) -> None:
    """Notes that the step has run."""
    self._places |= {s: (1 - self.turn, slot) for slot, s in enumerate(placed) if s is not None}

  def park(self) -> None:
    """Parks the states of all sequences, before a step that feeds none of them."""
    for s in [*self._places]: self._leave_slot(s)
    if self._reading is not None: self._park(self._reading, self.prompt)
    self._reading = None

  def forget(self, s: Sequence) -> None:
    """The sequence has ended, or will begin again."""
    self._places.pop(s, None)
    if (parked := self._parked.pop(s, None)) is not None: self._spare.append(parked)
    if self._reading is s: self._reading = None

  def reset(self) -> None:
    """Forgets all sequences."""
    for s in {*self._places, *self._parked}: self.forget(s)
    self._reading = None

  def _leave_slot(self, s: Sequence) -> None:
    self._before_host()
    turn, slot = self._places.pop(s)
    self._take(turn, slot)
    self._park(s, self._between)

  def _park(self, s: Sequence, of: Items[Tensor]) -> None:
    held = self._spare.pop() if self._spare else alike(of)
    copy_all(held, of)
    self._parked[s] = held

  def _load(self, s: Sequence, to: Items[Tensor]) -> None:
    """Copies a snapshot, or what is parked. A sequence without either has no tokens yet: a step reads 0 then."""
    if s.snapshot is not None: copy_all(to, s.snapshot)
    elif (held := self._parked.pop(s, None)) is not None:
      copy_all(to, held)
      self._spare.append(held)
    s.snapshot = None

  def _put(self, turn: int, slot: int) -> None:
    """Copies the state between places into a slot, by the host if it reaches the memory."""
    for x, y in zip(self.turns[turn], self._between):
      view, of = host_view(x), host_view(y)
      if view is None or of is None: break
      view[slot] = of[0]
    else: return
    self._puts[turn](_slot(self.turns[turn], slot))

  def _take(self, turn: int, slot: int) -> None:
    """The other way round."""
    for x, y in zip(self.turns[turn], self._between):
      view, to = host_view(x), host_view(y)
      if view is None or to is None: break
      to[0] = view[slot]
    else: return
    self._takes[turn](_slot(self.turns[turn], slot))

def _slot(held: Items[Tensor], slot: int) -> UOp: return UOp.variable("slot", 0, int(held[0].shape[0]) - 1).bind(slot)
def _put(held: Items[Tensor], between: Items[Tensor], slot: UOp) -> list[Tensor]:
  return [x[slot:slot+1].assign(y) for x, y in zip(held, between)]
def _take(held: Items[Tensor], between: Items[Tensor], slot: UOp) -> list[Tensor]:
  return [y.assign(x[slot:slot+1]) for x, y in zip(held, between)]

def copy_all(to: Items[Tensor], of: Items[Tensor]) -> None:
  """Copies each tensor's contents to its counterpart."""
  for x, y in zip(to, of): copy(x, y)

def alike(tensors: Items[Tensor]) -> list[Tensor]:
  """Uninitialised tensors of the same shapes and types."""
  return [empty(x.max_shape, x.dtype) for x in tensors]
