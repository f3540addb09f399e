"""
The choice of the next token.

The likeliest token is chosen on the device (greedy_key), any other in numpy on the host (Sampler). Devices that run
while the host works do so by device_sampling.py.

The chain and its definitions are from llama.cpp (https://github.com/ggml-org/llama.cpp, src/llama-sampler.cpp):
- a mask, biases, and penalties over the last 64 tokens: choice/penalties.py
- top-k: Fan et al. 2018, https://arxiv.org/abs/1805.04833
- top-p: Holtzman et al. 2019, https://arxiv.org/abs/1904.09751
- min-p: Nguyen et al. 2024, https://arxiv.org/abs/2407.01082
- temperature, last: the remaining tokens are drawn from softmax(logits / temperature)

Top-p and min-p use the probabilities before the temperature; top-p renormalises over the tokens that top-k left.
"""
from __future__ import annotations
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
import numpy as np
from tinygrad import Tensor, dtypes
from tinygrad_llm.device.buffers import empty, fill
from tinygrad_llm.engine.arguments import number
from tinygrad_llm.engine.choice.penalties import FINITE, Penalties
from tinygrad_llm.errors import InputError

INFINITE = 0x7F800000  # bits that are all set in a float32 that is not finite

class Sampler:
  """
  Picks tokens. The same seed and logits give the same tokens.

  temperature: 0 always takes the likeliest token. top_k 0, top_p 1, min_p 0 and repeat_penalty 1 turn these off, and 0
  the other penalties.

  suppressed: ids that are never picked. logit_bias: see Penalties.

  masked: whether a call may rule out more tokens. InputError for a value out of range.
  """
  def __init__(self, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0,
               repeat_penalty: float = 1.0, seed: int = 0, suppressed: Sequence[int] = (),
               presence_penalty: float = 0.0, frequency_penalty: float = 0.0,
               logit_bias: Mapping[int, float] | None = None, masked: bool = False):
    number("temperature", temperature, 0, FINITE, "a number from 0")
    number("top_p", top_p, 0, 1, "a number from 0 to 1")
    number("min_p", min_p, 0, 1, "a number from 0 to 1")
    for name, value in (("top_k", top_k), ("seed", seed)):
      number(name, value, 0, 2**64 - 1, "a whole number from 0")
      if int(value) != value: raise InputError(f"{name}: {value!r} is not a whole number from 0")
    self.temperature, self.top_k, self.top_p, self.min_p = float(temperature), int(top_k), float(top_p), float(min_p)
    self._penalties = Penalties(repeat_penalty, presence_penalty, frequency_penalty, logit_bias, suppressed)
    self.repeat_penalty, self.masked = float(repeat_penalty), masked
    self._random = np.random.Generator(np.random.PCG64(int(seed)))

  @cached_property
  def greedy(self) -> bool:
    """Whether it picks greedy_token's choice, whatever came before and whatever the call."""
    return self.takes_best and self._penalties.off and not self.masked

  @property
  def on_device(self) -> bool:
    """Whether device_sampling.py can choose as it does: it has no mask, bias, presence or frequency penalty."""
    return self._penalties.only_repeat and not self.masked

  @property
  def takes_best(self) -> bool:
    """Whether it picks the first of the likeliest tokens, once the penalties have changed the logits."""
    return self.temperature == 0 or self.top_k == 1

  def random(self) -> float:
    """The next random number, uniform in [0, 1)."""
    return float(self._random.random())

  def random32(self) -> int:
    """random() in units of 2**-32, a whole number."""
    return int(self.random() * 2**32)

  def __call__(self, logits: np.ndarray, history: Sequence[int] = (), allowed: np.ndarray | None = None,
               ruled_out: Sequence[int] = (), random: float | None = None) -> int:
    """
    The next token. random: takes the place of the next random number.

    logits: (vocab,) float32, not written to; -inf rules a token out. InputError if one is NaN or +inf, or all are -inf.

    history: the tokens so far, the prompt included; the penalties look at the last 64.

    allowed, ruled_out: tokens to pick from, and tokens not to pick, see Penalties. They are for a `masked` sampler.
    InputError if they leave no token.
    """
    ids, weights = self.candidates(logits, history, allowed, ruled_out)
    if ids is not None and ids.size == 1 and self.takes_best: return int(ids[0])
    choice = _draw(weights, self.random() if random is None else random)
    return choice if ids is None else int(ids[choice])

  def candidates(self, logits: np.ndarray, history: Sequence[int] = (), allowed: np.ndarray | None = None,
                 ruled_out: Sequence[int] = ()) -> tuple[np.ndarray | None, np.ndarray]:
    """
    The tokens that a call picks from, ascending (None: all), and their weights, from 0 to 1 (the likeliest one's).

    The arguments are a call's.
    """
    assert self.masked or allowed is None and not ruled_out, "greedy and on_device would be wrong"
    if logits.ndim != 1 or not logits.size: raise InputError(f"logits: {logits.shape} is not (vocab,); give one row")
    check_best(best := logits.max())   # NaN if any is
    if (changed := self._penalties(logits, history, allowed, ruled_out)) is not logits:
      logits, best = changed, changed.max()
      if best == -np.inf: raise InputError("logits: every token is ruled out; allow more, or lower logit_bias")
      check_best(best)
    if self.takes_best: return np.array([logits.argmax()]), np.ones(1, np.float32)
    ids = None
    if 0 < self.top_k < logits.size:
      ids = _top_k(logits, self.top_k)
      logits = logits[ids]
    below = best - logits
    chosen = np.ones(below.size, bool)
    if self.top_p < 1: chosen &= _top_p(below, self.top_p)
    if self.min_p > 0: chosen &= below <= -math.log(self.min_p)
    # in place: fresh memory would cost more than the arithmetic. 1e-30 is not yet 0 in float32
    with np.errstate(over="ignore"): below /= -max(self.temperature, 1e-30)
    weights = np.exp(below, out=below)
    weights *= chosen
    return ids, weights

def check_best(best: float | np.float32) -> None:
  """InputError unless the largest logit of a row is finite."""
  if not np.isfinite(best):
    raise InputError(f"logits: the largest is {best}; the model's weights are damaged or its numbers overflow")

def token_bias(suppressed: Sequence[int], vocab_size: int) -> Tensor | None:
  """float32 (vocab_size,): -inf for the ids that are never picked, 0 for the others; None without such ids."""
  if not suppressed: return None
  def write(memory: np.ndarray) -> None:
    memory[:] = 0
    memory[list(suppressed)] = -np.inf
  fill(bias := empty((vocab_size,), dtypes.float32), write)
  return bias

def biased(logits: Tensor, bias: Tensor | None) -> Tensor:
  """Logits plus a token_bias. A model without one computes nothing here."""
  return logits if bias is None else logits + bias

def greedy_key(logits: Tensor) -> Tensor:
  """
  The likeliest token of each row and its logit, for greedy_token. (.., vocab) float32 -> (..) uint64.

  It is one max reduction. A key has the logit's bits, made to sort as the numbers do, above the complement of the id.
  """
  bits = logits.bitcast(dtypes.uint32)
  order = bits ^ ((bits >> 31) * 0x7FFFFFFF + 0x80000000)
  order = (logits == 0).where(0x80000000, (logits != logits).where(0xFFFFFFFF, order))   # -0 is 0; NaN is on top
  ids = Tensor.arange(logits.shape[-1], dtype=dtypes.uint32)
  return (order.cast(dtypes.uint64) * 2**32 + (0xFFFFFFFF - ids).cast(dtypes.uint64)).max(-1)

def greedy_token(key: int) -> int:
  """The token of a greedy_key, the first of equally likely ones. InputError as from a Sampler."""
  order = key >> 32
  bits = order ^ 0x80000000 if order >> 31 else order ^ 0xFFFFFFFF
  if bits & INFINITE == INFINITE: check_best(np.uint32(bits).view(np.float32))
  return 0xFFFFFFFF - (key & 0xFFFFFFFF)

def _top_k(logits: np.ndarray, k: int, block: int = 256) -> np.ndarray:
  """The ids of the k largest, ascending. The k-th largest block maximum bounds the k-th largest of all from below."""
  whole, ids = logits.size // block, np.arange(logits.size)
  if k <= whole:
    largest = logits[:whole * block].reshape(whole, block).max(1)
    ids = np.flatnonzero(logits >= np.partition(largest, whole - k)[whole - k])
  return np.sort(ids[np.argpartition(logits[ids], ids.size - k)[-k:]])

def _top_p(below: np.ndarray, p: float) -> np.ndarray:
  """
  Mask of the fewest likeliest tokens whose probabilities together reach p; at least one. Ties go to the first tokens.

  below: how far each logit is below the largest. Bisection finds the narrow range where the last token to take is; only
  that range is sorted.
  """
  mask, weights = np.zeros(below.size, bool), np.exp(-below)
  target = p * weights.sum(dtype=np.float64)
  ids: np.ndarray | slice = np.flatnonzero(below <= 8)   # few tokens, and enough for most models
  if weights[ids].sum(dtype=np.float64) < target: ids = slice(None)
  below, weights = below[ids], weights[ids]
  low, high = np.float32(0), min(below.max(), np.float32(100))   # exp(-100) adds nothing to the sum
  for _ in range(10):
    middle = (low + high) / 2
    if np.dot(weights, (below <= middle).astype(np.float32)) < target: low = middle
    else: high = middle
  taken, edge = below < low, np.flatnonzero((below >= low) & (below <= high))
  edge = edge[np.argsort(below[edge], kind="stable")]
  sums = weights[taken].sum(dtype=np.float64) + np.cumsum(weights[edge], dtype=np.float64)
  taken[edge[:1 + np.searchsorted(sums, target)]] = True
  mask[ids] = taken
  return mask

def _draw(weights: np.ndarray, u: float, block: int = 512) -> int:
  """An index, drawn in proportion to its weight, for u uniform in [0, 1): first a block, then an index in it."""
  def find(sums: np.ndarray, x: float) -> int:   # rounding may make x the whole sum: take the last with a weight
    return int(min(np.searchsorted(sums, x, side="right"), np.searchsorted(sums, sums[-1])))
  sums = np.cumsum(np.add.reduceat(weights, np.arange(0, weights.size, block), dtype=np.float64))
  at = find(sums, u * sums[-1])
  inside = np.cumsum(weights[at * block:(at + 1) * block], dtype=np.float64)
  return at * block + find(inside, u * sums[-1] - (sums[at - 1] if at else 0.0))
