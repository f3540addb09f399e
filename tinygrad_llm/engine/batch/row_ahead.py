"""
Steps of rows that are launched before the results of the step before are read, as lookahead.py does for one sequence.

A row takes its token from where the step before left its choice, on the device. Each step exists twice, with inputs and
a buffer for choices of its own, and the two alternate. So nothing that a step under way reads is written, and a graph
on NV or Metal is not launched again before it has ended.
"""
from __future__ import annotations
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Numbers
from typing import NamedTuple
import numpy as np
from tinygrad import Device, Tensor, UOp, dtypes
from tinygrad_llm.device.async_read import SLOTS, name_of, reader
from tinygrad_llm.device.buffers import buffer_of, empty, fill, host_view
from tinygrad_llm.device.captured import Replay, captured
from tinygrad_llm.engine.batch.row_steps import COUNTS, Row, RowSteps, count_for, place_of, write_tables, zeros
from tinygrad_llm.engine.device_sampling import MAX
from tinygrad_llm.engine.sampling import biased, greedy_key
from tinygrad_llm.engine.steps import Steps
from tinygrad_llm.nn.cache.place import Rows
from tinygrad_llm.nn.model import Model

MOST, KEY = COUNTS[-1], 8  # rows, bytes of a key

class Results(NamedTuple):
  """
  A launched step of n rows. keys() waits for it: the greedy keys of decode(), one a row.

  logits: (n, 1, vocab_size), to be read before two more steps are launched.
  """
  keys: Callable[[], list[int]]
  logits: Tensor

class AheadSteps(RowSteps):
  """
  RowSteps of a device that works while the host does.

  launch() may be called again before the keys of the last launch are read. A row's token ~i is then the greedy choice
  that row i of the last launch makes. Without reads, the device is waited for.
  """
  is_ahead = True

  def __init__(self, model: Model, steps: Steps, blocks: int, bias: Tensor | None = None):
    super().__init__(model, steps, blocks, bias)
    self._choices = [empty((MOST, 1), dtypes.uint64) for _ in range(2)]
    for keys in self._choices: fill(keys, lambda memory: memory.fill(MAX))  # the key of token 0
    self._inputs = {n: [_Inputs(zeros((2, n)), zeros((n, self._most))) for _ in range(2)] for n in COUNTS}
    def replay(n: int, turn: int, i: int) -> Replay[tuple[Tensor, Tensor]]:
      tensors = self._inputs[n][i].tensors
      step = captured(_ahead, model, turn, bias, *tensors, self._choices[i], self._choices[1 - i])
      return Replay(step, (), (self._end, *self._at[:n]))
    turns = 2 if model.states else 1
    self._aheads = {n: [[replay(n, turn, i) for i in range(2)] for turn in range(turns)] for n in COUNTS}
    self._i, self._flying = 0, deque[object]()  # whose turn it is; launches that were not read
    self._name, self._device = name_of(self), str(self._choices[0].device)
    self._by_host = host_view(self._choices[0]) is not None

  def launch(self, rows: Numbers[Row], turn: int = 0) -> Results:
    """Launches a step that feeds 1 to 8 rows. turn: as in decode()."""
    if len(self._flying) == SLOTS: self._settle()  # a launch whose results nobody wanted
    n, i = count_for(len(rows)), self._i
    rows = [*rows, *[Row()] * (n - len(rows))]
    self._inputs[n][i].write(rows)
    end = max([row.position for row in rows]) + 1
    logits, _ = self._aheads[n][turn][i](end, *[place_of(row.position, row.table) for row in rows])
    enqueue = reader(self._device, MOST * KEY, self._name)
    assert enqueue is not None
    read, self._i = enqueue(buffer_of(self._choices[i])), 1 - i
    self._flying.append(read)
    def keys() -> list[int]:
      found: list[int] = np.frombuffer(read(), np.uint64)[:n].tolist()
      if read in self._flying: self._flying.remove(read)
      return found
    return Results(keys, logits)

  def before_host(self) -> None:
    if self._by_host and self._flying: self._settle()

  def _settle(self) -> None:
    Device[self._device].synchronize()
    self._flying.clear()

  def _prepare_decode(self, rows: int, turn: int) -> None:
    for _ in range(2): self.launch([Row()] * rows, turn).keys()

class _Inputs:
  """The arrays that a step of n rows reads. write() is called only once the step that read them has ended."""
  def __init__(self, fed: Tensor, table: Tensor):
    self.tensors = fed, table  # int32 (2, n): tokens and positions; int32 (n, blocks)
    self._tables: list[Numbers[int]] = []  # as they were written last

  def write(self, rows: Numbers[Row]) -> None:
    def put(memory: np.ndarray) -> None: memory[:] = [row.token for row in rows], [row.position for row in rows]
    _write(self.tensors[0], put)
    if (tables := [row.table for row in rows]) == self._tables: return
    _write(self.tensors[1], lambda memory: write_tables(memory, tables))
    self._tables = [table[:] for table in tables]

def _write(tensor: Tensor, put: Callable[[np.ndarray], None]) -> None:
  """fill() that waits for nothing."""
  if (view := host_view(tensor)) is None: fill(tensor, put)
  else: put(view)

def _ahead(model: Model, turn: int, bias: Tensor | None, fed: Tensor, table: Tensor, keys: Tensor, last: Tensor,
           end: UOp, *stores: UOp) -> tuple[Tensor, Tensor]:
  given, positions, n = fed[0], fed[1], int(fed.shape[1])
  chosen = (MAX - last[(-1 - given).maximum(0), 0] % 2**32).cast(dtypes.int32)
  tokens = (given < 0).where(chosen, given).reshape(n, 1).contiguous()
  logits = model.logits(model.hidden(tokens, Rows(positions, table, stores, end), turn))
  return logits, keys[:n].assign(greedy_key(biased(logits, bias)))
