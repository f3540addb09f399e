"""
Changes of a row of logits before a token is chosen from it: a mask, biases, penalties.

Order and definitions are from llama.cpp (https://github.com/ggml-org/llama.cpp, common/sampling.cpp,
src/llama-sampler.cpp): a grammar's mask is first, biases come next, penalties last. The rest of the chain
(../sampling.py) follows.
"""
from __future__ import annotations
import math
from collections.abc import Mapping, Sequence
import numpy as np
from tinygrad_llm.engine.arguments import number, whole
from tinygrad_llm.errors import InputError

PENALTY_TOKENS = 64
FINITE = float(np.finfo(np.float32).max)
MOST_BIAS = 100  # as in OpenAI's API

class Penalties:
  """
  The changes that one request asks for. Its defaults change nothing.

  repeat: divides the positive logits of the last 64 tokens and multiplies the negative ones (Keskar et al. 2019, CTRL,
  https://arxiv.org/abs/1909.05858).

  frequency: is subtracted from a token's logit for each time that it is among these 64. presence: is subtracted once
  if it is there. Negative values favour these tokens.

  bias: {token id: number from -100 to 100, or -inf}, added to the logits; -inf rules a token out.
  suppressed: ids that are ruled out. InputError for a value out of range.
  """
  def __init__(self, repeat: float = 1.0, presence: float = 0.0, frequency: float = 0.0,
               bias: Mapping[int, float] | None = None, suppressed: Sequence[int] = ()):
    number("repeat_penalty", repeat, 1e-6, FINITE, "a number above 0")
    number("presence_penalty", presence, -FINITE, FINITE, "a finite number")
    number("frequency_penalty", frequency, -FINITE, FINITE, "a finite number")
    self.repeat, self.presence, self.frequency = map(np.float32, (repeat, presence, frequency))
    self._suppressed, self._biased, self._bias = np.array(suppressed, np.int64), *_biases(bias or {})

  @property
  def only_repeat(self) -> bool:
    """Whether nothing but the repeat penalty and the suppressed ids changes a logit."""
    return not (self.presence or self.frequency or self._biased.size)

  @property
  def off(self) -> bool:
    """Whether nothing but the suppressed ids changes a logit."""
    return self.repeat == 1 and self.only_repeat

  def __call__(self, logits: np.ndarray, history: Sequence[int] = (), allowed: np.ndarray | None = None,
               ruled_out: Sequence[int] = ()) -> np.ndarray:
    """
    The changed logits, (vocab,) float32; the same array if nothing changes, else another one.

    history: the tokens so far. allowed: bool (vocab,), or its bits, uint32 (ceil(vocab / 32),), the first token in the
    lowest bit. ruled_out: more ids to rule out. InputError for ids beyond the logits and for a mask of another size.
    """
    before = logits
    if allowed is not None: logits = np.where(unpacked(allowed, logits.size), logits, np.float32(-np.inf))
    def writable() -> np.ndarray: return logits.copy() if logits is before else logits
    for ids in (self._suppressed, np.array(ruled_out, np.int64)):
      if ids.size:
        logits = writable()
        logits[ids] = -np.inf
    if self._biased.size:
      if self._biased.max() >= logits.size:
        raise InputError(f"logit_bias: token {self._biased.max()} is not in 0..{logits.size - 1}")
      logits = writable()
      logits[self._biased] += self._bias
    if len(history) and not (self.repeat == 1 and not self.presence and not self.frequency):
      recent, counts = np.unique(np.asarray(history[-PENALTY_TOKENS:], np.int64), return_counts=True)
      if recent[0] < 0 or recent[-1] >= logits.size:
        raise InputError(f"history: token ids {recent[0]} to {recent[-1]} are not within 0 to {logits.size - 1}")
      logits, x = writable(), logits[recent]
      with np.errstate(over="ignore", invalid="ignore"):  # the Sampler looks at the largest logit
        x = np.where(x > 0, x / self.repeat, x * self.repeat)
        logits[recent] = x - (counts.astype(np.float32) * self.frequency + self.presence)
    return logits

def unpacked(allowed: np.ndarray, size: int) -> np.ndarray:
  """A mask of `size` tokens as bool (size,): it is that already, or holds a bit for each token in uint32 words."""
  if allowed.dtype == np.bool_ and allowed.shape == (size,): return allowed
  if allowed.dtype == np.uint32 and allowed.shape == (-(-size // 32),):
    return np.unpackbits(allowed.astype("<u4").view(np.uint8), count=size, bitorder="little").view(np.bool_)
  raise InputError(f"allowed: {allowed.dtype} {allowed.shape} is not bool ({size},) or uint32 ({-(-size // 32)},)")

def _biases(given: Mapping[int, float]) -> tuple[np.ndarray, np.ndarray]:
  """Token ids and what is added to their logits; a bias of 0 is left out."""
  if not isinstance(given, Mapping):
    raise InputError(f"logit_bias: {given!r:.60} is not a mapping; give {{token id: number}}")
  found = dict[int, float]()
  for key, value in given.items():
    token = whole("logit_bias", key, what="a token id")
    if not isinstance(value, (float, np.floating)) or value != -math.inf:
      number(f"logit_bias of token {token}", value, -MOST_BIAS, MOST_BIAS,
             f"a number from -{MOST_BIAS} to {MOST_BIAS}, or -inf")
    if value: found[token] = float(value)
  return np.array([*found], np.int64), np.array([*found.values()], np.float32)
