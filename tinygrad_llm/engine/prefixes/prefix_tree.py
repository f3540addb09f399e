"""Prefixes whose KV is in the pool: a tree whose nodes are blocks of token ids, evicted where nobody reads them."""
from __future__ import annotations
from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple
from tinygrad_llm.engine.prefixes.kv_blocks import Blocks
from tinygrad_llm.engine.prefixes.snapshots import Snapshots
from tinygrad_llm.engine.prefixes.windows import Windows

def key(tokens: Sequence[int]) -> bytes:
  """Token ids as 4 bytes each, which dicts compare faster and hold in less memory than a tuple."""
  return array("i", tokens).tobytes()

def common(a: bytes, b: bytes) -> int:
  """How many leading token ids of two keys are equal."""
  x, y = memoryview(a).cast("i"), memoryview(b).cast("i")
  return next((i for i, (p, q) in enumerate(zip(x, y)) if p != q), min(len(x), len(y)))

@dataclass(eq=False, slots=True)
class Node:
  """
  A block of KV behind the blocks of its ancestors. The last block of a finished sequence may be partly filled.

  Children's keys are sorted: the key with most leading ids in common with others stands beside their place.
  window, anchor: see windows.Place.
  """
  key: bytes
  parent: Node | None
  block: int
  exact: int            # its leading positions that prompt pieces wrote, as they wrote all of its ancestors
  depth: int            # blocks up to and with it
  used: int = 0         # when a sequence's path last ended here, on the tree's clock
  pins: int = 0         # sequences whose path ends here
  queued: bool = False  # it is in the tree's heap
  window: int = 0
  anchor: bool = False
  children: dict[bytes, Node] = field(default_factory=dict)
  order: list[bytes] = field(default_factory=list)

class Found(NamedTuple):
  """The longest known prefix: blocks from a node's children down to `path[-1]`, then `positions` of `part`."""
  path: list[Node]
  part: Node | None
  positions: int

class PrefixTree:
  """
  One tree a root key. A path's blocks hold the KV of its token ids; the same ids have one path.

  Eviction takes leaves that end no sequence's path, the least recently used first. So a path goes from its end, and
  its start stays as long as anything hangs on it. The heap may hold nodes that were used since or have got children:
  they are judged again as they come up.

  told: called with each new node.
  """
  def __init__(self, blocks: Blocks, budget: int = 0, windows: Windows | None = None):
    self.told: Callable[[Node], None] | None = None
    self.windows = windows
    self.blocks, self.snapshots, self.evictions = blocks, Snapshots(budget), 0
    self._roots, self._heap, self._clock = dict[str, Node](), list[tuple[int, int, int, Node]](), 0

  def root(self, name: str) -> Node:
    """The root of a name."""
    if name not in self._roots: self._roots[name] = Node(b"", None, 0, self.blocks.size, 0)
    return self._roots[name]

  def find(self, node: Node, tokens: Sequence[int], most: int, exact: bool) -> Found:
    """The longest known prefix below `node` of the first `most` ids. exact: of positions that prompt pieces wrote."""
    size, path = self.blocks.size, list[Node]()
    while (end := (node.depth + 1) * size) <= most:
      child = node.children.get(key(tokens[end - size:end]))
      if child is None or exact and child.exact < size: break
      path.append(node := child)
    return Found(path, *self.part(node, key(tokens[node.depth * size:min(end, most)]), exact))

  def part(self, node: Node, ids: bytes, exact: bool = False) -> tuple[Node | None, int]:
    """The child of `node` that begins with most of these ids, and how many they are."""
    i = bisect_left(node.order, ids)
    near = [(common(k, ids), node.children[k]) for k in node.order[max(i - 1, 0):i + 1]]
    best = max(((min(n, child.exact) if exact else n, child) for n, child in near), key=lambda x: x[0], default=None)
    return (best[1], best[0]) if best is not None and best[0] else (None, 0)

  def insert(self, parent: Node, ids: bytes, block: int, exact: int, window: int = 0) -> Node:
    """
    A new child of `parent`. It takes the place of a partly filled block with the same beginning.

    window: the window pool's block, which a sequence holds; 0: none.
    """
    i = bisect_left(parent.order, ids)
    if i and ids.startswith(before := parent.order[i - 1]): self._remove(parent.children[before])
    node = parent.children[ids] = Node(ids, parent, block, exact, parent.depth + 1, self._tick())
    insort(parent.order, ids)
    self.blocks.keep(block)
    if self.windows is not None: self.windows.keep(node, window)
    self._queue(node)
    if self.told is not None: self.told(node)
    return node

  def replace(self, node: Node, block: int, exact: int, window: int = 0) -> None:
    """Gives a node, which nobody reads, another block with the same ids."""
    self.snapshots.drop(node)
    self.blocks.forget(node.block)
    self.blocks.keep(block)
    if self.windows is not None:
      self.windows.forget(node)
      self.windows.keep(node, window)
    node.block, node.exact = block, exact

  def pin(self, node: Node) -> None:
    """A sequence's path ends at the node."""
    node.pins += 1

  def unpin(self, node: Node) -> None:
    """A sequence's path ends elsewhere now."""
    node.pins, node.used = node.pins - 1, self._tick()
    self._queue(node)

  def evict(self) -> bool:
    """Removes the least recently used leaf; False: there is none. Its block is free if no sequence holds it."""
    while self._heap:
      used, _, _, node = heappop(self._heap)
      node.queued = False
      if node.used > used: self._queue(node)
      elif node.parent is not None and not node.pins and not node.children:
        self.evictions += 1
        self._remove(node)
        return True
    return False

  def prune(self, node: Node) -> None:
    """Removes a node, and those above it, as far as nothing else hangs on them."""
    while (parent := node.parent) is not None and not node.pins and not node.children:
      self._remove(node)
      node = parent

  def _remove(self, node: Node) -> None:
    parent, node.parent = node.parent, None
    assert parent is not None and not node.children and not node.pins
    del parent.children[node.key], parent.order[bisect_left(parent.order, node.key)]
    self._queue(parent)
    self.snapshots.drop(node)
    self.blocks.forget(node.block)
    if self.windows is not None: self.windows.forget(node)

  def _queue(self, node: Node) -> None:
    """Puts a node that can be evicted into the heap, once."""
    if node.queued or node.parent is None or node.pins or node.children: return
    node.queued = True
    heappush(self._heap, (node.used, -node.depth, self._tick(), node))

  def _tick(self) -> int:
    self._clock += 1
    return self._clock
