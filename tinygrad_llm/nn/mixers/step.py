"""A step, as the mixers of all layers see it."""
from __future__ import annotations
from collections.abc import Sequence
from typing import NamedTuple
from tinygrad import Tensor
from tinygrad_llm.nn.cache.place import Place

class Step(NamedTuple):
  """
  A step's tokens, T of them, and where they are. A mixer maps x (B, T, dim), normalised, and a step to y (B, T, dim).

  It also returns stores of its state, which the step has to make and nothing in y reads.
  `place`: the tokens' positions, and where their keys and values are stored. `ropes`: each of the model's rotations,
  (all positions, 2, dim / 2). `turn`: of recurrent states, see state.State. `temperature`: the model's, (all
  positions,).
  """
  place: Place
  ropes: Sequence[Tensor]
  turn: int
  temperature: Tensor | None = None
