"""The pool of KV blocks, as the scheduler sees it: sequences take blocks, give them back and share prefixes."""
from __future__ import annotations
from typing import Any, NamedTuple
from tinygrad_llm.engine.prefixes.kv_blocks import Blocks
from tinygrad_llm.engine.prefixes.paths import Paths
from tinygrad_llm.engine.prefixes.prefix_tree import Node, PrefixTree
from tinygrad_llm.engine.batch.sequence import Sequence
from tinygrad_llm.nn.cache.place import BLOCK

class Counts(NamedTuple):
  """Blocks without scratch; since the start: evicted blocks, and positions that were found in the tree."""
  total: int
  free: int
  referenced: int
  cached: int
  evictions: int
  hits: int

class PrefixPool:
  """
  `count` blocks of `size` positions. Block 0 is scratch.

  copies: (from, to) blocks, or (None, a block that may hold numbers that are not finite). The engine copies or zeroes
    them one after the other before the next step, then clears the list. A block may have another owner by then, who has
    not written to it yet.
  stateful: the model has recurrent layers. Then a sequence can begin only at a snapshot of their states.
  budget: bytes of all snapshots.
  """
  def __init__(self, count: int, size: int = BLOCK, stateful: bool = False, budget: int = 0):
    self.blocks, self.size, self.hits = Blocks(count, size), size, 0
    self.tree = PrefixTree(self.blocks, budget)
    self.paths = Paths(self.tree, stateful)
    self.copies = list[tuple[int | None, int]]()

  def begin(self, s: Sequence) -> None:
    """
    Lets a sequence begin with the longest prefix that the tree knows: fills s.table and moves s.fed.

    Again before a piece, it finds blocks that others have entered meanwhile. The last token is left to feed.
    """
    if s not in self.paths: self.paths.start(s)
    first, (path, part, positions) = self.paths.depth(s), self.paths.find(s)
    depth = first + len(path)
    if depth * self.size + positions <= s.fed: return
    for i, node in enumerate(path, first):
      self.blocks.hold(node.block)
      if i < len(s.table): self.blocks.drop(s.table[i])
      s.table[i:i + 1] = [node.block]
    if path: self.paths.move(s, path[-1])
    if part is None or not self._copied(s, part, depth): part, positions = None, 0
    if s.written >= first * self.size:
      s.written = first * self.size + sum(node.exact for node in path) + min(part.exact if part else 0, positions)
    if self.paths.stateful and path: s.snapshot = self.tree.snapshots.use(path[-1])
    found = depth * self.size + positions - s.fed
    s.fed, s.reused, self.hits = s.fed + found, s.reused + found, self.hits + found

  def grow(self, s: Sequence, positions: int) -> bool:
    """Lets s.table cover so many positions; False: there are no blocks for all of them, and nothing changed."""
    missing = -(-positions // self.size) - len(s.table)
    if missing <= 0: return True
    if not self.room(missing): return False
    s.table += self.blocks.take(missing, s.table[-1] if s.table else 0)
    return True

  def entered(self, s: Sequence) -> None:
    """
    Lets others share the blocks below s.fed that are full now; s.table may change to blocks with the same KV.

    A failed sequence shares none.
    """
    if s.error is None: self.paths.enter(s)

  def snapshot(self, s: Sequence, copy: Any, nbytes: int) -> bool:
    """Keeps a copy of recurrent layers' states at s.fed, a multiple of a block's size; False: it cannot be kept."""
    self.paths.enter(s)
    return (node := self.paths.end(s)) is not None and self.tree.snapshots.put(node, copy, nbytes)

  def release(self, s: Sequence) -> None:
    """
    Gives s.table back and sets s.fed to 0. The blocks stay in the tree until they are evicted.

    The partly filled block does, too. After an error nobody knows what a sequence has written: the blocks that no other
    sequence has come to leave the tree, and are zeroed.
    """
    if s not in self.paths: return
    if s.error is None:
      self.paths.enter(s)
      self.paths.enter_part(s)
    for block in s.table: self.blocks.drop(block)
    node = self.paths.leave(s)
    if s.error is not None:
      self.tree.prune(node)
      self.copies += [(None, block) for block in s.table if self.blocks.is_free(block)]
    s.table, s.fed, s.written, s.snapshot = [], 0, 0, None

  def fork(self, s: Sequence, fork: Sequence) -> bool:
    """
    Lets a new sequence begin where `s` stands: it shares full blocks and gets a copy of the partly filled one.

    fork: its first s.fed tokens are equal. False: there is no block for the copy, and nothing changed.
    """
    self.paths.enter(s)
    full, part = divmod(s.fed, self.size)
    if part and not self.room(1): return False
    fork.table, fork.fed, fork.written = s.table[:full], s.fed, s.written
    self.paths.copy(s, fork)
    for block in fork.table: self.blocks.hold(block)
    if part:
      fork.table += self.blocks.take(1, fork.table[-1] if full else 0)
      self.copies.append((s.table[full], fork.table[full]))
    return True

  def free(self) -> int:
    """Blocks that are free or could be evicted now: all that no sequence holds."""
    return self.blocks.total - self.blocks.referenced

  def counts(self) -> Counts:
    """Figures for metrics."""
    b = self.blocks
    return Counts(b.total, b.free, b.referenced, b.cached, self.tree.evictions, self.hits)

  def room(self, count: int) -> bool:
    """Evicts until so many blocks are free; False: sequences hold too many, and none was evicted."""
    if self.free() < count: return False
    while self.blocks.free < count:
      if not self.tree.evict(): return False
    return True

  def _copied(self, s: Sequence, part: Node, i: int) -> bool:
    """Lets block i of a table be a copy of `part`; False: there is no block for it."""
    self.tree.pin(part)
    self.blocks.hold(part.block)
    if found := self.grow(s, (i + 1) * self.size): self.copies.append((part.block, s.table[i]))
    self.blocks.drop(part.block)
    self.tree.unpin(part)
    return found
