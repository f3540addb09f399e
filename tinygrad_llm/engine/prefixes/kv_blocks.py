"""The numbers of a pool's blocks: free ones in runs of neighbours, and how many sequences hold each of the others."""
from __future__ import annotations
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable
from tinygrad_llm.nn.cache.place import BLOCK

class Blocks:
  """
  The blocks 1 to count - 1 of a pool. Block 0 is scratch, where idle rows write; it is never handed out.

  A block is free, or sequences hold it, or the prefix tree keeps it, or both. It is freed as the last of them lets go.
  A run is a stretch of neighbouring free blocks, as long as possible. take() and a block's return cost a binary search.

  size: positions of a block; free: number of free blocks; referenced: number of blocks that sequences hold
  """
  def __init__(self, count: int, size: int = BLOCK):
    self.count, self.size, self.free, self.referenced = count, size, 0, 0
    self._holders, self._kept = [0] * count, [False] * count
    self._lengths = dict[int, int]()        # {first block of a run: its length}
    self._firsts = dict[int, int]()         # {the block after a run: its first block}
    self._runs = list[tuple[int, int]]()    # (length, first block), sorted
    if count > 1: self._add(1, count - 1)

  @property
  def total(self) -> int: return self.count - 1  # without scratch
  @property
  def cached(self) -> int: return self.total - self.free - self.referenced  # only the tree keeps them

  def take(self, count: int, after: int = 0) -> list[int]:
    """
    `count` free blocks, each held once: what follows block `after`, then the shortest run that is long enough.

    Where no run is long enough, the longest comes first. There must be so many free blocks.
    """
    assert count <= self.free, f"{count} blocks of {self.free}"
    taken = self._cut(after + 1, count) if after and count and after + 1 in self._lengths else []
    while missing := count - len(taken):
      i = min(bisect_left(self._runs, (missing, 0)), len(self._runs) - 1)
      taken += self._cut(self._runs[i][1], missing)
    for block in taken: self.hold(block)
    return taken

  def hold(self, block: int) -> None:
    """One more sequence reads the block."""
    self.referenced += not self._holders[block]
    self._holders[block] += 1

  def drop(self, block: int) -> None:
    """One sequence less reads the block."""
    assert self._holders[block] > 0, f"nobody holds block {block}"
    self._holders[block] -= 1
    if self._holders[block]: return
    self.referenced -= 1
    if not self._kept[block]: self._free(block)

  def is_held(self, block: int) -> bool:
    """Whether a sequence reads the block."""
    return self._holders[block] > 0

  def held(self) -> list[int]:
    """The blocks that sequences hold."""
    return [block for block, count in enumerate(self._holders) if count]

  def given_back(self, held: Iterable[int]) -> int:
    """How many blocks nobody would read if each of these were dropped, as often as it is here."""
    return sum(self._holders[block] == count for block, count in Counter(held).items())

  def is_free(self, block: int) -> bool:
    """Whether the block is nobody's."""
    return not self._holders[block] and not self._kept[block]

  def keep(self, block: int) -> None:
    """The tree keeps a block that a sequence holds."""
    assert self._holders[block] and not self._kept[block], f"block {block} is free or kept"
    self._kept[block] = True

  def forget(self, block: int) -> None:
    """The tree keeps the block no more."""
    assert self._kept[block], f"the tree does not keep block {block}"
    self._kept[block] = False
    if not self._holders[block]: self._free(block)

  def _free(self, block: int) -> None:
    """Joins a block with the runs beside it."""
    first, length = block, 1
    if (before := self._firsts.get(block)) is not None:
      first, length = before, length + self._remove(before)
    if block + 1 in self._lengths: length += self._remove(block + 1)
    self._add(first, length)

  def _cut(self, first: int, most: int) -> list[int]:
    """The first blocks of a run, at most `most`; the rest stays a run."""
    length = self._remove(first)
    count = min(length, most)
    if length > count: self._add(first + count, length - count)
    return [*range(first, first + count)]

  def _add(self, first: int, length: int) -> None:
    self._lengths[first], self._firsts[first + length] = length, first
    insort(self._runs, (length, first))
    self.free += length

  def _remove(self, first: int) -> int:
    length = self._lengths.pop(first)
    del self._firsts[first + length], self._runs[bisect_left(self._runs, (length, first))]
    self.free -= length
    return length
