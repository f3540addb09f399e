"""
A step's (row, expert) pairs in groups of one expert each, whose weights are read and unpacked once for a group.

Why: Rows of a decode step often choose the same experts. A product for each pair reads and dequantises such an expert's
  weights for each row.
How: Pairs are sorted by expert. They are few, so a pair's place is the number of pairs before it. A group is up to S
  neighbours of one expert; it lies at the place of its first pair. At all other places there is no group, and nothing
  is computed (patches/loops/skip_steps.py). An expert's pairs are in groups of the smallest size that has room for
  them. So a pair that is alone takes one row's product. A group of fewer pairs than slots computes products with rows
  that come after them, too, and nobody reads these: memory is the limit.
Numbers: Steps of 2, 4 and 8 rows by the time with a product for each pair. The models have two and three layers and a
  head (Zen 5, 2 threads, medians in turns). AVX-512, MXFP4 of gpt-oss: 0.72, 0.49, 0.49 where all rows have the same
  token, 0.94, 0.84, 0.66 with random tokens; Q4_K of qwen3moe 0.74, 0.61, 0.62 and 0.96, 0.98, 0.89. AVX2: 0.67, 0.62,
  0.66 and 0.97, 0.85, 0.72; 0.76, 0.61, 0.59 and 0.97, 0.93, 0.90. The products of gate and up alone, by
  the time that the bytes of all chosen experts take in a step of one row: MXFP4 1.06, 1.06, 1.14 with the same experts,
  0.99, 0.91, 0.89 at random; Q4_K 1.03, 1.06, 1.27 and 0.85, 0.78, 0.71. AVX2: MXFP4 1.15, 1.73, 3.11 and 0.96, 0.97,
  0.93; Q4_K 1.14, 1.68, 2.63 and 0.80, 0.71, 0.68. Above 1.25, arithmetic is the limit.
"""
from __future__ import annotations
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from tinygrad import Tensor, dtypes
from tinygrad_llm.weights.expert_blocks import filled, rows

@dataclass(frozen=True)
class PairGroups:
  """
  Some of the pairs of B rows with K experts each, N = B * K, in groups of S slots.

  - experts: the expert of each sorted pair, int32 (N,)
  - starts: whether a group lies at its place, bool (N,)
  - rows: the row of each slot, int32 (N, S)
  - slots: the slot of each of a row's pairs, int32 (B, K), counted through all places
  """
  experts: Tensor
  starts: Tensor
  rows: Tensor
  slots: Tensor

  def filled(self, x: Tensor) -> Tensor:
    """Materialises x (N, S, ..); where no group lies, it is Invalid, so that nothing need be computed."""
    return filled(x, self.starts)

  def gathered(self, x: Tensor) -> Tensor:
    """x (B, ..) -> (N, S, ..): each slot's row, loaded lazily in the kernel that uses it."""
    return rows(x, self.rows)

  def of_rows(self, y: Tensor) -> Tensor:
    """y (N, S, n) -> (B, K, n): the result of each of a row's pairs, if it is in a group."""
    return rows(y.flatten(0, 1), self.slots)

@dataclass(frozen=True)
class Pairs:
  """
  All pairs of B rows with K experts each, in groups of a few sizes, ascending.

  - counts: how many rows chose the expert of a row's pair, int32 (B, K)
  - groups: for each size, the pairs of experts that at most as many rows chose, and more than the size before. The
    largest size has all others.
  """
  counts: Tensor
  groups: Mapping[int, PairGroups]

  def each(self, product: Callable[[PairGroups], Tensor]) -> Tensor:
    """The results (B, K, n) of all pairs, for `product`: groups -> (N, S, n)."""
    found, before = None, 0
    for n_slots, groups in self.groups.items():
      y = groups.of_rows(product(groups))
      found = y if found is None else (self.counts > before).unsqueeze(-1).where(y, found)
      before = n_slots
    assert found is not None
    return found

def group_sizes(n_rows: int, n_slots: int) -> list[int]:
  """The sizes of groups for steps of `n_rows`, ascending: a lone pair, a small group of `n_slots`, twice as many."""
  return sorted({1, min(n_slots, n_rows), min(2 * n_slots, n_rows)})

def pairs(ids: Tensor, sizes: Sequence[int]) -> Pairs:
  """The pairs of `ids`, the distinct experts of each row, int32 (B, K), in groups of `sizes` slots, ascending."""
  flat, n = ids.flatten(), ids.numel()
  place = Tensor.arange(n)
  earlier = place < place.unsqueeze(-1)  # (n, n): whether the pair of the last axis comes before
  def counted(x: Tensor) -> Tensor: return x.sum(-1, dtype=dtypes.int32).contiguous()
  # contiguous: an indexed tensor is materialised, or each element would compute it again
  places = counted((flat < flat.unsqueeze(-1)) | (flat == flat.unsqueeze(-1)) & earlier)
  here = places == place.unsqueeze(-1)  # (n, n): whether a pair is sorted to a place
  of_place, experts = counted(here.where(place, 0)), counted(here.where(flat, 0))
  same = experts == experts.unsqueeze(-1)
  ranks, counts = counted(same & earlier), counted(same)  # of each place: among its expert's, and how many these are
  rank, found, before = rows(ranks, places), dict[int, PairGroups](), 0
  for n_slots in sizes:
    starts = (ranks % n_slots == 0) & (counts > before)
    if n_slots != sizes[-1]: starts = starts & (counts <= n_slots)
    of_slots = rows(of_place, place.unsqueeze(-1) + Tensor.arange(n_slots)) // int(ids.shape[1])  # (n, S)
    slot = rank % n_slots
    of_pairs = ((places - slot) * n_slots + slot).reshape(ids.shape)
    found[n_slots] = PairGroups(experts, starts.contiguous(), of_slots.contiguous(), of_pairs.contiguous())
    before = n_slots
  return Pairs(rows(counts, places).reshape(ids.shape).contiguous(), found)
