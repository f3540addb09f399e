"""The pool of KV blocks, as the scheduler sees it: sequences take blocks, give them back and share prefixes."""
from __future__ import annotations
from collections.abc import Callable
from typing import Any, NamedTuple
from tinygrad_llm.engine.prefixes.kv_blocks import Blocks
from tinygrad_llm.engine.prefixes.paths import Paths
from tinygrad_llm.engine.prefixes.prefix_tree import Node, PrefixTree
from tinygrad_llm.engine.prefixes.windows import Windows, WindowSize
from tinygrad_llm.engine.batch.sequence import Sequence
from tinygrad_llm.nn.cache.place import BLOCK

class Counts(NamedTuple):
  """
  Blocks without scratch; since the start: evicted blocks, and positions that were found in the tree.

  windows: the same of the window pool, whose hits are not counted; None: there is none.
  """
  total: int
  free: int
  referenced: int
  cached: int
  evictions: int
  hits: int
  windows: Counts | None = None

class PrefixPool:
  """
  `count` blocks of `size` positions. Block 0 is scratch.

  - copies: (from, to) blocks, or (None, a block that may hold numbers that are not finite). The engine copies or zeroes
    them one after the other before the next step, then clears the list. A block may have another owner by then, who has
    not written to it yet.
  - stateful: the model has recurrent layers. Then a sequence can begin only at a snapshot of their states.
  - budget: bytes of all snapshots
  - state_of: a copy of recurrent layers' states at a sequence's position `fed`, and its bytes; None: there is none
  - guests: sequences that no scheduler knows. Where blocks are short, they give theirs back first, the oldest first. A
    cancelled guest is let go when the next sequence begins.
  - window: the pool of layers with a window; None: they have these blocks, too
  """
  def __init__(self, count: int, size: int = BLOCK, stateful: bool = False, budget: int = 0,
               window: WindowSize | None = None):
    self.blocks, self.size, self.hits = Blocks(count, size), size, 0
    self.windows = None if window is None else Windows(window, size)
    self.tree = PrefixTree(self.blocks, budget, self.windows)
    self.paths = Paths(self.tree, stateful)
    self.copies, self.guests = list[tuple[int | None, int]](), list[Sequence]()
    self.state_of: Callable[[Sequence], tuple[Any, int] | None] = lambda s: None

  def begin(self, s: Sequence) -> None:
    """
    Lets a sequence begin with the longest prefix that the tree knows: fills s.table and moves s.fed.

    Again before a piece, it finds blocks that others have entered meanwhile. The last token is left to feed.
    """
    if s not in self.paths:
      self.paths.start(s)
      for guest in [guest for guest in self.guests if guest.cancelled]: self.leave(guest)
    if self.windows is not None and not self._without_guests(self.windows.begin, s): return
    may_copy = not self.paths.stateful or self.room(1)  # a snapshot in a block's middle is of no use without the copy
    first, (path, part, positions) = self.paths.depth(s), self.paths.find(s, may_copy)
    depth = first + len(path)
    if depth * self.size + positions <= s.fed: return
    if self.windows is not None: self.windows.go_on(s, first, path, depth * self.size)
    for i, node in enumerate(path, first):
      self.blocks.hold(node.block)
      if i < len(s.table): self.blocks.drop(s.table[i])
      s.table[i:i + 1] = [node.block]
    if path: self.paths.move(s, path[-1])
    if part is None or not self._copied(s, part, depth): part, positions = None, 0
    if s.written >= first * self.size:
      s.written = first * self.size + sum(node.exact for node in path) + min(part.exact if part else 0, positions)
    if self.paths.stateful and (at := part or path and path[-1]): s.snapshot = self.tree.snapshots.use(at)
    found = depth * self.size + positions - s.fed
    s.fed, s.reused, self.hits = s.fed + found, s.reused + found, self.hits + found
    if self.windows is not None: self.windows.passed(s)

  def grow(self, s: Sequence, positions: int) -> bool:
    """Lets s.table cover so many positions; False: there are no blocks for all of them, and nothing changed."""
    missing = max(0, -(-positions // self.size) - len(s.table))
    if missing > self.free(): return False
    if self.windows is not None and not self._without_guests(self.windows.grow, s, positions): return False
    self.room(missing)
    if missing: s.table += self.blocks.take(missing, s.table[-1] if s.table else 0)
    return True

  def piece(self, s: Sequence, count: int) -> int:
    """How many of the next `count` positions a piece can feed: in layers with a window, their blocks are neighbours."""
    return count if self.windows is None else self.windows.piece(s, count)

  def entered(self, s: Sequence) -> None:
    """
    Lets others share the blocks below s.fed that are full now; s.table may change to blocks with the same KV.

    A failed sequence shares none.
    """
    if s.error is None: self.paths.enter(s)
    if self.windows is not None: self.windows.passed(s)

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
      if self.paths.stateful: self._keep_state(s)
      else: self.paths.enter_part(s)
    for block in s.table: self.blocks.drop(block)
    node = self.paths.leave(s)
    if s.error is not None: self.tree.prune(node)
    if self.windows is not None: self.windows.release(s)
    if s.error is not None: self.copies += [(None, block) for block in s.table if self.blocks.is_free(block)]
    s.table, s.fed, s.written, s.snapshot, s.state = [], 0, 0, None, None

  def _keep_state(self, s: Sequence) -> None:
    """Keeps the states after a sequence's last position, where the next one may go on."""
    if not s.fed or (kept := self.state_of(s)) is None: return
    node = self.paths.end(s) if s.fed % self.size == 0 else self.paths.enter_part(s)
    if node is not None and node not in self.tree.snapshots: self.tree.snapshots.put(node, *kept)

  def fork(self, s: Sequence, fork: Sequence) -> bool:
    """
    Lets a new sequence begin where `s` stands: it shares full blocks and gets a copy of the partly filled one.

    fork: its first s.fed tokens are equal. False: there is no block for the copy, and nothing changed.
    """
    self.paths.enter(s)
    full, part = divmod(s.fed, self.size)
    if part and not self.room(1): return False
    if self.windows is not None and not self._without_guests(self.windows.fork, s, fork): return False
    fork.table, fork.fed, fork.written = s.table[:full], s.fed, s.written
    self.paths.copy(s, fork)
    for block in fork.table: self.blocks.hold(block)
    if part:
      fork.table += self.blocks.take(1, fork.table[-1] if full else 0)
      self.copies.append((s.table[full], fork.table[full]))
    return True

  def free(self) -> int:
    """Blocks that are free or could be evicted now: all that no sequence holds, or guests alone."""
    free = self.blocks.total - self.blocks.referenced
    return free + self.blocks.given_back(b for s in self.guests for b in s.table) if self.guests else free

  def leave(self, s: Sequence) -> None:
    """Lets a guest go, which keeps no blocks."""
    if s in self.guests: self.guests.remove(s)
    self.release(s)

  @property
  def has_copies(self) -> bool:
    """Whether the pool asks for copies."""
    return bool(self.copies) or self.windows is not None and bool(self.windows.copies)

  def all_copies(self) -> list[tuple[list[tuple[int | None, int]], bool]]:
    """The copies of each pool, and whether it is the one of layers with a window."""
    return [(self.copies, False)] + ([] if self.windows is None else [(self.windows.copies, True)])

  def clear_as(self, before: PrefixPool) -> None:
    """Asks for zeroes in the blocks that an earlier pool's sequences held, or were to get: they may hold anything."""
    def unknown(blocks: Blocks, copies: list[tuple[int | None, int]]) -> list[tuple[int | None, int]]:
      return [(None, block) for block in (0, *blocks.held(), *(to for _, to in copies))]
    self.copies = unknown(before.blocks, before.copies)
    if self.windows is not None and before.windows is not None:
      self.windows.copies = unknown(before.windows.blocks, before.windows.copies)

  def counts(self) -> Counts:
    """Figures for metrics."""
    b = self.blocks
    windows = None
    if self.windows is not None:
      w = self.windows.blocks
      windows = Counts(w.total, w.free, w.referenced, w.cached, self.windows.evictions, 0)
    return Counts(b.total, b.free, b.referenced, b.cached, self.tree.evictions, self.hits, windows)

  def room(self, count: int) -> bool:
    """Evicts until so many blocks are free; False: sequences hold too many, and none was evicted."""
    if self.free() < count: return False
    while self.blocks.free < count:
      if self.tree.evict(): continue
      if not self.guests: return False
      self.leave(self.guests[0])
    return True

  def _without_guests(self, take: Callable[..., bool], *args: Any) -> bool:
    """Takes blocks of the window pool by take(*args), at the cost of guests; False: it is refused without them, too."""
    while not take(*args):
      if not self.guests: return False
      self.leave(self.guests[0])
    return True

  def _copied(self, s: Sequence, part: Node, i: int) -> bool:
    """Lets block i of a table be a copy of `part`; False: there is no block for it."""
    self.tree.pin(part)
    self.blocks.hold(part.block)
    if found := self.grow(s, (i + 1) * self.size):
      self.copies.append((part.block, s.table[i]))
      if self.windows is not None: self.windows.copied(s, part, i)
    self.blocks.drop(part.block)
    self.tree.unpin(part)
    return found
