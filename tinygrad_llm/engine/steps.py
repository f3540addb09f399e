"""A model's steps, each captured once: prefill of a chunk, logits of all its rows or of one, decoding of a token."""
from __future__ import annotations
from collections.abc import Sequence
from typing import Any
import numpy as np
from tinygrad import Tensor, UOp, dtypes
from tinygrad_llm.device.buffers import Readings, empty, fill, is_lazy, read, writer
from tinygrad_llm.device.captured import Replay, captured, scheduled
from tinygrad_llm.engine.sampling import biased, greedy_key
from tinygrad_llm.errors import InputError
from tinygrad_llm.nn.model import Model
from tinygrad_llm.patches.cache.captures import restore

BUCKET = 512  # positions

def positions_for(max_context: int, most: int) -> int:
  """
  Positions of the KV cache for a context of `max_context`, at most `most`, which the model knows: 512 * 2^n.

  Kernels hold this size, so contexts of one bucket share programs and captures. Positions beyond `max_context` cost
  address space only. A device that allocates all of a buffer's memory at once gets 512 * n, which bounds the waste.
  """
  buckets = -(-max_context // BUCKET)
  if is_lazy(): buckets = 1 << (buckets - 1).bit_length()
  return min(BUCKET * buckets, most)

class Steps:
  """
  The captured steps of a model. A step's output stays in a buffer of its own until the step runs again.

  A caller that needs it for longer copies it. `chunk`: most tokens of a prefill. `positions`: size of the model's KV
  cache. `max_context`: how many positions may be fed (None: all); beyond them it is an InputError. `bias`: a token_bias
  for the greedy choice.
  """
  def __init__(self, model: Model, positions: int, chunk: int, max_context: int | None = None,
               bias: Tensor | None = None):
    self.positions, self.chunk, self.vocab_size = positions, chunk, model.config.vocab_size
    self.max_context = max_context or positions
    self._tokens, self._token = (empty((1, n), dtypes.int32) for n in (chunk, 1))
    self.hidden = empty((1, chunk, model.config.dim), dtypes.float32)  # the last layer's output for a chunk
    self._prefill = captured(_prefill, model, self.hidden)
    self._logits, self._row_logits = captured(_logits, model), captured(_row_logits, model)
    self._normed = captured(_normed, model)
    # a model with recurrent layers has a step for each turn of its states, all others have one
    self._decodes = [captured(_decode, model, turn, bias) for turn in range(2 if model.states else 1)]
    start = UOp.variable("start", 0, positions - 1)
    self._replays = [Replay(step, (self._token,), (start,)) for step in self._decodes]
    self._fill_token, self._reading = writer(self._token), Readings()

  def prefill(self, tokens: Sequence[int], position: int) -> None:
    """Feeds 1 to `chunk` tokens from `position` on; logits() and row_logits() are for these tokens then."""
    _write(self._tokens, tokens)
    self._prefill(self._tokens[:, :self._length(len(tokens))], self._position(position, len(tokens)))

  def logits(self, length: int) -> np.ndarray:
    """float32 (length, vocab_size): the logits after each of the `length` tokens of the last prefill."""
    return read(self._logits(self.hidden, self._length(length)), length, self.vocab_size)

  def normed(self, length: int) -> np.ndarray:
    """float32 (length, dim): the last layer's output, normed, for the `length` tokens of the last prefill."""
    return read(self._normed(self.hidden, self._length(length)), length, int(self.hidden.shape[2]))

  def row_logits(self, row: int) -> np.ndarray:
    """float32 (vocab_size,): the logits after token `row` of the last prefill."""
    return read(self._row_logits(self.hidden, self._row(row)), self.vocab_size)

  def decode(self, token: int, position: int) -> tuple[Tensor, Tensor]:
    """Feeds one token; the logits after it, (1, 1, vocab_size), and their greedy_key, (1, 1)."""
    self._check(position)
    self._fill_token(lambda memory: memory.__setitem__((0, 0), token))
    return self._replays[position % len(self._replays)](position)

  def key(self, key: Tensor) -> int:
    """The greedy_key of decode()."""
    return int(self._reading(key, 1)[0])

  def row(self, logits: Tensor) -> np.ndarray:
    """float32 (vocab_size,): the logits of decode(), until it runs again."""
    return self._reading(logits, self.vocab_size)

  def restore_prompt(self) -> bool:
    """Whether prefill() and row_logits() are captured, in this process or an earlier one, and so compile nothing."""
    return all(restore(*call) for call in self._prompt_calls())

  def capture_prompt(self) -> None:
    """Captures prefill() and row_logits() by running them. They write keys and values at position 0."""
    for step, *args in self._prompt_calls(): step(*args)

  def _prompt_calls(self) -> tuple[tuple[Any, ...], ...]:
    return ((self._prefill, self._tokens[:, :self._length(1)], self._position(0)),
            (self._row_logits, self.hidden, self._row(0)))

  def restore_decode(self) -> bool:
    """Whether decode() is captured, in this process or an earlier one."""
    return all(restore(step, self._token, self._position(0)) for step in self._decodes)

  def capture_decode(self, token: int = 0, position: int = 0) -> None:
    """
    Captures decode() by running it, which writes keys and values at `position`, and both turns of recurrent states.
    """
    _write(self._token, [token])
    for step in self._decodes: step(self._token, self._position(position))

  @property
  def decode_linear(self) -> UOp | None:
    """The captured schedule of decode(); None before it has run, or with JIT=0."""
    return next((step.captured.linear for step in self._decodes if step.captured is not None), None)

  def decode_schedule(self, position: int) -> tuple[UOp, dict[str, int]]:
    """The schedule that decode() at `position` would capture, see device.captured.scheduled. Nothing is compiled."""
    step = self._decodes[position % len(self._decodes)]
    assert step.fxn is not None
    return scheduled(step.fxn, self._token, self._position(position))

  def prompt_schedule(self, position: int = 0) -> tuple[UOp, dict[str, int]]:
    """The same for an answer's first token: prefill() of a chunk, then row_logits()."""
    assert self._prefill.fxn is not None and self._row_logits.fxn is not None
    tokens = self._tokens[:, :self._length(self.chunk)]
    chunk, chunk_variables = scheduled(self._prefill.fxn, tokens, self._position(position))
    row, row_variables = scheduled(self._row_logits.fxn, self.hidden, self._row(self.chunk - 1))
    return chunk.replace(src=chunk.src + row.src), chunk_variables | row_variables

  def _check(self, position: int, count: int = 1) -> None:
    if not 0 <= position <= self.max_context - count:
      raise InputError(f"position {position}: {count} tokens do not fit there in a context of {self.max_context}; feed "
                       "fewer or raise max_context")
  def _position(self, position: int, count: int = 1) -> UOp:
    self._check(position, count)
    return UOp.variable("start", 0, self.positions - 1).bind(position)
  def _length(self, length: int) -> UOp: return UOp.variable("length", 1, self.chunk).bind(length)
  def _row(self, row: int) -> UOp: return UOp.variable("row", 0, self.chunk - 1).bind(row)

def _write(tensor: Tensor, ids: Sequence[int]) -> None:
  def write(memory: np.ndarray) -> None: memory[0, :len(ids)] = ids
  fill(tensor, write)

def _prefill(model: Model, x: Tensor, tokens: Tensor, start: UOp) -> Tensor:
  return x[:, :tokens.shape[1]].assign(model.hidden(tokens, start))
def _logits(model: Model, x: Tensor, length: UOp) -> Tensor: return model.logits(x[:, :length])
def _normed(model: Model, x: Tensor, length: UOp) -> Tensor: return model.norm(x[:, :length])
def _row_logits(model: Model, x: Tensor, row: UOp) -> Tensor: return model.logits(x[:, row:row+1])
def _decode(model: Model, turn: int, bias: Tensor | None, token: Tensor, start: UOp) -> tuple[Tensor, Tensor]:
  return (logits := model.logits(model.hidden(token, start, turn))), greedy_key(biased(logits, bias))
