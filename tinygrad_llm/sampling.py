"""
The choice of the next token, in numpy on the host.

The chain and its definitions are llama.cpp's (https://github.com/ggml-org/llama.cpp, src/llama-sampler.cpp):
  repeat penalty   Keskar et al. 2019, CTRL, https://arxiv.org/abs/1909.05858, over the last 64 tokens
  top-k            Fan et al. 2018, https://arxiv.org/abs/1805.04833
  top-p            Holtzman et al. 2019, https://arxiv.org/abs/1904.09751
  min-p            Nguyen et al. 2024, https://arxiv.org/abs/2407.01082
  temperature      last: what is left is drawn from softmax(logits / temperature)
Top-p and min-p look at probabilities before the temperature, top-p at those of the tokens that top-k left.
"""
from __future__ import annotations
import math
from collections.abc import Sequence
import numpy as np
from tinygrad_llm.errors import InputError

PENALTY_TOKENS = 64

def _check(name: str, value: float, low: float, high: float, what: str) -> None:
  number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
  if not number or not low <= value <= high: raise InputError(f"{name}: {value!r} is not {what}")

class Sampler:
  """
  Picks tokens. The same seed and logits give the same tokens.

  temperature: 0 takes the likeliest token always. top_k: 0 is off, as are top_p 1, min_p 0 and repeat_penalty 1.
  InputError for a value out of range.
  """
  def __init__(self, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0,
               repeat_penalty: float = 1.0, seed: int = 0):
    finite = float(np.finfo(np.float32).max)
    _check("temperature", temperature, 0, finite, "a number from 0")
    _check("top_p", top_p, 0, 1, "a number from 0 to 1")
    _check("min_p", min_p, 0, 1, "a number from 0 to 1")
    _check("repeat_penalty", repeat_penalty, 1e-6, finite, "a number above 0")
    for name, value in (("top_k", top_k), ("seed", seed)):
      _check(name, value, 0, 2**64 - 1, "a whole number from 0")
      if int(value) != value: raise InputError(f"{name}: {value!r} is not a whole number from 0")
    self.temperature, self.top_k, self.top_p, self.min_p = float(temperature), int(top_k), float(top_p), float(min_p)
    self.repeat_penalty = float(repeat_penalty)
    self._random = np.random.Generator(np.random.PCG64(int(seed)))

  def __call__(self, logits: np.ndarray, history: Sequence[int] = ()) -> int:
    """
    The next token.

    logits: (vocab,) float32, not written to; -inf rules a token out. InputError if one is NaN or +inf, or all are -inf.
    history: the tokens so far, prompt included; the repeat penalty looks at the last 64.
    """
    if logits.ndim != 1 or not logits.size: raise InputError(f"logits: {logits.shape} is not (vocab,); give one row")
    if self.repeat_penalty != 1 and len(history): logits = self._penalise(logits, history)
    best = logits.max()   # NaN if any is
    if not np.isfinite(best):
      raise InputError(f"logits: the largest is {best}; the model's weights are damaged or its numbers overflow")
    if self.temperature == 0 or self.top_k == 1: return int(logits.argmax())
    ids = None
    if 0 < self.top_k < logits.size:
      ids = np.argpartition(logits, logits.size - self.top_k)[-self.top_k:]
      logits = logits[ids]
    below = best - logits
    chosen = np.ones(below.size, bool)
    if self.top_p < 1: chosen &= _top_p(below, self.top_p)
    if self.min_p > 0: chosen &= below <= -math.log(self.min_p)
    # in place: fresh memory costs more than the arithmetic; 1e-30 is not yet 0 in float32
    with np.errstate(over="ignore"): below /= -max(self.temperature, 1e-30)
    weights = np.exp(below, out=below)
    weights *= chosen
    choice = _draw(weights, self._random.random())
    return choice if ids is None else int(ids[choice])

  def _penalise(self, logits: np.ndarray, history: Sequence[int]) -> np.ndarray:
    recent = np.unique(np.asarray(history[-PENALTY_TOKENS:], dtype=np.int64))
    if recent[0] < 0 or recent[-1] >= logits.size:
      raise InputError(f"history: token ids {recent[0]} to {recent[-1]} are not within 0 to {logits.size - 1}")
    logits, x = logits.copy(), logits[recent]
    logits[recent] = np.where(x > 0, x / self.repeat_penalty, x * self.repeat_penalty)
    return logits

def _top_p(below: np.ndarray, p: float) -> np.ndarray:
  """
  Mask of the fewest likeliest tokens whose probability together reaches p; at least one. Of equal ones the first count.

  below: how far each logit is below the largest. A histogram of it finds the narrow range where the last token to take
  is; only that range is sorted.
  """
  weights = np.minimum(below, 100)   # exp(-100) adds nothing to the sum
  bins = (weights * (4095 / max(weights.max(), 1e-30))).astype(np.intp)
  np.exp(np.negative(weights, out=weights), out=weights)
  sums = np.cumsum(np.bincount(bins, weights))
  target = p * sums[-1]
  edge = int(np.searchsorted(sums, target))
  ids = np.flatnonzero(bins == edge)
  ids = ids[np.argsort(below[ids], kind="stable")]
  taken = (sums[edge - 1] if edge else 0.0) + np.cumsum(weights[ids], dtype=np.float64)
  mask = bins < edge
  mask[ids[:1 + np.searchsorted(taken, target)]] = True
  return mask

def _draw(weights: np.ndarray, u: float, block: int = 512) -> int:
  """An index, with a probability in proportion to its weight, for u uniform in [0, 1): its block, then where in it."""
  def find(sums: np.ndarray, x: float) -> int:   # rounding may make x the whole sum: then the last with a weight
    return int(min(np.searchsorted(sums, x, side="right"), np.searchsorted(sums, sums[-1])))
  sums = np.cumsum(np.add.reduceat(weights, np.arange(0, weights.size, block), dtype=np.float64))
  at = find(sums, u * sums[-1])
  inside = np.cumsum(weights[at * block:(at + 1) * block], dtype=np.float64)
  return at * block + find(inside, u * sums[-1] - (sums[at - 1] if at else 0.0))
