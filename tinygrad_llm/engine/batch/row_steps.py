"""The captured steps over the KV pool: a token for each of 1, 2, 4 or 8 sequences, and a piece of one prompt."""
from __future__ import annotations
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Numbers
from operator import add
from typing import Any, NamedTuple
import numpy as np
from tinygrad import Tensor, UOp
from tinygrad_llm.device.buffers import Readings, host_view, packer, writer
from tinygrad_llm.device.captured import Replay, captured, scheduled
from tinygrad_llm.engine.prefixes.windows import WindowSize
from tinygrad_llm.engine.sampling import Sampler, biased, greedy_key
from tinygrad_llm.engine.steps import PieceSteps, place_of, places_of, write_tables, zeros
from tinygrad_llm.nn.cache.place import BLOCK, Rows
from tinygrad_llm.nn.model import Model
from tinygrad_llm.progress import tell

COUNTS = (1, 2, 4, 8)  # of rows
Tables = tuple[Numbers[int], ...]  # of rows
Repeat = Callable[[Numbers[int], Numbers[int]], tuple[Tensor, Tensor]]  # see RowSteps.repeat

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

  window: the blocks of layers with a window, if they have a pool of their own.
  """
  token: int = 0
  position: int = 0
  table: Numbers[int] = (0,)
  choice: Choice | None = None
  window: Numbers[int] = (0,)

class RowSteps(PieceSteps):
  """
  A model's steps over a pool of `blocks` blocks. A step's results stay in its buffers until it runs again.

  Tokens, positions and tables lie in arrays that the captured steps read: sequences come and go without a capture.

  - is_ahead: steps can be launched before the results of the step before are read, see AheadSteps
  - samples: the kinds of steps of so many rows; True: steps whose rows may sample
  """
  is_ahead, samples = False, (False,)  # type: bool, tuple[bool, ...]

  def __init__(self, model: Model, positions: int, chunk: int, blocks: int, bias: Tensor | None = None,
               window: WindowSize | None = None):
    """bias: a token_bias for the greedy choice. For the others see PieceSteps."""
    self.pools = [(cache.make_pool(blocks) if window is None or not cache.window else
                   cache.make_pool(window.blocks, apart=True)).kv for cache in model.caches]
    super().__init__(model, positions, chunk, blocks, window)
    self.states = model.states
    for state in model.states: state.make_pool(COUNTS[-1])
    self._end = UOp.variable("end", 1, self._most * BLOCK)
    self._at = [*zip(*(places_of(row, blocks, window) for row in range(COUNTS[-1])))]  # of each pool
    tables = 1 if window is None else 2
    arrays = {n: _Arrays(zeros((n, 1)), zeros((n,)), *(zeros((n, self._most)) for _ in range(tables))) for n in COUNTS}
    self._rows = {n: _Rows(a) for n, a in arrays.items()}
    self._repeated: dict[int, Tables | None] = dict.fromkeys(COUNTS)  # of the repeat() that wrote its tables last
    self._decodes = {n: [captured(_decode, model, turn, bias, a) for turn in range(2 if model.states else 1)]
                     for n, a in arrays.items()}
    self._replays = {n: [Replay(step, (), (self._end, *self._places(n))) for step in steps]
                     for n, steps in self._decodes.items()}
    self._reading, self._numbers = Readings(), Readings(form=lambda array: array.reshape(-1))
    groups = [[cache.pool.kv for cache in model.caches if cache.apart is apart] for apart in (False, True)[:tables]]
    self._groups = [_Group(pools, captured(_copy, pools), captured(_clear, pools)) for pools in groups]

  @property
  def nbytes(self) -> int:
    """Bytes of the pool."""
    return sum(int(pool.nbytes()) for pool in self.pools)

  def decode(self, rows: Numbers[Row], turn: int = 0) -> tuple[Tensor, Tensor]:
    """
    Feeds 1 to 8 rows; the logits after each, (n, 1, vocab_size), and their greedy_key, (n, 1), n >= len(rows).

    turn: of recurrent states; a model without them has no turns.
    """
    n = count_for(len(rows))
    if n > len(rows): rows = [*rows, *[Row()] * (n - len(rows))]
    tokens, positions, tables, _, windows = zip(*rows)
    self._rows[n].write(tokens, positions, tables, windows)
    self._repeated[n] = None
    return self._replays[n][turn](max(positions) + 1, *self._stores(rows))

  def repeat(self, rows: Numbers[Row]) -> Repeat:
    """
    decode() of the same rows again and again, while their blocks stay the same: a function of tokens and positions.

    Rows' positions do not leave their blocks. No turns: it is for models without recurrent states.
    """
    n = count_for(len(rows))
    all_rows, idle = [*rows, *[Row()] * (n - len(rows))], (0,) * (n - len(rows))
    tables, windows = tuple(row.table for row in all_rows), tuple(row.window for row in all_rows)
    offsets = [at - row.position for at, row in zip(self._stores(rows), [*rows, *rows])]
    offsets, in_window = offsets[:len(rows)], offsets[len(rows):]
    inputs, replay, repeated = self._rows[n], self._replays[n][0], self._repeated
    def again(tokens: Numbers[int], positions: Numbers[int]) -> tuple[Tensor, Tensor]:
      if repeated[n] is tables:
        inputs.tokens(*tokens, *idle)
        inputs.positions(*positions, *idle)
      else:
        inputs.write((*tokens, *idle), (*positions, *idle), tables, windows)
        repeated[n] = tables
      end, stores = max(positions) + 1, map(add, positions, offsets)
      if not in_window: return replay(end, *stores, *idle)
      return replay(end, *stores, *idle, *map(add, positions, in_window), *idle)
    return again

  def _places(self, rows: int) -> list[UOp]:
    """The variables of so many rows' places, pool by pool."""
    return [at for of_pool in self._at for at in of_pool[:rows]]

  def _stores(self, rows: Numbers[Row]) -> list[int]:
    """Their values."""
    at = [place_of(row.position, row.table) for row in rows]
    return at if self.window is None else at + [place_of(row.position, row.window) for row in rows]

  def prepare(self, sequences: int) -> None:
    """
    Captures a piece and the steps of up to so many rows, by running them on block 0 and on recurrent states.
    """
    counts = COUNTS[:COUNTS.index(count_for(sequences)) + 1]
    tell("steps", 0, total := len(counts) + 1)
    self.capture_piece()
    for i, n in enumerate(counts, 2):
      for is_sampled in self.samples: self.capture_decode(n, is_sampled)
      tell("steps", i, total)

  def restore_decode(self, rows: int, is_sampled: bool = False) -> bool:
    """Whether steps of so many rows are captured, in this process or an earlier one, and so compile nothing."""
    return all(replay.restore() for replay in self._steps_of(rows, is_sampled))

  def capture_decode(self, rows: int, is_sampled: bool = False) -> None:
    """Captures steps of so many rows, by running them on block 0. All slots of recurrent states are written."""
    for turn in range(len(self._decodes[rows])): self.decode([Row()] * rows, turn)

  def _steps_of(self, rows: int, is_sampled: bool) -> Iterable[Replay[Any]]: return self._replays[rows]

  def decode_schedule(self, rows: int, position: int) -> tuple[UOp, dict[str, int]]:
    """
    The schedule that decode() of so many rows at `position` would capture, see device.captured.scheduled.
    """
    step = self._decodes[rows][0]
    assert step.fxn is not None
    return scheduled(step.fxn, self._end.bind(position + 1), *(at.bind(BLOCK * (i + 1)) for of_pool in self._at
                                                              for i, at in enumerate(of_pool[:rows])))

  def logits(self, logits: Tensor, row: int) -> np.ndarray:
    """float32 (vocab_size,): one row of what decode() returned."""
    found: np.ndarray = self._reading(logits)[row, 0]
    return found

  def keys(self, keys: Tensor) -> list[int]:
    """The greedy keys of decode(), one a row."""
    found: list[int] = self._numbers(keys).tolist()
    return found

  @property
  def linear(self) -> UOp | None:
    """The captured schedule of a step of one row; None before it has run, or with JIT=0."""
    steps = (replay.jit.captured for is_sampled in self.samples for replay in self._steps_of(1, is_sampled))
    return next((step.linear for step in steps if step is not None), None)

  def before_host(self) -> None:
    """Waits until no step under way uses memory that the host reaches."""

  def copy(self, source: int, target: int, window: bool = False) -> None:
    """Copies a block's keys and values in all layers of a pool; window: in the pool of layers with a window."""
    self.before_host()
    group = self._groups[window]
    for pool in group.pools:
      if (view := host_view(pool)) is None: break
      view[:, :, target] = view[:, :, source]
    else: return
    group.copy(*(UOp.variable(name, 0, group.blocks - 1).bind(block) for name, block in (("source", source),
                                                                                         ("target", target))))

  def clear(self, block: int, window: bool = False) -> None:
    """Zeroes a block, after numbers that are not finite may have been stored there. window: as for copy()."""
    self.before_host()
    group = self._groups[window]
    for pool in group.pools:
      if (view := host_view(pool)) is None: break
      view[:, :, block] = 0
    else: return
    group.clear(UOp.variable("target", 0, group.blocks - 1).bind(block))

class _Group(NamedTuple):
  """The layers' tensors of one pool, and the captured copy() and clear() of its blocks."""
  pools: list[Tensor]
  copy: Any
  clear: Any

  @property
  def blocks(self) -> int: return int(self.pools[0].shape[2])

class _Arrays(NamedTuple):
  """
  The inputs of a step of n rows: tokens (n, 1), positions (n,) and tables (n, blocks), int32.

  window: the tables of layers with a window; None: they have the same.
  """
  tokens: Tensor
  positions: Tensor
  table: Tensor
  window: Tensor | None = None

class _Rows:
  """Writes a step's inputs; a row's table is written only where it is another one than at the last step."""
  def __init__(self, arrays: _Arrays):
    self.tokens, self.positions = packer(arrays.tokens), packer(arrays.positions)
    self._table = TableWriter(writer(arrays.table))
    self._window = None if arrays.window is None else TableWriter(writer(arrays.window))

  def write(self, tokens: Numbers[int], positions: Numbers[int], tables: Tables, windows: Tables) -> None:
    self.tokens(*tokens)
    self.positions(*positions)
    self._table(tables)
    if self._window is not None: self._window(windows)

class TableWriter:
  """Writes the tables of rows where they are others than at the last call. write: see device.buffers.writer."""
  def __init__(self, write: Callable[[Callable[[np.ndarray], None]], None]):
    self._write = write
    self._tables: Tables = ()  # as they were written last

  def __call__(self, tables: Tables) -> None:
    if tables == self._tables: return
    self._write(lambda memory: write_tables(memory, tables))
    self._tables = tuple(table[:] for table in tables)

def _decode(model: Model, turn: int, bias: Tensor | None, arrays: _Arrays, end: UOp, *stores: UOp
            ) -> tuple[Tensor, Tensor]:
  hidden = model.hidden(arrays.tokens, rows_at(arrays.positions, arrays.table, arrays.window, stores, end), turn)
  return (logits := model.logits(hidden)), greedy_key(biased(logits, bias))

def rows_at(positions: Tensor, table: Tensor, window: Tensor | None, stores: tuple[UOp, ...], end: UOp) -> Rows:
  """Rows whose places in the pools are `stores`, pool by pool."""
  n = int(table.shape[0])
  return Rows(positions, table, stores[:n], end, None if window is None else (window, stores[n:]))

def _copy(pools: Numbers[Tensor], source: UOp, target: UOp) -> list[Tensor]:
  stores = [pool[:, :, target:target+1].uop.store(pool[:, :, source:source+1].contiguous().uop) for pool in pools]
  return [Tensor(pool.uop.after(store)) for pool, store in zip(pools, stores)]

def _clear(pools: Numbers[Tensor], target: UOp) -> list[Tensor]:
  stores = [(part := pool[:, :, target:target+1]).uop.store(Tensor.zeros_like(part).uop) for pool in pools]
  return [Tensor(pool.uop.after(store)) for pool, store in zip(pools, stores)]
