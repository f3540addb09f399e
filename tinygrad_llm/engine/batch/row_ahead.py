"""
Steps of rows that are launched before the results of the step before are read.

While the host deals with a step's tokens, the device computes the next ones. A step that was launched after an answer's
last token does no harm: its position is written again before it is read.

A row takes its token from where the step before left its choice, on the device. Each step exists twice, with inputs and
a buffer for choices of its own, and the two alternate. So nothing that a step under way reads is written, and a graph
on NV or Metal is not launched again before it has ended.

A step whose rows are all greedy has a capture of its own. Rows that sample come with their settings, their random
numbers and their last tokens: a choice needs nothing that a step has left behind but the token itself.
"""
from __future__ import annotations
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Numbers
from functools import partial
from typing import Any, NamedTuple
import numpy as np
from tinygrad import Device, Tensor, UOp, dtypes
from tinygrad_llm.device.async_read import SLOTS, name_of, reader
from tinygrad_llm.device.buffers import buffer_of, empty, fill, host_view
from tinygrad_llm.device.captured import Replay, captured
from tinygrad_llm.engine.batch.row_steps import COUNTS, Choice, Row, RowSteps, TableWriter, count_for, rows_at
from tinygrad_llm.engine.choice.penalties import PENALTY_TOKENS
from tinygrad_llm.engine.device_sampling import MAX, SETTINGS, sampled_key, settings
from tinygrad_llm.engine.prefixes.windows import WindowSize
from tinygrad_llm.engine.sampling import Sampler, biased, greedy_key
from tinygrad_llm.engine.steps import zeros
from tinygrad_llm.nn.model import Model

MOST, KEY = COUNTS[-1], 8  # rows, bytes of a key
# the lines of a step's inputs, with a number a row: token, position, random number, settings, and the last tokens
# before the one that is fed
TOKEN, POSITION, RANDOM, WORDS = range(4)
RECENT, LINES = WORDS + SETTINGS, WORDS + SETTINGS + PENALTY_TOKENS - 1

class Results(NamedTuple):
  """
  A launched step of n rows. keys() waits for it: the choice of each row with its logit, as of greedy_key().

  logits: (n, 1, vocab_size), to be read before two more steps are launched.
  """
  keys: Callable[[], list[int]]
  logits: Tensor

class AheadSteps(RowSteps):
  """
  RowSteps of a device that works while the host does.

  launch() may be called again before the keys of the last launch are read. A row's token ~i is then the choice that row
  i of the last launch makes. Without reads, the device is waited for.
  """
  is_ahead, samples = True, (False, True)

  def __init__(self, model: Model, positions: int, chunk: int, blocks: int, bias: Tensor | None = None,
               window: WindowSize | None = None):
    super().__init__(model, positions, chunk, blocks, bias, window)
    self._choices = [empty((MOST, 1), dtypes.uint64) for _ in range(2)]
    for keys in self._choices: fill(keys, lambda memory: memory.fill(MAX))  # the key of token 0
    self._inputs = {n: [_Inputs(n, self._most, self._vocab_size, window is not None) for _ in range(2)] for n in COUNTS}
    def replay(n: int, turn: int, is_sampled: bool, i: int) -> Replay[tuple[Tensor, Tensor]]:
      tensors = self._inputs[n][i].tensors
      step = captured(_ahead, model, turn, bias, is_sampled, *tensors, self._choices[i], self._choices[1 - i])
      return Replay(step, (), (self._end, *self._places(n)))
    turns = 2 if model.states else 1
    self._aheads = {n: [[[replay(n, turn, is_sampled, i) for i in range(2)] for is_sampled in (False, True)]
                        for turn in range(turns)] for n in COUNTS}
    self._i, self._flying = 0, deque[object]()  # whose turn it is; launches that were not read
    self._name, self._device = name_of(self), str(self._choices[0].device)
    self._by_host = host_view(self._choices[0]) is not None

  def launch(self, rows: Numbers[Row], turn: int = 0) -> Results:
    """
    Launches a step that feeds 1 to 8 rows; nothing of them is read after that. turn: as in decode().

    A row with a `choice` gets the token of its sampler, which must be `on_device`, and any other the likeliest one.
    """
    if len(self._flying) == SLOTS: self._settle()  # a launch whose results nobody wanted
    n, i = count_for(len(rows)), self._i
    rows = [*rows, *[Row()] * (n - len(rows))]
    is_sampled = any(row.choice is not None for row in rows)
    self._inputs[n][i].write(rows, is_sampled)
    end = max([row.position for row in rows]) + 1
    logits, _ = self._aheads[n][turn][is_sampled][i](end, *self._stores(rows))
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

  def capture_decode(self, rows: int, is_sampled: bool = False) -> None:
    row = Row(choice=_LIKELIEST if is_sampled else None)
    for turn in range(len(self._aheads[rows])):
      for _ in range(2): self.launch([row] * rows, turn).keys()

  def _steps_of(self, rows: int, is_sampled: bool) -> Iterable[Replay[Any]]:
    return (step for of_turn in self._aheads[rows] for step in of_turn[is_sampled])

class _Inputs:
  """
  The arrays that a step of n rows reads. write() is called only once the step that read them has ended.

  tensors: int32 (LINES, n), and tables, int32 (n, blocks), see row_steps._Arrays.
  """
  def __init__(self, n: int, blocks: int, vocab_size: int, has_windows: bool):
    self.tensors = zeros((LINES, n)), zeros((n, blocks)), zeros((n, blocks)) if has_windows else None
    self._table, self._window = (None if x is None else TableWriter(partial(_write, x)) for x in self.tensors[1:])
    self._vocab_size, self._lines = vocab_size, np.zeros((LINES, n), np.int32)
    self._samplers = [Sampler()] * n  # whose settings were written last
    for row in range(n): self._set(row, _LIKELIEST.sampler)

  def write(self, rows: Numbers[Row], is_sampled: bool) -> None:
    """is_sampled: whether the step reads more than tokens and positions."""
    lines, words = self._lines, self._lines.view(np.uint32)
    lines[TOKEN], lines[POSITION] = [row.token for row in rows], [row.position for row in rows]
    for i, row in enumerate(rows if is_sampled else ()):
      sampler, history, words[RANDOM, i] = row.choice or _LIKELIEST
      if sampler is not self._samplers[i]: self._set(i, sampler)
      if sampler.repeat_penalty == 1: continue
      recent = history[max(0, row.position + 1 - PENALTY_TOKENS):row.position]
      lines[RECENT:RECENT + len(recent), i], lines[RECENT + len(recent):, i] = recent, -1
    _write(self.tensors[0], lambda memory: np.copyto(memory, lines))
    if self._table is not None: self._table(tuple(row.table for row in rows))
    if self._window is not None: self._window(tuple(row.window for row in rows))

  def _set(self, row: int, sampler: Sampler) -> None:
    self._samplers[row] = sampler
    self._lines.view(np.uint32)[WORDS:RECENT, row] = settings(sampler, self._vocab_size)

_LIKELIEST = Choice(Sampler(), (), 0)

def _write(tensor: Tensor, put: Callable[[np.ndarray], None]) -> None:
  """fill() that waits for nothing."""
  if (view := host_view(tensor)) is None: fill(tensor, put)
  else: put(view)

def _ahead(model: Model, turn: int, bias: Tensor | None, is_sampled: bool, fed: Tensor, table: Tensor,
           window: Tensor | None, keys: Tensor, last: Tensor, end: UOp, *stores: UOp) -> tuple[Tensor, Tensor]:
  given, positions, n = fed[TOKEN], fed[POSITION], int(fed.shape[1])
  chosen = (MAX - last[(-1 - given).maximum(0), 0] % 2**32).cast(dtypes.int32)
  tokens = (given < 0).where(chosen, given).reshape(n, 1).contiguous()
  logits = model.logits(model.hidden(tokens, rows_at(positions, table, window, stores, end), turn))
  if not is_sampled: return logits, keys[:n].assign(greedy_key(biased(logits, bias)))
  words, recent = fed[:RECENT].bitcast(dtypes.uint32), fed[RECENT:].T.cat(tokens, dim=1)
  return logits, keys[:n].assign(sampled_key(biased(logits, bias), recent, words[WORDS:].T, words[RANDOM]))
