"""A step, as the mixers of all layers see it."""
from __future__ import annotations
from collections.abc import Sequence
from typing import NamedTuple
from tinygrad import Tensor, UOp

PROMPT = 2  # a turn: the step is a chunk of a prompt

class Step(NamedTuple):
  """
  A step's tokens, T of them, and where they are. A mixer maps x (B, T, dim), normalised, and a step to y (B, T, dim).

  It also returns stores of its state, which the step has to make and nothing in y reads.
  `positions`: the first token's position. `ropes`: each of the model's rotations, (all positions, 2, dim / 2).
  `place`: where the KV cache takes the tokens' keys and values. `turn`: of recurrent states, see state.State.
  `temperature`: the model's, (all positions,).
  """
  positions: UOp
  ropes: Sequence[Tensor]
  place: UOp
  turn: int
  temperature: Tensor | None = None
