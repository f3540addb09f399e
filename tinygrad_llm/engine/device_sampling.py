"""
A Sampler (sampling.py) on the device, for several rows of logits at once: only the chosen tokens cross to the host.

On a CPU numpy is faster: 0.3 ms against 4.0 for 128,256 tokens (top-k 40, top-p 0.95; 2 cores of an EPYC).

Nothing is sorted. A token's key is a whole number: the distance of its logit from the largest, as the bits of that
float32, which sort as the numbers do. Top-k, top-p and the draw all need the smallest key up to which the weights sum
up to a target. The function search() finds it digit by digit; one pass sums the weights for all values of a digit.
Weights are whole numbers, too, so that no sum depends on its order. A weight is a probability in units of 2**-31 of the
likeliest token's.
"""
from __future__ import annotations
import math
from collections.abc import Sequence
import numpy as np
from tinygrad import Tensor, UOp, dtypes
from tinygrad.helpers import prod
from tinygrad_llm.engine.choice.penalties import PENALTY_TOKENS
from tinygrad_llm.engine.sampling import Sampler, greedy_key

# Blocks of the vocabulary, each with its own sums, and bits of a digit, with a sum for each value. The cost model
# estimates, for 128,256 tokens, 139 us on an H100 and 781 on an M3, in 43 kernels; with 512 blocks and 4 bits 206 and
# 598, in 60
BLOCKS, DIGIT = 1024, 6
# At most so many keys are few: a digit's sums are then one small kernel, which may read 64 KB, and can be a stage of a
# chain (patches/graph/kernel_chains.py). For 4,096 tokens: 125 us and 153, in 3 kernels; before 246 and 510, in 41
FEW, DIGIT_OF_FEW = 8000, 4
# From so many rows on, a digit has fewer bits: a key is compared less often, in more kernels. 8 rows of 128,256 tokens:
# 312 us and 3,484, in 63 kernels; with 6 bits 351 and 5,749, in 45
MANY, DIGIT_OF_MANY = 4, 4
ONE = 31  # bits of the likeliest token's weight
MAX = 2**32 - 1
TOP_K, TOP_P, MIN_P, TEMPERATURE, REPEAT_PENALTY, SETTINGS = range(6)  # indices into settings()

def settings(sampler: Sampler, vocab_size: int) -> np.ndarray:
  """A Sampler's settings as uint32 (SETTINGS,). Top-k is 0 for one that takes the greedy_key's token."""
  def bits(x: float) -> int: return int(np.float32(x).view(np.uint32))
  words = {TOP_K: 0 if sampler.takes_best else min(sampler.top_k or vocab_size, vocab_size),
           TOP_P: min(round(sampler.top_p * 2**32), MAX),
           MIN_P: bits(0 - math.log(sampler.min_p)) if sampler.min_p else MAX,
           TEMPERATURE: bits(1 / min(max(sampler.temperature, 1e-30), 1e30)),
           REPEAT_PENALTY: bits(sampler.repeat_penalty)}
  return np.array([words[i] for i in range(SETTINGS)], np.uint32)

def recent_tokens(history: Sequence[int]) -> np.ndarray:
  """The last PENALTY_TOKENS of a history, int32, as a ring buffer: each at its position modulo that; -1 for none."""
  recent, first = np.full(PENALTY_TOKENS, -1, np.int32), max(0, len(history) - PENALTY_TOKENS)
  for i, token in enumerate(history[first:], first): recent[i % PENALTY_TOKENS] = token
  return recent

def remember(recent: Tensor, token: Tensor, position: UOp) -> Tensor:
  """recent_tokens with one more token, int32 (1, 1), at its position."""
  here = Tensor.arange(PENALTY_TOKENS) == position % PENALTY_TOKENS
  return recent.assign(here.where(token.reshape(1), recent))

def sampled_key(logits: Tensor, recent: Tensor, words: Tensor, random: Tensor) -> Tensor:
  """
  The chosen token of each row and its largest logit, for greedy_token; (n, 1, vocab) float32 -> (n, 1) uint64.

  A row's choice does not depend on other rows. Ties are kept: all tokens as likely as the last one that top-k or top-p
  takes.

  - recent: int32 (n, tokens), in any order, -1 for none
  - words: uint32 (n, SETTINGS), a row is settings()
  - random: uint32 (n,), of a Sampler's random32()
  """
  n, size = int(logits.shape[0]), logits.shape[-1]
  assert isinstance(size, int)
  x, floats = logits.reshape(n, size), words.bitcast(dtypes.float32)
  def setting(i: int) -> Tensor: return words[:, i:i + 1]
  def real(i: int) -> Tensor: return floats[:, i:i + 1]
  ids = Tensor.arange(size, dtype=dtypes.int32)
  seen = (ids.reshape(1, size, 1) == recent.reshape(n, 1, -1)).any(-1)
  x = seen.where((x > 0).where(x / real(REPEAT_PENALTY), x * real(REPEAT_PENALTY)), x).contiguous()
  greedy = greedy_key(x).contiguous()
  below = (_value(greedy // 2**32).reshape(n, 1) - x).contiguous()
  key = below.bitcast(dtypes.uint32)
  def weight(inverse: Tensor | int) -> Tensor:
    found: Tensor = ((-below * inverse).exp() * 2**ONE + 0.5).cast(dtypes.uint32)
    return found
  places = -(-size // BLOCKS) * BLOCKS
  def blocks(x: Tensor) -> Tensor: return x.pad((None, (0, places - size))).reshape(int(x.shape[0]), -1, BLOCKS)
  def total(weights: Tensor) -> Tensor: return weights.cast(dtypes.uint64).sum((1, 2))
  keys, every = blocks(key).contiguous(), blocks((ids < size).reshape(1, size)).cast(dtypes.uint32)
  first = search(keys, every, words[:, TOP_K], 31).reshape(n, 1)
  likely = blocks((key <= first).where(weight(1), 0)).contiguous()
  target = _share(total(likely), words[:, TOP_P]).maximum(1).contiguous()
  last = (setting(TOP_P) == MAX).where(MAX, search(keys, likely, target, 31).reshape(n, 1))
  kept = (key <= first.minimum(last).minimum(setting(MIN_P)))
  weights = blocks(kept.where(weight(real(TEMPERATURE)), 0)).contiguous()
  drawn = _share(total(weights), random).contiguous() + 1
  token = place(weights, drawn).minimum(size - 1)
  chosen = greedy // 2**32 * 2**32 + (MAX - token).cast(dtypes.uint64)
  return (words[:, TOP_K] == 0).where(greedy, chosen).reshape(n, 1)

def digits(bits: int, size: int) -> list[int]:
  """How many bits each digit of a number has, about `size`: a rest of less than half a digit goes to the others."""
  count = max(int(bits > 0), (2 * bits + size) // (2 * size))
  return [bits // count + (i < bits % count) for i in range(count)]

def search(keys: Tensor, weights: Tensor, target: Tensor, bits: int) -> Tensor:
  """
  A row's smallest number such that the weights of all keys up to it sum up to its target.

  All weights of a row together reach the target. keys: (n, places, blocks) uint32, of so many bits; weights: uint32,
  the same; either may have one row for all. target: (n,) uint64, at least 1 -> (n,) uint32. A target may be uint32 if
  all sums fit in it.
  """
  n, few = int(target.shape[0]), prod(keys.shape[1:]) <= FEW
  digit = DIGIT_OF_FEW if few else DIGIT if n < MANY else DIGIT_OF_MANY
  found, shift = Tensor.zeros((n, 1), dtype=dtypes.uint32), bits
  for size in digits(bits, digit):
    shift -= size
    ends = found + Tensor.arange(1, 2**size + 1, dtype=dtypes.uint32) * 2**shift - 1
    kept = (keys.unsqueeze(-1) <= ends.reshape(n, 1, 1, -1)).where(weights.unsqueeze(-1), 0).cast(target.dtype)
    # in two stages: a kernel with 64 outputs leaves a GPU idle
    sums = (kept.sum((1, 2)) if few else kept.sum(1).contiguous().sum(1)).contiguous()
    below = (sums < target.reshape(n, 1)).sum(1, keepdim=True, dtype=dtypes.uint32)
    found = (found + below * 2**shift).contiguous()
  return found.reshape(n)

def place(weights: Tensor, target: Tensor) -> Tensor:
  """
  A row's first place up to which the weights sum up to its target: block after block.

  All weights of a row together reach the target. weights: (n, blocks, size) uint32, in the order of places; target:
  (n,) uint64, at least 1 -> (n,) uint32.
  """
  n, count, size = map(int, weights.shape)
  def numbers(count: int) -> Tensor: return Tensor.arange(count, dtype=dtypes.uint32)
  def first(weights: Tensor, target: Tensor) -> Tensor:
    places = int(weights.shape[1])
    return search(numbers(places).reshape(1, places, 1), weights.unsqueeze(-1), target, (places - 1).bit_length())
  if count * size <= FEW: return first(weights.reshape(n, -1), target)
  sums = weights.cast(dtypes.uint64).sum(2).contiguous()
  block = first(sums, target).minimum(count - 1).reshape(n, 1)
  before = (numbers(count) < block).where(sums, 0).sum(1)
  inside = (numbers(count).reshape(1, count, 1) == block.reshape(n, 1, 1)).where(weights, 0).sum(1).contiguous()
  return block.reshape(n) * size + first(inside, (target - before).contiguous())

def _value(order: Tensor) -> Tensor:
  """The float32 whose greedy_key order, () uint64, this is."""
  order = order.cast(dtypes.uint32)
  return (order ^ (order >= 2**31).where(2**31, MAX)).bitcast(dtypes.float32)

def _share(total: Tensor, part: Tensor) -> Tensor:
  """total * part / 2**32, rounded down. total: uint64 below 2**63; part: uint32."""
  part = part.cast(dtypes.uint64)
  return (total // 2**32) * part + ((total % 2**32) * part) // 2**32
