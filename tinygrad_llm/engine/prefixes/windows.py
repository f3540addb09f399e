"""The blocks of layers with a sliding window: a pool of their own, from which sequences hold what they still see."""
from __future__ import annotations
from collections.abc import Sequence as Items
from typing import NamedTuple, Protocol
from tinygrad.helpers import ceildiv
from tinygrad_llm.engine.batch.sequence import Sequence
from tinygrad_llm.engine.prefixes.kv_blocks import Blocks
from tinygrad_llm.nn.cache.place import BLOCK

MARGIN = 2    # blocks of an answer that must have room when a sequence begins
RUNNING = 16  # windows in a pool: eight that are read, as many that are kept

class WindowSize(NamedTuple):
  """
  The pool of layers with a window. blocks: block 0 included. positions: what a token sees, its own included.

  piece: most positions of a prompt's piece.
  """
  blocks: int
  positions: int
  piece: int

def held_blocks(positions: int, piece: int, context: int, sequences: int, size: int = BLOCK) -> int:
  """
  Blocks of `size` positions that so many sequences hold in such a pool, one of them with a piece.

  0: there is no such pool, as no layer has a window, or one window takes more than half of a context.
  """
  most = _held(positions, size)
  return 0 if not positions or 2 * most > ceildiv(context, size) else sequences * most + ceildiv(piece, size)

def window_blocks(blocks: int, positions: int, piece: int, context: int, size: int = BLOCK) -> int:
  """
  Blocks of such a pool beside one of `blocks` blocks, both without block 0; 0: there is none.

  It has RUNNING windows, but at most half as many blocks as the other pool.
  """
  count = min(held_blocks(positions, piece, context, RUNNING, size), blocks // 2)
  count = max(count, least := held_blocks(positions, piece, context, 1, size))
  return count if least and count < blocks else 0

def _held(positions: int, size: int) -> int:
  """Blocks that a sequence holds between two steps: what its last block's first position sees, that block, the next."""
  return ceildiv(positions - 1, size) + 2

class Place(Protocol):
  """Where the tree keeps a block. window: its number; 0: it has none. anchor: sequences may begin behind it again."""
  window: int
  anchor: bool

class Windows:
  """
  The blocks of the window pool, beside the blocks of the other layers for the same positions.

  Entry i of a sequence's `window` is the block of positions i * size and those after; 0: it was given back, or never
  there. Between two steps a sequence holds only what its next token sees. The tree keeps blocks that were given back
  until others need them. First go blocks that a sequence has passed, the oldest first. Then go the anchors, the least
  recently used one first: ends of prompts, ends of answers, and places where sequences began.

  Sequences reserve what they hold between two steps. A piece of a prompt holds `spare` blocks more, and there is one
  at a time. So a block that a reservation covers can be had at any time.

  copies: as in PrefixPool. evictions: blocks that made room for others.
  """
  def __init__(self, window: WindowSize, size: int):
    self.blocks, self.size, self.positions = Blocks(window.blocks, size), size, window.positions
    self.most, self.spare = _held(window.positions, size), ceildiv(window.piece, size)
    assert self.most + self.spare <= self.blocks.total, f"{self.blocks.total} blocks hold no window"
    self.copies, self.evictions = list[tuple[int | None, int]](), 0
    self._reserved, self._places = dict[Sequence, int](), dict[int, Place]()
    self._passed, self._anchors = dict[int, None](), dict[int, None]()  # without a reader, in order of their last use

  def first(self, position: int) -> int:
    """The first block that tokens see from the start of the position's block on."""
    return max(0, position // self.size * self.size - self.positions + 1) // self.size

  # *** of sequences

  def begin(self, s: Sequence) -> bool:
    """Reserves what a sequence needs for its tokens, and for MARGIN blocks more at first; False: there is no room."""
    return self.reserve(s, len(s.tokens) + (0 if s in self._reserved else MARGIN * self.size))

  def reserve(self, s: Sequence, positions: int) -> bool:
    """Reserves what a sequence of so many positions holds; False: others have reserved too much."""
    need = min(self.most, ceildiv(positions, self.size))
    more = need - self._reserved.get(s, 0)
    if more > 0:
      if sum(self._reserved.values()) + more > self.blocks.total - self.spare: return False
      self._reserved[s] = need
    return True

  def grow(self, s: Sequence, positions: int) -> bool:
    """Reserves so many positions, and takes the blocks for them if the next step writes them; False: as begin()."""
    if s not in self._reserved or not self.reserve(s, positions): return False
    if positions <= s.fed + s.launched + 1: self.cover(s, ceildiv(positions, self.size))
    return True

  def cover(self, s: Sequence, blocks: int) -> None:
    """Lets s.window have so many entries."""
    if (missing := blocks - len(s.window)) <= 0: return
    found = self.room(missing)
    assert found, "more blocks are held than were reserved"
    s.window += self.blocks.take(missing, s.window[-1] if s.window else 0)

  def piece(self, s: Sequence, count: int) -> int:
    """Takes the blocks of a piece of at most `count` positions from s.fed on; how many are in neighbouring blocks."""
    self.cover(s, end := ceildiv(s.fed + count, self.size))
    after = s.fed // self.size + 1
    while after < end and s.window[after] == s.window[after - 1] + 1: after += 1
    for block in s.window[after:]: self.blocks.drop(block)
    del s.window[after:]
    return min(count, after * self.size - s.fed)

  def go_on(self, s: Sequence, first: int, path: Items[Place], position: int) -> None:
    """Lets a sequence go on at `position`, with the tree's blocks of a path that begins at block `first`."""
    seen = self.first(position)
    for i, place in enumerate(path, first):
      if (block := place.window if i >= seen else 0): self.hold(place)
      if i < len(s.window) and s.window[i]: self.blocks.drop(s.window[i])
      s.window[i:i + 1] = [block]

  def copied(self, s: Sequence, part: Place, i: int) -> None:
    """Lets block i of a sequence be a copy of a block that the tree keeps."""
    self.hold(part)
    self.cover(s, i + 1)
    self.copies.append((part.window, s.window[i]))
    self._drop(part.window, True)

  def fork(self, s: Sequence, fork: Sequence) -> bool:
    """Lets a fork hold what `s` sees, and a copy of its partly filled block; False: as reserve()."""
    if not self.reserve(fork, s.fed + 1): return False
    full, part = divmod(s.fed, self.size)
    fork.window = [block if i >= self.first(s.fed) else 0 for i, block in enumerate(s.window[:full])]
    for block in fork.window:
      if block: self.blocks.hold(block)
    if part:
      self.cover(fork, full + 1)
      self.copies.append((s.window[full], fork.window[full]))
    return True

  def passed(self, s: Sequence) -> None:
    """Gives back the blocks that the token at s.fed does not see."""
    of_prompt = range(self.first(s.prompt), s.prompt // self.size + 1)
    i = min(self.first(s.fed), len(s.window)) - 1
    while i >= 0 and s.window[i]:
      self._drop(s.window[i], i in of_prompt)
      s.window[i] = 0
      i -= 1

  def release(self, s: Sequence) -> None:
    """Gives all back; after an error, what nobody else has is zeroed."""
    held, s.window = [block for block in s.window if block], []
    for block in held: self._drop(block, True)
    self._reserved.pop(s, None)
    if s.error is not None: self.copies += [(None, block) for block in held if self.blocks.is_free(block)]

  # *** of the tree

  def usable(self, first: int, path: Items[Place]) -> int:
    """Blocks of a path from block `first` on, as many as a sequence can begin behind: all that it sees is there."""
    best = run = 0
    for n, place in enumerate(path, 1):
      run = run + 1 if place.window else 0
      if run >= first + n - max(first, self.first((first + n) * self.size)): best = n
    return best

  def complete(self, path: Items[Place]) -> int:
    """Blocks of a path from a root on, up to the first that is not there and that its end sees."""
    first = self.first(len(path) * self.size)
    return next((i for i, place in enumerate(path[first:], first) if not place.window), len(path))

  def keep(self, place: Place, block: int) -> None:
    """The tree keeps a sequence's block."""
    if not block: return
    self.blocks.keep(block)
    self._places[block], place.window = place, block

  def forget(self, place: Place) -> None:
    """The tree keeps the block no more."""
    if not (block := place.window): return
    place.window, place.anchor = 0, False
    del self._places[block]
    self._passed.pop(block, None)
    self._anchors.pop(block, None)
    self.blocks.forget(block)

  def share(self, s: Sequence, i: int, place: Place) -> None:
    """A sequence goes on with the tree's block for its own block i, or the tree keeps that if it has none."""
    if not (own := s.window[i]): return
    if not place.window: self.keep(place, own)
    elif place.window != own:
      self.hold(place)
      self.blocks.drop(own)
      s.window[i] = place.window

  def arrive(self, place: Place) -> bool:
    """Gives a place of the tree a block that no sequence holds, to be written now; False: sequences hold all."""
    if self.blocks.total - self.blocks.referenced < 1: return False
    self.room(1)
    block, = self.blocks.take(1)
    self.keep(place, block)
    self._drop(block, False)
    return True

  def hold(self, place: Place) -> None:
    """A sequence begins at a block of the tree."""
    self._passed.pop(place.window, None)
    self._anchors.pop(place.window, None)
    self.blocks.hold(place.window)
    place.anchor = True

  def room(self, count: int) -> bool:
    """Evicts until so many blocks are free."""
    while self.blocks.free < count:
      if not self.evict(): return False
    return True

  def evict(self) -> bool:
    """Lets the tree forget a block that nobody reads; False: there is none."""
    if (block := next(iter(self._passed or self._anchors), None)) is None: return False
    self.evictions += 1
    self.forget(self._places[block])
    return True

  def _drop(self, block: int, anchor: bool) -> None:
    self.blocks.drop(block)
    if (place := self._places.get(block)) is None: return
    place.anchor |= anchor
    if not self.blocks.is_held(block): (self._anchors if place.anchor else self._passed)[block] = None
