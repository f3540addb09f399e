"""The captured steps over the KV pool: a token for each of 1, 2, 4 or 8 sequences, and a piece of one prompt."""
from __future__ import annotations
from collections.abc import Sequence as Numbers
from typing import NamedTuple
import numpy as np
from tinygrad import Tensor, UOp, dtypes
from tinygrad_llm.device.buffers import Readings, empty, fill, host_view, packer, writer
from tinygrad_llm.device.captured import Replay, captured, scheduled
from tinygrad_llm.engine.sampling import Sampler, biased, greedy_key
from tinygrad_llm.engine.steps import Steps
from tinygrad_llm.nn.cache.place import BLOCK, Piece, Rows
from tinygrad_llm.nn.model import Model
from tinygrad_llm.progress import tell

COUNTS = (1, 2, 4, 8)  # of rows

def count_for(sequences: int) -> int:
  """The rows of the smallest step for so many sequences, at most 8."""
  return COUNTS[max(0, sequences - 1).bit_length()]

class Choice(NamedTuple):
  """
  A choice that the device makes as `sampler` would: by the tokens before the one that is fed, and by a random number.

  random: the sampler's random32() for this position.
  """
  sampler: Sampler
  history: Numbers[int]
  random: int

class Row(NamedTuple):
  """
  A token to feed: its id, its position, and the blocks of its sequence, the position's included.

  The default is an idle row: it feeds token 0 into block 0, which belongs to no sequence. choice: see AheadSteps; None:
  the likeliest token.
  """
  token: int = 0
  position: int = 0
  table: Numbers[int] = (0,)
  choice: Choice | None = None

class RowSteps:
  """
  A model's steps over a pool of `blocks` blocks. A step's results stay in its buffers until it runs again.

  Tokens, positions and tables lie in arrays that the captured steps read: sequences come and go without a capture.
  steps: the model's steps for its slot. A piece leaves its hidden rows where steps.row_logits() reads them.

  is_ahead: steps can be launched before the results of the step before are read, see AheadSteps.
  """
  is_ahead = False

  def __init__(self, model: Model, steps: Steps, blocks: int, bias: Tensor | None = None):
    self._pools = [cache.make_pool(blocks).kv for cache in model.caches]
    self.states, self.blocks, self._steps, self._vocab_size = model.states, blocks, steps, model.config.vocab_size
    self._most = -(-steps.positions // BLOCK)  # blocks of a sequence
    self._end = UOp.variable("end", 1, self._most * BLOCK)
    self._at = [UOp.variable(f"at{row}", 0, blocks * BLOCK - 1) for row in range(COUNTS[-1])]
    arrays = {n: _Arrays(zeros((n, 1)), zeros((n,)), zeros((n, self._most))) for n in COUNTS}
    self._rows = {n: _Rows(a) for n, a in arrays.items()}
    self._decodes = {n: [captured(_decode, model, turn, bias, a) for turn in range(2 if model.states else 1)]
                     for n, a in arrays.items()}
    self._replays = {n: [Replay(step, (), (self._end, *self._at[:n])) for step in steps]
                     for n, steps in self._decodes.items()}
    self._reading = Readings()
    self._tokens, self._table = empty((1, steps.chunk), dtypes.int32), zeros((1, self._most))
    self._piece = captured(_piece, model, steps.hidden, self._tokens, self._table)
    self._copy, self._clear = captured(_copy, self._pools), captured(_clear, self._pools)

  @property
  def nbytes(self) -> int:
    """Bytes of the pool."""
    return sum(int(pool.nbytes()) for pool in self._pools)

  def decode(self, rows: Numbers[Row], turn: int = 0) -> tuple[Tensor, Tensor]:
    """
    Feeds 1 to 8 rows; the logits after each, (n, 1, vocab_size), and their greedy_key, (n, 1), n >= len(rows).

    turn: of recurrent states; a model without them has no turns.
    """
    n = count_for(len(rows))
    if n > len(rows): rows = [*rows, *[Row()] * (n - len(rows))]
    tokens, positions, tables, _ = zip(*rows)
    self._rows[n].write(tokens, positions, tables)
    return self._replays[n][turn](max(positions) + 1, *map(place_of, positions, tables))

  def prepare(self, sequences: int) -> None:
    """
    Captures a piece and the steps of up to so many rows, by running them on block 0 and on recurrent states.
    """
    rows = [(n, turn) for n in COUNTS[:COUNTS.index(count_for(sequences)) + 1] for turn in range(len(self._decodes[n]))]
    tell("steps", 0, total := len(rows) + 1)
    self.piece([0], 0, (0,))
    self.last_logits(1)
    for i, (n, turn) in enumerate(rows, 2):
      self._prepare_decode(n, turn)
      tell("steps", i, total)

  def _prepare_decode(self, rows: int, turn: int) -> None: self.decode([Row()] * rows, turn)

  def decode_schedule(self, rows: int, position: int) -> tuple[UOp, dict[str, int]]:
    """
    The schedule that decode() of so many rows at `position` would capture, see device.captured.scheduled.
    """
    step = self._decodes[rows][0]
    assert step.fxn is not None
    return scheduled(step.fxn, self._end.bind(position + 1), *(at.bind(BLOCK * (i + 1))
                                                              for i, at in enumerate(self._at[:rows])))

  def piece_schedule(self, position: int) -> tuple[UOp, dict[str, int]]:
    """The same for a piece of a whole chunk from `position` on, without the logits after it."""
    assert self._piece.fxn is not None
    return scheduled(self._piece.fxn, self._start(position), self._at[0].bind(BLOCK), self._length(self._steps.chunk))

  def logits(self, logits: Tensor, row: int) -> np.ndarray:
    """float32 (vocab_size,): one row of what decode() returned."""
    found: np.ndarray = self._reading(logits)[row, 0]
    return found

  def keys(self, keys: Tensor) -> list[int]:
    """The greedy keys of decode(), one a row."""
    found: list[int] = self._reading(keys).ravel().tolist()
    return found

  def piece(self, tokens: Numbers[int], start: int, table: Numbers[int]) -> None:
    """Feeds tokens of one sequence from position `start` on; their blocks are neighbours in the pool."""
    fill(self._tokens, lambda memory: np.copyto(memory[0, :len(tokens)], tokens))
    fill(self._table, lambda memory: write_tables(memory, [table]))
    self._piece(self._start(start), self._at[0].bind(place_of(start, table)), self._length(len(tokens)))

  def last_logits(self, length: int) -> np.ndarray:
    """float32 (vocab_size,): the logits after the last token of a piece of `length` tokens."""
    return self._steps.row_logits(length - 1).copy()

  def before_host(self) -> None:
    """Waits until no step under way uses memory that the host reaches."""

  def copy(self, source: int, target: int) -> None:
    """Copies a block's keys and values in all layers."""
    self.before_host()
    for pool in self._pools:
      if (view := host_view(pool)) is None: break
      view[:, :, target] = view[:, :, source]
    else: return
    self._copy(*(UOp.variable(name, 0, self.blocks - 1).bind(block) for name, block in (("source", source),
                                                                                        ("target", target))))

  def clear(self, block: int) -> None:
    """Zeroes a block, after numbers that are not finite may have been stored there."""
    self.before_host()
    for pool in self._pools:
      if (view := host_view(pool)) is None: break
      view[:, :, block] = 0
    else: return
    self._clear(UOp.variable("target", 0, self.blocks - 1).bind(block))

  def _start(self, position: int) -> UOp: return UOp.variable("start", 0, self._most * BLOCK - 1).bind(position)
  def _length(self, length: int) -> UOp: return UOp.variable("length", 1, self._steps.chunk).bind(length)

class _Arrays(NamedTuple):
  """The inputs of a step of n rows: tokens (n, 1), positions (n,) and tables (n, blocks), int32."""
  tokens: Tensor
  positions: Tensor
  table: Tensor

class _Rows:
  """Writes a step's inputs; a row's table is written only where it is another one than at the last step."""
  def __init__(self, arrays: _Arrays):
    self._tokens, self._positions, self._table = packer(arrays.tokens), packer(arrays.positions), writer(arrays.table)
    self._tables: tuple[Numbers[int], ...] = ()  # as they were written last

  def write(self, tokens: Numbers[int], positions: Numbers[int], tables: tuple[Numbers[int], ...]) -> None:
    self._tokens(*tokens)
    self._positions(*positions)
    if tables != self._tables:
      self._table(lambda memory: write_tables(memory, tables))
      self._tables = tuple(table[:] for table in tables)

def zeros(shape: tuple[int, ...]) -> Tensor:
  fill(tensor := empty(shape, dtypes.int32), lambda memory: memory.fill(0))
  return tensor

def write_tables(memory: np.ndarray, tables: Numbers[Numbers[int]]) -> None:
  memory[:] = 0
  for row, table in zip(memory, tables): row[:len(table)] = table

def place_of(position: int, table: Numbers[int]) -> int: return table[position // BLOCK] * BLOCK + position % BLOCK

def _decode(model: Model, turn: int, bias: Tensor | None, arrays: _Arrays, end: UOp, *stores: UOp
            ) -> tuple[Tensor, Tensor]:
  hidden = model.hidden(arrays.tokens, Rows(arrays.positions, arrays.table, stores, end), turn)
  return (logits := model.logits(hidden)), greedy_key(biased(logits, bias))

def _piece(model: Model, x: Tensor, tokens: Tensor, table: Tensor, start: UOp, at: UOp, length: UOp) -> Tensor:
  return x[:, :length].assign(model.hidden(tokens[:, :length], Piece(start, table, (at,), start + length)))

def _copy(pools: Numbers[Tensor], source: UOp, target: UOp) -> list[Tensor]:
  stores = [pool[:, :, target:target+1].uop.store(pool[:, :, source:source+1].contiguous().uop) for pool in pools]
  return [Tensor(pool.uop.after(store)) for pool, store in zip(pools, stores)]

def _clear(pools: Numbers[Tensor], target: UOp) -> list[Tensor]:
  stores = [(part := pool[:, :, target:target+1]).uop.store(Tensor.zeros_like(part).uop) for pool in pools]
  return [Tensor(pool.uop.after(store)) for pool, store in zip(pools, stores)]
