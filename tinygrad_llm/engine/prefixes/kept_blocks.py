"""Blocks of the KV pool that outlive the process: what the prefix tree gets goes to disk, and comes from there."""
from __future__ import annotations
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
import numpy as np
from tinygrad_llm.engine.batch.sequence import Sequence
from tinygrad_llm.engine.prefixes.disk_thread import DiskThread, Reading
from tinygrad_llm.engine.prefixes.kv_bytes import KVBytes
from tinygrad_llm.engine.prefixes.prefix_pool import PrefixPool
from tinygrad_llm.engine.prefixes.prefix_tree import Node, key
from tinygrad_llm.errors import warn

TIME = 0.02    # seconds before a step, at most, that copies of blocks from disk take
BESIDE = 0.003  # copies of blocks to it, where sequences wait for the step
PATIENCE = 5.0  # seconds that a sequence waits for its next block
MANY = 1 << 14  # nodes that wait to be copied, at most

@dataclass
class Arrival:
  """
  A sequence that waits for its prefix from disk.

  node: the end of what the tree has of it so far. placed: blocks of the reading up to there. since: when the last one
  came.
  """
  sequence: Sequence
  reading: Reading
  node: Node
  placed: int = 0
  since: float = field(default_factory=time.perf_counter)

class KeptBlocks:
  """
  Copies blocks between a pool and the disk's thread. The methods are for the engine's thread, or for one with its lock.

  A block from disk enters the tree as if decode steps had written it: requests with exact_prefix do not use it. A block
  that windows have passed, and whose part in the window pool is gone, is not written, nor are those behind it.

  Where the disk gives a sequence nothing for PATIENCE seconds, the sequence begins without it. So do later ones, until
  that reading comes to its end.
  """
  def __init__(self, disk: DiskThread, kv: KVBytes):
    self.disk, self._store, self._kv = disk, disk.store, kv
    self._arrivals, self._fresh = list[Arrival](), deque[Node](maxlen=MANY)
    self._late: Reading | None = None

  def attach(self, pool: PrefixPool, wake: Callable[[], None]) -> None:
    """Begins anew with an empty pool. wake: called, by another thread, when there may be something to do."""
    for arrival in self._arrivals: self.disk.drop(arrival.reading)
    self._pool, self.disk.wake = pool, wake
    self._arrivals.clear()
    self._fresh.clear()
    pool.tree.told = self._fresh.append

  def look_up(self, s: Sequence) -> bool:
    """
    Whether the disk has more of a new sequence's prefix than the tree. exchange() returns the sequence some time later.
    """
    if s.exact_prefix or s.root or self._late is not None and not self._late.ended: return False
    tree, size = self._pool.tree, self._pool.size
    whole = len(s.tokens) // size  # the last block, too: a copy of all but its last position may be used
    path = tree.find(tree.root(s.root), s.tokens, whole * size, False).path
    if self._pool.windows is not None: path = path[:self._pool.windows.complete(path)]
    blocks = [*self._store.chain(key(s.tokens[i * size:(i + 1) * size]) for i in range(whole))][len(path):]
    if not blocks or not self._store.has(blocks[0]): return False
    self._arrivals.append(Arrival(s, self.disk.read(blocks), path[-1] if path else tree.root(s.root)))
    return True

  def exchange(self, is_alone: bool) -> list[Sequence]:
    """
    Puts what was read into the pool, and hands over blocks to be written, more of them if `is_alone`.

    Returns the sequences that wait no longer. It comes before a step, when the pool has no copies to do.
    """
    end, ready = time.perf_counter() + TIME, list[Sequence]()
    for arrival in [*self._arrivals]:
      if not self._arrived(arrival, end): continue
      self._arrivals.remove(arrival)
      self.disk.drop(arrival.reading)
      ready.append(arrival.sequence)
    end = time.perf_counter() + (TIME if is_alone else BESIDE)
    while self._fresh and self.disk.has_room() and self._save(self._fresh[0]):
      self._fresh.popleft()
      if time.perf_counter() > end: break
    return ready

  def has_work(self) -> bool:
    """Whether exchange() would do something now."""
    return bool(self._fresh) and self.disk.has_room() or any(
      a.sequence.cancelled or a.reading.got or a.reading.ended for a in self._arrivals)

  def finish(self) -> None:
    """Hands over all that is to be written, as the process or the model ends."""
    while self._fresh and self._save(self._fresh.popleft(), waits=True): pass

  def _arrived(self, a: Arrival, end: float) -> bool:
    """Places blocks of a sequence until `end`; whether it waits for no more."""
    while not a.sequence.cancelled:
      ended = a.reading.ended  # before the last look: the thread may put a block between
      if time.perf_counter() > end: return False
      if (kv := self.disk.take(a.reading)) is None: return ended or self._is_late(a)
      if not self._place(a, kv): return True
      a.since = time.perf_counter()
    return True

  def _is_late(self, a: Arrival) -> bool:
    """Whether a sequence has waited for too long."""
    if time.perf_counter() - a.since < PATIENCE: return False
    if self._late is None or self._late.ended: warn(
      f"prompt cache {self._store.folder}: nothing came for {PATIENCE:g} s; prompts are read without it meanwhile")
    self._late = a.reading
    return True

  def _place(self, a: Arrival, kv: np.ndarray) -> bool:
    """Puts the next block of a sequence into the pool and the tree; False: there is no room for it."""
    pool, tree = self._pool, self._pool.tree
    ids = a.reading.blocks[a.placed].ids
    windows = pool.windows
    if (node := a.node.children.get(ids)) is None:
      if a.node.depth and a.node.parent is None: return False  # evicted meanwhile
      tree.pin(a.node)
      has_room = pool.room(1)
      tree.unpin(a.node)
      if not has_room: return False
      block, = pool.blocks.take(1, a.node.block)
      self._kv.write(block, kv)
      node = tree.insert(a.node, ids, block, 0)
      pool.blocks.drop(block)
    if windows is not None and not node.window and windows.arrive(node):
      self._kv.write(None, kv, node.window)
      node.exact = 0
    a.node, a.placed = node, a.placed + 1
    return True

  def _save(self, node: Node, waits: bool = False) -> bool:
    """Hands over a node's block and those before it, if it is full and still in the tree; False: there is no room."""
    if self._store.gave_up or node.parent is None or len(node.key) < self._pool.size * 4: return True
    path, at = [node], node.parent
    while at.parent is not None:
      path.append(at)
      at = at.parent
    if at is not self._pool.tree.root(""): return True
    path.reverse()
    blocks = [*self._store.chain(x.key for x in path)]
    def kv(i: int) -> np.ndarray | None:
      whole = self._pool.windows is None or path[i].window
      return self._kv.read(path[i].block, path[i].window) if whole else None
    return self.disk.keep(blocks, kv, waits)
