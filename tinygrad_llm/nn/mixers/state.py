"""The state of a recurrent layer: what it keeps of all tokens so far, in tensors of fixed sizes."""
from __future__ import annotations
from collections.abc import Sequence
from tinygrad import Tensor, UOp, dtypes
from tinygrad_llm.device.buffers import empty
from tinygrad_llm.nn.mixers.step import PROMPT

class State:
  """
  Float32 tensors (slot, ..), each three times: one for either turn of a decode step, one for prompts.

  A decode step at position p has turn p % 2: it reads turns[p % 2] and writes the other. The state before it is still
  there, so it may run twice, or once too often. A step of a prompt reads and writes `prompt`. Between them, the engine
  copies. The memory is not cleared: at position 0 a state reads as 0.
  """
  def __init__(self, shapes: Sequence[tuple[int, ...]], slots: int = 1):
    """shapes: of the tensors, without the axis of slots."""
    of_turn, of_other, self.prompt = ([empty((slots, *x), dtypes.float32) for x in shapes] for _ in range(3))
    self.turns = of_turn, of_other

  @property
  def nbytes(self) -> int: return sum(x.nbytes() for held in (*self.turns, self.prompt) for x in held)

  def read(self, turn: int, start: UOp) -> list[Tensor]:
    """The state before a step that begins at position `start`; turn: 0, 1 or PROMPT."""
    found = [(Tensor(start) > 0).where(x, 0) for x in (self.prompt if turn == PROMPT else self.turns[turn])]
    # contiguous: a kernel after the store could otherwise read what is stored, as prompts write in place
    return [x.contiguous() for x in found] if turn == PROMPT else found

  def write(self, turn: int, new: Sequence[Tensor]) -> list[UOp]:
    """Stores the state after such a step, once a tensor that the step computes is after() these stores."""
    held = self.prompt if turn == PROMPT else self.turns[1 - turn]
    return [x.uop.store(y.uop) for x, y in zip(held, new, strict=True)]

def after(x: Tensor, stores: Sequence[UOp]) -> Tensor:
  """x, which is in memory as a layer's input is, read after the stores."""
  return Tensor(x.uop.after(*stores)) if stores else x
