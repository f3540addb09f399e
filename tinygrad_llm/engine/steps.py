"""The captured steps of prompts: a piece of one sequence, and the logits or the normed rows after its tokens."""
from __future__ import annotations
from collections.abc import Sequence
from typing import Any
import numpy as np
from tinygrad import Tensor, UOp, dtypes
from tinygrad_llm.device.buffers import empty, fill, is_lazy, read
from tinygrad_llm.device.captured import captured, scheduled
from tinygrad_llm.nn.cache.place import BLOCK, Piece
from tinygrad_llm.engine.prefixes.windows import WindowSize
from tinygrad_llm.nn.model import Model
from tinygrad_llm.patches.cache.captures import restore

BUCKET = 512  # positions

def positions_for(max_context: int, most: int) -> int:
  """
  Positions of a sequence's table for a context of `max_context`, at most `most`, which the model knows: 512 * 2^n.

  Kernels hold this size, so contexts of one bucket share programs and captures. Positions beyond `max_context` cost
  address space only. A device that allocates all of a buffer's memory at once gets 512 * n, which bounds the waste.
  """
  buckets = -(-max_context // BUCKET)
  if is_lazy(): buckets = 1 << (buckets - 1).bit_length()
  return min(BUCKET * buckets, most)

class PieceSteps:
  """
  The steps of a model whose layers have pools of `blocks` blocks.

  A piece leaves its hidden rows in a buffer until the next one. Results of the other steps are copies or last until
  the step runs again. positions: most of a sequence. chunk: most tokens of a piece.

  window: the pool of layers with a window; None: they have the same one.
  """
  def __init__(self, model: Model, positions: int, chunk: int, blocks: int, window: WindowSize | None = None):
    self.window = window
    self.chunk, self.blocks, self._vocab_size, self._dim = chunk, blocks, model.config.vocab_size, model.config.dim
    self._most = -(-positions // BLOCK)  # blocks of a sequence
    self._tokens, self._table = empty((1, chunk), dtypes.int32), zeros((1, self._most))
    self._window_table = None if window is None else zeros((1, self._most))
    self._hidden = empty((1, chunk, self._dim), dtypes.float32)
    self._piece = captured(_piece, model, self._hidden, self._tokens, self._table, self._window_table)
    self._logits, self._last = captured(_logits, model, self._hidden), captured(_last, model, self._hidden)
    self._normed = captured(_normed, model, self._hidden)

  def piece(self, tokens: Sequence[int], start: int, table: Sequence[int], window: Sequence[int] = ()) -> None:
    """
    Feeds tokens of one sequence from position `start` on; their blocks are neighbours in the pool.

    window: the table of layers with a window, if they have a pool of their own.
    """
    fill(self._tokens, lambda memory: np.copyto(memory[0, :len(tokens)], tokens))
    fill(self._table, lambda memory: write_tables(memory, [table]))
    at = [place_of(start, table)]
    if self._window_table is not None:
      fill(self._window_table, lambda memory: write_tables(memory, [window]))
      at.append(place_of(start, window))
    self._piece(*self._place(start, at, len(tokens)))

  def last_logits(self, length: int) -> np.ndarray:
    """float32 (vocab_size,): the logits after the last token of a piece of `length` tokens."""
    return read(self._last(self._row(length - 1)), self._vocab_size).copy()

  def piece_logits(self, length: int) -> np.ndarray:
    """float32 (length, vocab_size): the logits after each token of the last piece, until the next call."""
    return read(self._logits(self._length(length)), length, self._vocab_size)

  def piece_normed(self, length: int) -> np.ndarray:
    """float32 (length, dim): the last layer's output, normed, for the tokens of the last piece."""
    return read(self._normed(self._length(length)), length, self._dim)

  def restore_piece(self) -> bool:
    """Whether piece() and last_logits() are captured, in this process or an earlier one, and so compile nothing."""
    return all(restore(*call) for call in self._calls())

  def capture_piece(self) -> None:
    """Captures piece() and last_logits() by running them on block 0."""
    for step, *args in self._calls(): step(*args)

  def piece_schedule(self, position: int = 0) -> tuple[UOp, dict[str, int]]:
    """
    The schedule of an answer's first token: a piece of a whole chunk from `position` on, and the logits after it.

    See device.captured.scheduled. Nothing is compiled.
    """
    assert self._piece.fxn is not None and self._last.fxn is not None
    at = [BLOCK] * (1 if self.window is None else 2)
    chunk, chunk_variables = scheduled(self._piece.fxn, *self._place(position, at, self.chunk))
    row, row_variables = scheduled(self._last.fxn, self._row(self.chunk - 1))
    return chunk.replace(src=chunk.src + row.src), chunk_variables | row_variables

  def _calls(self) -> tuple[tuple[Any, ...], ...]:
    at = [0] * (1 if self.window is None else 2)
    return ((self._piece, *self._place(0, at, 1)), (self._last, self._row(0)))
  def _place(self, start: int, at: Sequence[int], length: int) -> tuple[UOp, ...]:
    places = zip(places_of(0, self.blocks, self.window), at, strict=True)
    return (UOp.variable("start", 0, self._most * BLOCK - 1).bind(start), self._length(length),
            *(place.bind(x) for place, x in places))
  def _length(self, length: int) -> UOp: return UOp.variable("length", 1, self.chunk).bind(length)
  def _row(self, row: int) -> UOp: return UOp.variable("row", 0, self.chunk - 1).bind(row)

def zeros(shape: tuple[int, ...]) -> Tensor:
  fill(tensor := empty(shape, dtypes.int32), lambda memory: memory.fill(0))
  return tensor

def write_tables(memory: np.ndarray, tables: Sequence[Sequence[int]]) -> None:
  memory[:] = 0
  for row, table in zip(memory, tables): row[:len(table)] = table

def places_of(row: int, blocks: int, window: WindowSize | None) -> list[UOp]:
  """The variables of a row's places: in the pool of `blocks` blocks, and in the one of layers with a window."""
  counts = {"at": blocks} | ({} if window is None else {"window": window.blocks})
  return [UOp.variable(f"{name}{row}", 0, count * BLOCK - 1) for name, count in counts.items()]

def place_of(position: int, table: Sequence[int]) -> int: return table[position // BLOCK] * BLOCK + position % BLOCK

def _piece(model: Model, x: Tensor, tokens: Tensor, table: Tensor, window: Tensor | None, start: UOp, length: UOp,
           at: UOp, *in_window: UOp) -> Tensor:
  place = Piece(start, table, (at,), start + length, None if window is None else (window, in_window))
  return x[:, :length].assign(model.hidden(tokens[:, :length], place))
def _logits(model: Model, x: Tensor, length: UOp) -> Tensor: return model.logits(x[:, :length])
def _normed(model: Model, x: Tensor, length: UOp) -> Tensor: return model.norm(x[:, :length])
def _last(model: Model, x: Tensor, row: UOp) -> Tensor: return model.logits(x[:, row:row+1])
