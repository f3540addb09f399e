"""
The choice of a Sampler (sampling.py) on the device, where only a token crosses to the host.

On a CPU numpy is quicker: 0.3 ms against 4.0 for 128,256 tokens (top-k 40, top-p 0.95; 2 cores of an EPYC).

Nothing is sorted. Tokens have whole numbers as keys: how far a logit is below the largest, as the bits of that float32,
which order as the numbers do. Which keys top-k and top-p keep, and which token a random number draws, are all the
smallest key up to which weights sum up to a target: search() finds it digit by digit, with sums for all values of a
digit in one pass. Weights are whole numbers, too, so that no sum depends on its order: a probability in units of 2**-31
of the likeliest token's.
"""
from __future__ import annotations
import math
from collections.abc import Sequence
import numpy as np
from tinygrad import Tensor, UOp, dtypes
from tinygrad_llm.engine.sampling import PENALTY_TOKENS, Sampler, greedy_key

# The blocks of the vocabulary, each with sums of its own, and the bits of a digit, a sum for each value. Of 128,256
# tokens the cost model says 127 us on an H100 and 800 on an M3, in 43 kernels; 512 blocks and 4 bits 206 and 598, in 60
BLOCKS, DIGIT = 1024, 6
# So many are few: a digit's sums are a small kernel then, which may read 64 KB, and a stage of a launch of such
# (patches/graph/kernel_chains.py). With 4,096 tokens it says 131 us and 166, in 6 kernels; before 246 and 510, in 41
FEW, DIGIT_OF_FEW = 8000, 4
ONE = 31  # bits of the likeliest token's weight
MAX = 2**32 - 1
TOP_K, TOP_P, MIN_P, TEMPERATURE, REPEAT_PENALTY, SETTINGS = range(6)  # words of the settings

def settings(sampler: Sampler, vocab_size: int) -> np.ndarray:
  """uint32 (SETTINGS,): what a Sampler asks for."""
  def bits(x: float) -> int: return int(np.float32(x).view(np.uint32))
  words = {TOP_K: min(sampler.top_k or vocab_size, vocab_size), TOP_P: min(round(sampler.top_p * 2**32), MAX),
           MIN_P: bits(0 - math.log(sampler.min_p)) if sampler.min_p else MAX,
           TEMPERATURE: bits(1 / min(max(sampler.temperature, 1e-30), 1e30)),
           REPEAT_PENALTY: bits(sampler.repeat_penalty)}
  return np.array([words[i] for i in range(SETTINGS)], np.uint32)

def recent_tokens(history: Sequence[int]) -> np.ndarray:
  """int32 (PENALTY_TOKENS,): the last of a history, each at its position modulo that; -1 for none."""
  recent, first = np.full(PENALTY_TOKENS, -1, np.int32), max(0, len(history) - PENALTY_TOKENS)
  for i, token in enumerate(history[first:], first): recent[i % PENALTY_TOKENS] = token
  return recent

def remember(recent: Tensor, token: Tensor, position: UOp) -> Tensor:
  """recent_tokens with one more, at its position; token: int32 (1, 1)."""
  here = Tensor.arange(PENALTY_TOKENS) == position % PENALTY_TOKENS
  return recent.assign(here.where(token.reshape(1), recent))

def sampled_key(logits: Tensor, recent: Tensor, words: Tensor, random: Tensor) -> Tensor:
  """
  The chosen token and the largest logit, for greedy_token; (1, 1, vocab) float32 -> (1, 1) uint64.

  words: settings(); random: () uint32, a Sampler's random32(). Of tokens as likely as the last that top-k or top-p
  keep, all are kept.
  """
  x = logits.reshape(-1)
  size = x.shape[0]
  assert isinstance(size, int)
  floats = words.bitcast(dtypes.float32)
  ids = Tensor.arange(size, dtype=dtypes.int32)
  seen = (ids.reshape(-1, 1) == recent).any(-1)
  x = seen.where((x > 0).where(x / floats[REPEAT_PENALTY], x * floats[REPEAT_PENALTY]), x).contiguous()
  best = (greedy_key(x) // 2**32).contiguous()
  below = (_value(best) - x).contiguous()
  key = below.bitcast(dtypes.uint32)
  def weight(inverse: Tensor | int) -> Tensor:
    found: Tensor = ((-below * inverse).exp() * 2**ONE + 0.5).cast(dtypes.uint32)
    return found
  places = -(-size // BLOCKS) * BLOCKS
  def blocks(x: Tensor) -> Tensor: return x.pad((0, places - size)).reshape(-1, BLOCKS)
  keys, every = blocks(key).contiguous(), blocks(ids < size).cast(dtypes.uint32)
  first = search(keys, every, words[TOP_K].cast(dtypes.uint64), 31)
  likely = blocks((key <= first).where(weight(1), 0)).contiguous()
  target = _share(likely.cast(dtypes.uint64).sum(), words[TOP_P]).maximum(1).contiguous()
  last = (words[TOP_P] == MAX).where(MAX, search(keys, likely, target, 31))
  kept = (key <= first.minimum(last).minimum(words[MIN_P]))
  weights = blocks(kept.where(weight(floats[TEMPERATURE]), 0)).contiguous()
  drawn = _share(weights.cast(dtypes.uint64).sum(), random).contiguous() + 1
  token = place(weights, drawn).minimum(size - 1)
  return (best * 2**32 + (MAX - token).cast(dtypes.uint64)).reshape(1, 1)

def digits(bits: int, size: int) -> list[int]:
  """The bits of each digit of a number, about `size`: a rest of less than half a digit is shared among the others."""
  count = max(int(bits > 0), (2 * bits + size) // (2 * size))
  return [bits // count + (i < bits % count) for i in range(count)]

def search(keys: Tensor, weights: Tensor, target: Tensor, bits: int) -> Tensor:
  """
  The smallest number such that the weights of all keys up to it sum up to `target`, which all together do.

  keys: (n, blocks) uint32, of so many bits; weights: uint32, the same; target: () uint64, at least 1 -> () uint32.
  """
  found, few = Tensor.zeros((), dtype=dtypes.uint32), keys.numel() <= FEW
  digit = DIGIT_OF_FEW if few else DIGIT
  shift = bits
  for size in digits(bits, digit):
    shift -= size
    ends = found + Tensor.arange(1, 2**size + 1, dtype=dtypes.uint32) * 2**shift - 1
    kept = (keys.unsqueeze(-1) <= ends).where(weights.unsqueeze(-1), 0).cast(dtypes.uint64)
    # in two: a kernel of 64 sums fills no GPU
    sums = (kept.sum((0, 1)) if few else kept.sum(0).contiguous().sum(0)).contiguous()
    found = (found + (sums < target).sum(dtype=dtypes.uint32) * 2**shift).contiguous()
  return found

def place(weights: Tensor, target: Tensor) -> Tensor:
  """
  The first place up to which weights sum up to `target`, which all together do: its row, then where it is in that.

  weights: (n, blocks) uint32, in the order of places; target: () uint64, at least 1 -> () uint32.
  """
  n, blocks = map(int, weights.shape)
  def numbers(count: int) -> Tensor: return Tensor.arange(count, dtype=dtypes.uint32)
  def first(weights: Tensor, target: Tensor) -> Tensor:
    bits = (int(weights.shape[0]) - 1).bit_length()
    return search(numbers(int(weights.shape[0])).unsqueeze(-1), weights.unsqueeze(-1), target, bits)
  if n * blocks <= FEW: return first(weights.flatten(), target)
  sums = weights.cast(dtypes.uint64).sum(1).contiguous()
  row = first(sums, target).minimum(n - 1)
  before = (numbers(n) < row).where(sums, 0).sum()
  inside = (numbers(n).unsqueeze(-1) == row).where(weights, 0).sum(0).contiguous()
  return row * blocks + first(inside, (target - before).contiguous())

def _value(order: Tensor) -> Tensor:
  """The float32 that greedy_key's order, () uint64, is of."""
  order = order.cast(dtypes.uint32)
  return (order ^ (order >= 2**31).where(2**31, MAX)).bitcast(dtypes.float32)

def _share(total: Tensor, part: Tensor) -> Tensor:
  """total, a uint64 below 2**63, times part / 2**32, a uint32, rounded down."""
  part = part.cast(dtypes.uint64)
  return (total // 2**32) * part + ((total % 2**32) * part) // 2**32
