"""
Grouped GEMM: the (token, expert) pairs of a prompt in blocks of one expert each (https://arxiv.org/abs/2211.15841).

Why: A separate product for each pair would read and dequantise the expert's weights every time.
How: Pairs are sorted by expert, and each expert's pairs are padded to whole blocks. The GEMM runs over blocks. All
  slots of a block, and consecutive blocks of one expert, share the dequantised weights
  (patches/tiles/pack_operands.py).
Numbers: 256 tokens, 8 of 128 experts of 768 x 2048 each, Q4_K, one thread: 116 -> 45 ms. 64 tokens: 29 -> 23 ms; 16
  tokens: 10 -> 13.5; 4 tokens: 4.8 -> 6.9, where most blocks have one pair. 256 tokens with 2, 4 and 8 slots: 53, 45
  and 46 ms.
"""
from __future__ import annotations
import functools
from dataclasses import dataclass
from tinygrad import Tensor, UOp, dtypes
from tinygrad.dtype import Invalid
from tinygrad.helpers import ceildiv, round_up
from tinygrad_llm.patches.ir.targets import LANES

@dataclass(frozen=True)
class ExpertBlocks:
  """
  The (token, expert) pairs of T tokens with K experts each, in N blocks of S slots.

  experts: each block's expert, int32 (N,), ascending. tokens: each slot's token, int32 (N, S).
  slots: the slot of each of a token's pairs, int32 (T, K), counted through all blocks.
  Padding slots hold an arbitrary token id; unused trailing blocks have expert >= n_experts (out of range).
  """
  n_experts: int
  experts: Tensor
  tokens: Tensor
  slots: Tensor

  def filled(self, x: Tensor) -> Tensor:
    """Materialises x (N, ..). Unused blocks are Invalid, so that nothing need be computed for them."""
    return filled(x, self.experts < self.n_experts)

  def gathered(self, x: Tensor) -> Tensor:
    """x (T, ..) -> (N, S, ..): each slot's token, loaded lazily in the kernel that uses it."""
    return rows(x, self.tokens)

  def of_slots(self, x: Tensor) -> Tensor:
    """gathered(x), materialised by filled()."""
    return self.filled(self.gathered(x))

  def of_tokens(self, x: Tensor, weights: Tensor) -> Tensor:
    """x (N, S, n), weights (T, K) -> (T, n): the weighted sum over each token's pairs."""
    weights, each, S = weights.contiguous(), list[Tensor](), int(x.shape[1])
    # The slot in a block and the block are selected one after the other. An index into the flattened x would be divided
    # again, with a remainder by a symbolic number. Five such remainders side by side are miscompiled by clang 22 (it
    # reads mask registers that nobody set). A token's pairs are selected one by one: a sum of them would be no gather.
    for k in range(weights.shape[1]):
      slot = self.slots[:, k].clamp(0).reshape(weights.shape[0], 1, 1, 1)
      of_place = (slot % S == Tensor.arange(S).unsqueeze(-1)).where(x, 0).sum(2)  # (T, N, n)
      chosen = (slot.squeeze(-1) // S == count(x.shape[0]).unsqueeze(-1)).where(of_place, 0).sum(1)
      each.append(chosen * weights[:, k:k + 1])
    return functools.reduce(Tensor.add, each)

def expert_blocks(ids: Tensor, n_experts: int, n_slots: int) -> ExpertBlocks:
  """Blocks of `n_slots` slots for `ids`, the distinct experts of each token, int32 (T, K); T may be symbolic."""
  (T, K), E = ids.shape, round_up(n_experts, LANES)
  e, t = Tensor.arange(E), count(T)
  # contiguous, here and below: an indexed tensor is materialised, or each element would compute it again
  chosen = functools.reduce(Tensor.__or__, [ids[:, k:k + 1] == e for k in range(K)]).cast(dtypes.int32).contiguous()
  # ranks[t, e]: how many of the tokens 0..t chose expert e
  ranks = ((t.reshape(1, T, 1) <= t.reshape(T, 1, 1)) * chosen.unsqueeze(0)).sum(1, dtype=dtypes.int32).contiguous()
  sizes = (chosen.sum(0, dtype=dtypes.int32).contiguous() + (n_slots - 1)) // n_slots  # blocks of each expert
  ends = (e.unsqueeze(-1) >= e).where(sizes, 0).sum(-1, dtype=dtypes.int32).contiguous()
  first = ((ends - sizes) * n_slots).contiguous()  # each expert's first slot
  b = count(T * ceildiv(K, n_slots) + n_experts)  # upper bound on the number of blocks
  experts = (ends <= b.unsqueeze(-1)).sum(-1, dtype=dtypes.int32).contiguous()
  rank = b.unsqueeze(-1) * n_slots + Tensor.arange(n_slots) - first[experts].unsqueeze(-1)  # of each slot in its expert
  tokens = (ranks[:, experts].unsqueeze(-1) <= rank).sum(0, dtype=dtypes.int32).clamp(max_=T - 1).contiguous()
  slots = (first[ids] + ranks.gather(1, ids) - 1).contiguous()
  return ExpertBlocks(n_experts, experts, tokens, slots)

def count(n: int | UOp) -> Tensor:
  """0, 1, .. n - 1. A symbolic n slices a constant arange; tinygrad would compute a symbolic one as sums."""
  return Tensor.arange(n.vmax)[:n] if isinstance(n, UOp) else Tensor.arange(n)

def filled(x: Tensor, used: Tensor) -> Tensor:
  """Materialises x (N, ..). Where `used` (N,) is false, it is Invalid, so that nothing need be computed."""
  return used.reshape(x.shape[0], *[1] * (x.ndim - 1)).where(x, Invalid).contiguous()

def rows(x: Tensor, ids: Tensor) -> Tensor:
  """x (N, ..), ids (..) -> x[ids]; N may be symbolic. Ids out of range are clamped."""
  n = x.shape[0]
  at = ids.clamp(0, n - 1).reshape(*ids.shape, *[1] * x.ndim)
  return (at == count(n).reshape(n, *[1] * (x.ndim - 1))).where(x, 0).sum(ids.ndim, dtype=x.dtype)
