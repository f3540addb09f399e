"""
Where a step's tokens are: their positions, and the places of their keys and values.

Rows: a token each of several sequences, whose keys and values are in the blocks of a pool. Piece: neighbours of one of
these sequences.
"""
from __future__ import annotations
from typing import NamedTuple
from tinygrad import Tensor, UOp, dtypes

BLOCK = 64  # positions of a block

class Rows(NamedTuple):
  """
  B tokens, one each of several sequences.

  - positions: int32 (B,)
  - table: int32 (B, n), the numbers of each sequence's blocks, in order
  - stores: where the pool takes each token's keys and values, in positions of all blocks
  - end: the largest position, plus 1
  - window: table and stores of layers with a window; None: they have the same
  """
  positions: Tensor
  table: Tensor
  stores: tuple[UOp, ...]
  end: UOp
  window: tuple[Tensor, tuple[UOp, ...]] | None = None
  def of(self, table: Tensor, T: int | UOp) -> Tensor:
    """The rows of a table (all positions, ..) at the tokens' positions, (B, 1, 1, ..). T is 1."""
    # positions that are clamped into range need no bounds check
    rows = table[self.positions.minimum(int(table.shape[0]) - 1).maximum(0)]
    return rows.reshape(rows.shape[0], 1, 1, *rows.shape[1:])
  def continues(self) -> Tensor:
    """Whether a sequence has tokens before these, bool (B,)."""
    return self.positions > 0
  def queries(self, T: int | UOp) -> Tensor:
    """The tokens' positions, int32 (B * T,)."""
    return self.positions

class Piece(NamedTuple):
  """
  T tokens of one sequence, from position `start` on, whose blocks are neighbours in the pool.

  table: int32 (1, n). stores: where the pool takes the first token's keys and values. window: see Rows.
  """
  start: UOp
  table: Tensor
  stores: tuple[UOp, ...]
  end: UOp  # start + T
  window: tuple[Tensor, tuple[UOp, ...]] | None = None
  def of(self, table: Tensor, T: int | UOp) -> Tensor:
    """The same, (T, ..)."""
    return table[self.start:self.start+T]
  def continues(self) -> Tensor: return Tensor(self.start) > 0
  def queries(self, T: int | UOp) -> Tensor:
    """The tokens' positions, int32 (B * T,)."""
    return self.of(positions(self.table), T)

Place = Rows | Piece

def in_window(place: Place) -> Place:
  """The same tokens in the pool of layers with a window."""
  if place.window is None: return place
  table, stores = place.window
  return place._replace(table=table, stores=stores)

def positions(table: Tensor) -> Tensor:
  """The positions of a sequence's blocks, int32 (n * BLOCK,)."""
  return Tensor.arange(table.shape[1] * BLOCK, dtype=dtypes.int32)
