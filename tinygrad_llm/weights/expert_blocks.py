"""
Grouped GEMM: the (token, expert) pairs of a prompt in blocks of one expert each (https://arxiv.org/abs/2211.15841).

Why: each pair's product alone reads and unpacks the expert's weights again.
How: pairs are sorted by expert, each expert's are padded to whole blocks, and a product is one of blocks: all slots of
  a block, and blocks of one expert that follow each other, share what is unpacked (patches/tiles/pack_operands.py).
Numbers: 256 tokens by 8 of 128 experts of 768 x 2048, Q4_K, one thread: 116 -> 45 ms; of 64 tokens 29 -> 23, of 16
  10 -> 13.5, of 4 4.8 -> 6.9, where most blocks have one pair. 2, 4 and 8 slots, 256 tokens: 53, 45 and 46 ms
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
  experts: of each block, int32 (N,), ascending; tokens: that a block's S slots are for, int32 (N, S); slots: of a
  token's pairs, int32 (T, K), in the flat order of blocks. A slot of no pair has some token; a block of no pair, as
  the last ones are, has an expert that there is not.
  """
  n_experts: int
  experts: Tensor
  tokens: Tensor
  slots: Tensor

  def filled(self, x: Tensor) -> Tensor:
    """x (N, ..) as it is stored: what is of no pair need not be computed."""
    return (self.experts < self.n_experts).reshape(x.shape[0], *[1] * (x.ndim - 1)).where(x, Invalid).contiguous()

  def gathered(self, x: Tensor) -> Tensor:
    """x (T, ..) -> (N, S, ..), which is loaded where it is used."""
    return rows(x, self.tokens)

  def of_slots(self, x: Tensor) -> Tensor:
    """The same as it is stored."""
    return self.filled(self.gathered(x))

  def of_tokens(self, x: Tensor, weights: Tensor) -> Tensor:
    """x (N, S, n), weights (T, K) -> the weighted sums of each token's pairs (T, n)."""
    weights, each, S = weights.contiguous(), list[Tensor](), int(x.shape[1])
    # block and place apart: a place in the flat x is divided again, and its remainder by a symbolic number taken, which
    # clang 22 gets wrong, of five side by side (it reads mask registers that nobody set). Each pair of a token alone:
    # a sum of them is no gather
    for k in range(weights.shape[1]):
      slot = self.slots[:, k].clamp(0).reshape(weights.shape[0], 1, 1, 1)
      of_place = (slot % S == Tensor.arange(S).unsqueeze(-1)).where(x, 0).sum(2)  # (T, N, n)
      chosen = (slot.squeeze(-1) // S == count(x.shape[0]).unsqueeze(-1)).where(of_place, 0).sum(1)
      each.append(chosen * weights[:, k:k + 1])
    return functools.reduce(Tensor.add, each)

def expert_blocks(ids: Tensor, n_experts: int, n_slots: int) -> ExpertBlocks:
  """ids: the experts of each token, all different, int32 (T, K), T may be symbolic; n_slots: of a block."""
  (T, K), E = ids.shape, round_up(n_experts, LANES)
  e, t = Tensor.arange(E), count(T)
  # contiguous, here and below: what is indexed is loaded, and not computed again for each element
  chosen = functools.reduce(Tensor.__or__, [ids[:, k:k + 1] == e for k in range(K)]).cast(dtypes.int32).contiguous()
  # of the tokens up to each, how many have an expert: (T, E)
  ranks = ((t.reshape(1, T, 1) <= t.reshape(T, 1, 1)) * chosen.unsqueeze(0)).sum(1, dtype=dtypes.int32).contiguous()
  sizes = (chosen.sum(0, dtype=dtypes.int32).contiguous() + (n_slots - 1)) // n_slots  # blocks of each expert
  ends = (e.unsqueeze(-1) >= e).where(sizes, 0).sum(-1, dtype=dtypes.int32).contiguous()
  first = ((ends - sizes) * n_slots).contiguous()  # slot of each expert
  b = count(T * ceildiv(K, n_slots) + n_experts)  # at most
  experts = (ends <= b.unsqueeze(-1)).sum(-1, dtype=dtypes.int32).contiguous()
  rank = b.unsqueeze(-1) * n_slots + Tensor.arange(n_slots) - first[experts].unsqueeze(-1)  # of the slots' pairs
  tokens = (ranks[:, experts].unsqueeze(-1) <= rank).sum(0, dtype=dtypes.int32).clamp(max_=T - 1).contiguous()
  slots = (first[ids] + ranks.gather(1, ids) - 1).contiguous()
  return ExpertBlocks(n_experts, experts, tokens, slots)

def count(n: int | UOp) -> Tensor:
  """0, 1, .. n - 1: tinygrad's arange of symbolic length is computed as sums."""
  return Tensor.arange(n.vmax)[:n] if isinstance(n, UOp) else Tensor.arange(n)

def rows(x: Tensor, ids: Tensor) -> Tensor:
  """x (N, ..), ids (..) -> x[ids], of an N that may be symbolic. All are ids of rows."""
  n = x.shape[0]
  at = ids.clamp(0, n - 1).reshape(*ids.shape, *[1] * x.ndim)
  return (at == count(n).reshape(n, *[1] * (x.ndim - 1))).where(x, 0).sum(ids.ndim, dtype=x.dtype)
