"""The state of a recurrent layer: what it keeps of all tokens so far, in tensors of fixed sizes."""
from __future__ import annotations
from collections.abc import Sequence
from tinygrad import Tensor, UOp, dtypes
from tinygrad_llm.device.buffers import empty
from tinygrad_llm.nn.cache.place import Piece, Place

PROMPT = 2  # a turn: the step is a piece of a prompt

class State:
  """
  A layer's state for many sequences. Its memory is a pool, which the steps' owner makes.

  A decode step has a turn: row b reads slot b of turns[turn] and writes slot b of the other. The state before the step
  is still there, so it may run twice. A step of a prompt reads and writes `prompt`. Between them, the engine copies,
  see engine/batch/row_states.py. The memory is not cleared: at position 0 a state reads as 0.
  """
  dtype = dtypes.float32

  def __init__(self, shapes: Sequence[tuple[int, ...]]):
    """shapes: of a sequence's tensors."""
    self._shapes = shapes
    self._pool: StatePool | None = None

  def make_pool(self, slots: int) -> StatePool:
    """Allocates states of so many sequences, in place of earlier ones."""
    self._pool = StatePool(self._shapes, slots)
    return self._pool

  @property
  def pool(self) -> StatePool:
    assert self._pool is not None, "make_pool() comes before the first step"
    return self._pool

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
    if isinstance(place, Piece): return self.pool.prompt
    return [x[:place.positions.shape[0]] for x in self.pool.turns[turn]]

class StatePool:
  """Float32 tensors (slots, ..) for either turn of a decode step, and (1, ..) for prompts."""
  def __init__(self, shapes: Sequence[tuple[int, ...]], slots: int):
    of_turn, of_other = ([empty((slots, *x), dtypes.float32) for x in shapes] for _ in range(2))
    self.turns, self.prompt = (of_turn, of_other), [empty((1, *x), dtypes.float32) for x in shapes]

  @property
  def nbytes(self) -> int: return sum(x.nbytes() for held in (*self.turns, self.prompt) for x in held)

def after(x: Tensor, stores: Sequence[UOp]) -> Tensor:
  """x, which is in memory as a layer's input is, read after the stores."""
  return Tensor(x.uop.after(*stores)) if stores else x
