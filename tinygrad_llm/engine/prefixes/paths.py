"""Where the sequences that hold blocks stand in the prefix tree."""
from __future__ import annotations
from dataclasses import dataclass, replace
from tinygrad_llm.engine.prefixes.prefix_tree import Found, Node, PrefixTree, key
from tinygrad_llm.engine.batch.sequence import Sequence

@dataclass
class Path:
  """
  A sequence's path in the tree, which ends at `node`. The sequence's table begins with the blocks of the path.

  enters: the sequence's next full block enters the tree. False: its further blocks are its own.
  """
  node: Node
  enters: bool = True

class Paths:
  """
  The paths of all sequences that have begun.

  stateful: a sequence begins only at nodes with a snapshot
  """
  def __init__(self, tree: PrefixTree, stateful: bool = False):
    self.tree, self.blocks, self.size, self.stateful = tree, tree.blocks, tree.blocks.size, stateful
    self.windows = tree.windows
    self._paths = dict[Sequence, Path]()

  def __contains__(self, s: Sequence) -> bool: return s in self._paths

  def start(self, s: Sequence) -> None:
    """Puts a new sequence at the root."""
    self._paths[s] = path = Path(self.tree.root(s.root))
    self.tree.pin(path.node)

  def depth(self, s: Sequence) -> int:
    """Blocks of a sequence that are in the tree."""
    return self._paths[s].node.depth

  def find(self, s: Sequence, may_copy: bool = True) -> Found:
    """
    The longest prefix of a sequence that the tree knows, without the last token, whose logits are wanted.

    Without the last two for an exact prefix: a piece reads them, since a decode step of the last would round otherwise.

    may_copy: recurrent layers may begin at a snapshot in a block's middle.
    """
    if not (path := self._paths[s]).enters: return Found([], None, 0)
    found = self.tree.find(path.node, s.tokens, len(s.tokens) - 1 - s.exact_prefix, s.exact_prefix)
    part = found.part
    if part is not None and self._sees(s, found.path) == len(found.path) and (self.windows is None or part.window):
      has_state = may_copy and part in self.tree.snapshots and 4 * found.positions == len(part.key)
      if has_state or not self.stateful: return found
    return Found(found.path[:self._usable(s, found.path)], None, 0)

  def _sees(self, s: Sequence, path: list[Node]) -> int:
    """Blocks behind which a sequence finds all that windows see."""
    return len(path) if self.windows is None else self.windows.usable(self._paths[s].node.depth, path)

  def _usable(self, s: Sequence, path: list[Node]) -> int:
    """The same, with a snapshot of recurrent states."""
    while (depth := self._sees(s, path)):
      if self.stateful: depth = next((i for i in range(depth, 0, -1) if path[i - 1] in self.tree.snapshots), 0)
      if depth == len(path): break
      path = path[:depth]
    return depth

  def move(self, s: Sequence, node: Node) -> None:
    """Lets a sequence's path end at a deeper node."""
    path = self._paths[s]
    self.tree.pin(node)
    self.tree.unpin(path.node)
    path.node = node

  def enter(self, s: Sequence) -> None:
    """
    Enters the blocks below s.fed that are full.

    Where the tree has the same ids, written the same way, the sequence goes on with the tree's block. A block that
    prompt pieces wrote replaces one that they did not write and nobody reads. Else the sequence's path ends here.
    """
    path = self._paths[s]
    while path.enters and (i := path.node.depth) < s.fed // self.size:
      ids, exact, block = key(s.tokens[i * self.size:(i + 1) * self.size]), self._exact(s, i), s.table[i]
      child = path.node.children.get(ids)
      if child is None: child = self.tree.insert(path.node, ids, block, exact, self._window(s, i))
      elif child.exact == exact and (exact == self.size or not s.exact_prefix):
        self.blocks.hold(child.block)
        self.blocks.drop(block)
        s.table[i] = child.block
        if self.windows is not None: self.windows.share(s, i, child)
      elif child.exact < exact and not self.blocks.is_held(child.block):
        self.tree.replace(child, block, exact, self._window(s, i))
      else: path.enters = False
      if path.enters: self.move(s, child)

  def enter_part(self, s: Sequence) -> Node | None:
    """
    Enters the last block of a sequence that ends, if it is partly filled and the tree does not have its ids.

    Returns the node of just these ids, if there is one.
    """
    path, i, filled = self._paths[s], s.fed // self.size, s.fed % self.size
    if not path.enters or not filled: return None
    ids = key(s.tokens[i * self.size:s.fed])
    if self.tree.part(path.node, ids)[1] == filled:
      if (node := path.node.children.get(ids)) is not None and self.windows is not None: self.windows.share(s, i, node)
      return node
    return self.tree.insert(path.node, ids, s.table[i], min(self._exact(s, i), filled), self._window(s, i))

  def end(self, s: Sequence) -> Node | None:
    """The node whose positions are the sequence's first s.fed ones; None: there is none."""
    node = self._paths[s].node
    return node if s.fed and node.depth * self.size == s.fed else None

  def copy(self, s: Sequence, fork: Sequence) -> None:
    """Lets a fork stand where `s` stands."""
    self._paths[fork] = path = replace(self._paths[s])
    self.tree.pin(path.node)

  def leave(self, s: Sequence) -> Node:
    """Forgets a sequence that ends; the node at which its path ended."""
    node = self._paths.pop(s).node
    self.tree.unpin(node)
    return node

  def _window(self, s: Sequence, i: int) -> int:
    """The window pool's block of a sequence's block i; 0: there is none."""
    return 0 if self.windows is None else s.window[i]

  def _exact(self, s: Sequence, i: int) -> int:
    """Leading positions of block i that prompt pieces wrote."""
    return min(max(s.written - i * self.size, 0), self.size)
