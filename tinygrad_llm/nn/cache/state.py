"""The state of a recurrent layer: what it keeps of all tokens so far, in tensors of fixed sizes."""
from __future__ import annotations
from collections.abc import Sequence
from tinygrad import Tensor, UOp, dtypes
from tinygrad_llm.device.buffers import empty
from tinygrad_llm.nn.cache.place import Piece, Place, Slot

PROMPT = 2  # a turn: the step is a chunk of a prompt

class State:
  """
  Float32 tensors (slot, ..), each three times: one for either turn of a decode step, one for prompts.

  A decode step at position p has turn p % 2: it reads turns[p % 2] and writes the other. The state before it is still
  there, so it may run twice, or once too often. A step of a prompt reads and writes `prompt`. Between them, the engine
  copies. The memory is not cleared: at position 0 a state reads as 0.
  """
  dtype, COPIES = dtypes.float32, 3

  def __init__(self, shapes: Sequence[tuple[int, ...]], slots: int = 1):
    """shapes: of the tensors, without the axis of slots."""
    of_turn, of_other, self.prompt = ([empty((slots, *x), self.dtype) for x in shapes] for _ in range(self.COPIES))
    self.turns = of_turn, of_other
    self.pool: StatePool | None = None

  @property
  def nbytes(self) -> int: return sum(x.nbytes() for held in (*self.turns, self.prompt) for x in held)

  def make_pool(self, slots: int) -> StatePool:
    """Allocates states of so many sequences beside this one, for the steps of many sequences."""
    self.pool = StatePool([x.max_shape[1:] for x in self.prompt], slots)
    return self.pool

  def read(self, turn: int, place: Place) -> list[Tensor]:
    """The state before a step; turn: 0, 1 or PROMPT."""
    found = [place.continues().reshape(-1, *[1] * (x.ndim - 1)).where(x, 0) for x in self._held(turn, place)]
    # contiguous: a kernel after the store could otherwise read what is stored, as prompts write in place
    return [x.contiguous() for x in found] if turn == PROMPT else found

  def write(self, turn: int, new: Sequence[Tensor], place: Place) -> list[UOp]:
    """Stores the state after such a step, once a tensor that the step computes is after() these stores."""
    held = self._held(turn if turn == PROMPT else 1 - turn, place)
    return [x.uop.store(y.uop) for x, y in zip(held, new, strict=True)]

  def _held(self, turn: int, place: Place) -> list[Tensor]:
    if isinstance(place, Slot): return self.prompt if turn == PROMPT else self.turns[turn]
    assert self.pool is not None, "make_pool() comes before steps of many sequences"
    if isinstance(place, Piece): return self.pool.prompt
    return [x[:place.positions.shape[0]] for x in self.pool.turns[turn]]

class StatePool:
  """
  The same for many sequences: row b of a decode step has slot b in both turns. Prompts share one state.

  The engine moves the states of sequences, see engine/batch/row_states.py.
  """
  def __init__(self, shapes: Sequence[tuple[int, ...]], slots: int):
    of_turn, of_other = ([empty((slots, *x), dtypes.float32) for x in shapes] for _ in range(2))
    self.turns, self.prompt = (of_turn, of_other), [empty((1, *x), dtypes.float32) for x in shapes]

  @property
  def nbytes(self) -> int: return sum(x.nbytes() for held in (*self.turns, self.prompt) for x in held)

def after(x: Tensor, stores: Sequence[UOp]) -> Tensor:
  """x, which is in memory as a layer's input is, read after the stores."""
  return Tensor(x.uop.after(*stores)) if stores else x
