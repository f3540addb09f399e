"""
How the packed rows of a matrix lie in memory: as one stream, or as planes.

A row is a sequence of blocks, a block a sequence of fields: scales, low bits, high bits. `stream`: a few blocks'
fields lie together, so that they are whole words, and a tile of rows is interleaved word by word: the words of 16 rows
follow each other, so that a vector has a lane for each row and one thread reads all of a tile in order. Where a type
says so, its fields are in another order than in the file, so that little waits for what comes later. `planes`: each
field of a whole row lies together, so that neighbouring threads read neighbouring words. Planes start at whole loads of
16 bytes, and rows at whole sectors of memory, where that costs little. A field with an even number of such pieces in a
block is two planes, of the even pieces and of the odd ones: what shares a scale is 32 bytes in some types, and so a
thread that wants both halves of it reads next to its neighbours, too.
"""
from __future__ import annotations
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from types import EllipsisType
from tinygrad import Tensor, UOp, dtypes
from tinygrad.dtype import DType
from tinygrad.helpers import ceildiv, round_up
from tinygrad.renderer import Renderer
from tinygrad_llm.patches.vector import lanes

WORD = 4   # bytes
TILE = 16  # rows: 512 bits of words
MOST = 8   # blocks that lie together in a stream: all of their weights are unrolled
PIECE = 16  # bytes of a GPU's load
SECTOR = 32  # bytes that its memory moves at least
LARGER = 1.04  # times what is needed a row with its padding may be

@dataclass(frozen=True)
class Blocks:
  """
  What a type's blocks are made of: fields of whole units, which are words, halves or bytes. ends: of the fields; order:
  of the fields in a stream, if it is another one than in the file, as Row has it.
  """
  unit: int  # bytes
  ends: tuple[int, ...]
  order: tuple[tuple[int, ...], ...] = ()

  @property
  def units(self) -> int: return self.ends[-1]

  @property
  def dtype(self) -> DType: return {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32}[self.unit]

  def fields(self) -> Iterator[tuple[int, int]]:
    """First and last + 1 unit of each."""
    return zip((0, *self.ends), self.ends)

@dataclass(frozen=True)
class Place:
  """
  Where a field lies in a group of blocks: `words` words, in as many equal parts, each `skip` words into one of the
  `step` words that follow each other from word `at` on. first, last: its first and last + 1 unit in a block.
  """
  first: int
  last: int
  at: int
  words: int
  step: int
  parts: int
  skip: int

  def slices(self) -> Iterator[slice]:
    """The words of each part."""
    for first in range(self.at + self.skip, self.at + self.parts * self.step, self.step):
      yield slice(first, first + self.words // self.parts)

  def take(self, groups: Tensor) -> Tensor:
    """(.., words of a group) -> (.., words of the field), a view."""
    runs = groups[..., self.at:self.at + self.parts * self.step]
    runs = runs.reshape(*runs.shape[:-1], self.parts, self.step)
    return runs[..., self.skip:self.skip + self.words // self.parts].flatten(-2)

@dataclass(frozen=True)
class Layout:
  """
  together: the blocks whose fields lie together; tile: the rows that are interleaved; align: bytes that fields start at
  multiples of; whole: bytes that what lies together is a multiple of; halves: whether a field's odd pieces come after
  its even ones, and fields are in the order of their sizes, the largest first.
  """
  blocks: Blocks
  together: int
  tile: int
  align: int = WORD
  whole: int = WORD
  halves: bool = False

  def places(self) -> Iterator[Place]:
    """Of each field, in memory's order."""
    fields = list(self.blocks.fields())
    if self.halves: fields.sort(key=lambda field: field[0] - field[1])
    at = 0
    for parts, *run in self.blocks.order or [(1, i) for i in range(len(fields))]:
      words = [ceildiv((fields[i][1] - fields[i][0]) * self.together * self.blocks.unit, WORD) for i in run]
      step = round_up(sum(words) // parts, self.align // WORD)
      for i, count, before in zip(run, words, accumulate(words, initial=0)):
        yield Place(*fields[i], at, count, step, parts, before // parts)
      at += parts * step

  @property
  def group_words(self) -> int:
    return round_up(max(place.at + place.parts * place.step for place in self.places()), self.whole // WORD)

  def pieces(self, units: int) -> tuple[int, int, int]|None:
    """A field of so many units of a block as (pairs of pieces, 2, units of a piece), if it lies in halves."""
    piece = PIECE // self.blocks.unit
    return (units // piece // 2, 2, piece) if self.halves and units % (2 * piece) == 0 else None

  def row_words(self, blocks: int) -> int: return blocks // self.together * self.group_words

  def rows(self, stored: Tensor) -> Tensor:
    """stored (rows / tile, words of a row, tile) -> (rows, words of a row), a view."""
    return stored.permute(0, 2, 1).reshape(-1, stored.shape[1])

  def repack(self, raw: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """
    raw (rows, blocks, units) of the file's blocks -> for each part of a field its words, lazy (rows / tile, groups,
    words, tile) uint32, and where they are in the words of a group.
    """
    rows, blocks, _ = (int(s) for s in raw.shape)
    per = WORD // self.blocks.unit
    for place in self.places():
      units = raw[:, :, place.first:place.last]
      if pieces := self.pieces(place.last - place.first):
        units = units.reshape(rows, blocks, *pieces).permute(0, 3, 1, 2, 4)
      units = units.reshape(rows, blocks // self.together, -1)
      if pad := place.words * per - int(units.shape[-1]): units = units.pad(((0, 0), (0, 0), (0, pad)))
      units = units.reshape(rows // self.tile, self.tile, -1, place.words, per).cast(dtypes.uint32)
      word = units[..., 0]
      for i in range(1, per): word = word + (units[..., i] << 8 * self.blocks.unit * i)
      word, size = word.permute(0, 2, 3, 1), place.words // place.parts
      for i, part in enumerate(place.slices()): yield part, word[:, :, i * size:(i + 1) * size]

def store(layout: Layout, stored: Tensor, raw: Tensor, first: int | UOp) -> None:
  """Writes raw, as in repack(), to the tiles of stored (rows / tile, words of a row, tile) from `first` on."""
  tiles, count = int(stored.shape[0]), int(raw.shape[0]) // layout.tile
  grouped = stored.reshape(tiles, -1, layout.group_words, layout.tile)
  for part, words in layout.repack(raw):
    grouped.shrink(((first, first + count), None, (part.start, part.stop), None)).assign(words).realize()

def choose(ren: Renderer, blocks: Blocks, rows: int, count: int, nbytes: int) -> Layout|None:
  """
  The layout of rows of `count` blocks for what runs them. None: as in the file, for shapes that do not fit.

  nbytes: of a row in the file.
  """
  if ren.has_local:  # neighbouring threads share a row
    blocks = replace(blocks, order=())
    packed = Layout(blocks, count, 1, halves=True)
    pieces, sectors = (Layout(blocks, count, 1, PIECE, whole, True) for whole in (PIECE, SECTOR))
    if sectors.group_words * WORD <= LARGER * nbytes: return sectors
    return pieces if pieces.group_words <= LARGER * packed.group_words else packed
  if rows % TILE or not lanes.available(ren): return None  # its words would be scattered over scalar operations
  if blocks.unit == WORD: return Layout(blocks if blocks.order else Blocks(WORD, (blocks.units,)), 1, TILE)
  layouts = (Layout(blocks, together, TILE) for together in range(1, MOST + 1) if count % together == 0)
  needed = blocks.units * blocks.unit
  return next((it for it in layouts if it.group_words * WORD <= LARGER * it.together * needed), None)

def unpack(words: Tensor, unit: int) -> Tensor:
  """Words (.., n) uint32 -> the units of so many bytes that they hold (.., n * 4 / unit), uint32."""
  if unit == WORD: return words
  shifts = (Tensor.arange(WORD // unit) * 8 * unit).cast(dtypes.uint32)
  return ((words.unsqueeze(-1) >> shifts) & ((1 << 8 * unit) - 1)).flatten(-2)

class Units:
  """
  The units of all blocks, indexed as a tensor (.., blocks, units of a block) by [..., i] or [..., i:j] within a field.

  packed: (.., words of a row); units are uint32.
  """
  def __init__(self, layout: Layout, packed: Tensor, blocks: int):
    self.layout, self.blocks = layout, blocks
    self.groups = packed.reshape(*packed.shape[:-1], blocks // layout.together, layout.group_words)

  def __getitem__(self, key: tuple[EllipsisType, int | slice]) -> Tensor:
    (i, j), whole = self._part(key[1]), self.layout.blocks
    place = max((place for place in self.layout.places() if place.first <= i), key=lambda place: place.first)
    if j > place.last: raise IndexError(f"units {i} to {j} are not in one field")
    first, size = place.first, place.last - place.first
    field = unpack(place.take(self.groups), whole.unit)[..., :size * self.layout.together]
    if pieces := self.layout.pieces(size):  # (.., 2, blocks, pairs of pieces, units of a piece)
      field = field.reshape(*field.shape[:-2], 2, self.blocks, pieces[0], pieces[2])
      n = field.ndim - 4
      field = field.permute(*range(n), n + 1, n + 2, n, n + 3).flatten(n + 1)
    else: field = field.reshape(*field.shape[:-2], self.blocks, size)
    return field[..., i - first] if isinstance(key[1], int) else field[..., i - first:j - first]

  def _part(self, key: int | slice) -> tuple[int, int]:
    if isinstance(key, int): return key, key + 1
    return key.start or 0, self.layout.blocks.units if key.stop is None else key.stop
