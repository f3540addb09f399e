"""
Decoding that launches the next step before the host reads the last token.

A step takes its token from where the step before left its choice, on the device; its position is known in advance.
While the host deals with a token, the device already computes the next one. The step launched after an answer's last
token does no harm: the next answer writes its position again.
"""
from __future__ import annotations
from collections.abc import Callable, Sequence
import numpy as np
from tinygrad import Tensor, UOp, dtypes
from tinygrad.engine.jit import _TinyJit
from tinygrad_llm.device.async_read import name_of, reader
from tinygrad_llm.device.buffers import buffer_of, empty, fill
from tinygrad_llm.device.captured import captured
from tinygrad_llm.engine.choice.penalties import PENALTY_TOKENS
from tinygrad_llm.engine.device_sampling import MAX, SETTINGS, recent_tokens, remember, sampled_key, settings
from tinygrad_llm.engine.sampling import Sampler, biased, greedy_key, greedy_token
from tinygrad_llm.nn.model import Model
from tinygrad_llm.patches.cache.captures import restore

RANDOMS = 256  # random numbers that are uploaded at once, ahead of their steps

class Draws:
  """The random numbers of one answer by position: a position that is launched again gets the same number."""
  def __init__(self, sampler: Sampler):
    self._sampler, self._blocks = sampler, dict[int, list[int]]()

  def block(self, position: int) -> list[int]:
    """The RANDOMS numbers of the block that holds `position`. In an answer's first block, earlier ones are 0."""
    number = position // RANDOMS
    if number not in self._blocks:
      drawn = [self._sampler.random32() for _ in range(RANDOMS - position % RANDOMS)]
      # a step that is launched again is at most one block back
      self._blocks = {k: v for k, v in self._blocks.items() if k == number - 1} | {
        number: [0] * (position % RANDOMS) + drawn}
    return self._blocks[number]

class Lookahead:
  """
  The steps of one answer at a time: start(), then launch() for each position in order.

  Another answer begins with a start() of its own, and so does the first one when it goes on. Two captures and two
  buffers for their choices alternate, because a graph on NV or Metal is not launched again before it has ended.

  bias: a token_bias, which the choices of all samplers heed.
  """
  def __init__(self, model: Model, positions: int, bias: Tensor | None = None):
    self.positions, self._vocab_size = positions, model.config.vocab_size
    self._keys = [empty((1, 1), dtypes.uint64) for _ in range(2)]
    for key in self._keys: _fill(key, [[MAX]])  # the key of token 0: compile() runs steps, which need a token
    self._recent, self._words = empty((PENALTY_TOKENS,), dtypes.int32), empty((SETTINGS,), dtypes.uint32)
    self._randoms = empty((RANDOMS,), dtypes.uint32)
    self._greedy = [captured(_greedy, model, i, bias, self._keys[i], self._keys[1 - i]) for i in range(2)]
    self._sampled = [captured(_sampled, model, i, bias, self._keys[i], self._keys[1 - i], self._recent, self._words,
                              self._randoms) for i in range(2)]
    self._sampler, self._draws, self._name = Sampler(), Draws(Sampler()), name_of(self)

  def compile(self, sampler: Sampler, position: int) -> None:
    """Captures, once, the steps for such a sampler, by running them at a position that is fed next."""
    for step in self._steps(sampler):
      if not restore(step, self._position(position)): step(self._position(position))

  def start(self, token: int, history: Sequence[int], sampler: Sampler, draws: Draws) -> None:
    """Makes the first launch() feed `token`, at position len(history). `sampler` chooses with numbers of `draws`."""
    self._sampler, self._draws = sampler, draws
    _fill(self._keys[1 - len(history) % 2], [[MAX - token]])
    if sampler.greedy: return
    _fill(self._recent, recent_tokens(history))
    _fill(self._words, settings(sampler, self._vocab_size))
    _fill(self._randoms, draws.block(len(history)))

  def launch(self, position: int) -> Callable[[], int]:
    """
    Launches the step that feeds the choice of the step before; the result waits for the next token's id.

    InputError as from a Sampler.
    """
    if position % RANDOMS == 0 and not self._sampler.greedy: _fill(self._randoms, self._draws.block(position))
    self._steps(self._sampler)[position % 2](self._position(position))
    enqueue = reader(self._keys[0].device, 8, self._name)
    assert enqueue is not None
    read = enqueue(buffer_of(self._keys[position % 2]))
    return lambda: greedy_token(int.from_bytes(read(), "little"))

  @property
  def linear(self) -> UOp | None:
    """The captured schedule of a step; None before a capture."""
    return next((s.captured.linear for s in (*self._greedy, *self._sampled) if s.captured is not None), None)

  def _steps(self, sampler: Sampler) -> list[_TinyJit[Tensor]]: return self._greedy if sampler.greedy else self._sampled
  def _position(self, position: int) -> UOp: return UOp.variable("start", 0, self.positions - 1).bind(position)

def _fill(tensor: Tensor, values: Sequence | np.ndarray) -> None:
  def write(memory: np.ndarray) -> None: memory[:] = values
  fill(tensor, write)

def _token(key: Tensor) -> Tensor: return (MAX - key % 2**32).cast(dtypes.int32)

def _greedy(model: Model, turn: int, bias: Tensor | None, key: Tensor, last: Tensor, start: UOp) -> Tensor:
  return key.assign(greedy_key(biased(_logits(model, turn, _token(last), start), bias)))

def _sampled(model: Model, turn: int, bias: Tensor | None, key: Tensor, last: Tensor, recent: Tensor, words: Tensor,
             randoms: Tensor, start: UOp) -> Tensor:
  recent = remember(recent, token := _token(last), start)
  random = (Tensor.arange(RANDOMS) == start % RANDOMS).where(randoms, 0).sum(dtype=dtypes.uint32)
  logits = biased(_logits(model, turn, token, start), bias)
  return key.assign(sampled_key(logits, recent.reshape(1, -1), words.reshape(1, -1), random.reshape(1)))

def _logits(model: Model, turn: int, token: Tensor, start: UOp) -> Tensor:
  # contiguous: fused with a reduction over the logits, the head's matmul would be scheduled for that reduction, and one
  # thread would compute its products
  return model.logits(model.hidden(token, start, turn)).contiguous()
