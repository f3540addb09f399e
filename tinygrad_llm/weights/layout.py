"""
How the packed rows of a matrix lie in memory: as one stream, or as planes.

A row is a sequence of blocks; a block is a sequence of fields: scales, low bits, high bits.

`stream`, for CPUs: the fields of a few blocks lie together, so that each field is whole words. A tile of 16 rows is
interleaved word by word, so that a vector has a lane for each row. One thread reads a tile sequentially. A type may
order its fields differently from the file, so that little of the decoding waits for words that come later.

`planes`, for GPUs: each field of a whole row lies together, so that neighbouring threads read neighbouring words.
Planes are aligned to loads of 16 bytes and rows to memory sectors, where the padding costs little. A field with an even
number of 16-byte pieces in a block becomes two planes, one of the even pieces and one of the odd ones. In some types 32
bytes share a scale: a thread that wants both halves then reads next to its neighbours, too.
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
TILE = 16  # interleaved rows: a 512-bit vector of words
MOST = 8   # most blocks that lie together in a stream: all of their weights are unrolled
PIECE = 16  # bytes of one load on a GPU
SECTOR = 32  # bytes of the smallest transfer from GPU memory
LARGER = 1.04  # largest size of a row with its padding, relative to the size it needs

@dataclass(frozen=True)
class Blocks:
  """
  The fields of a type's blocks, in units of 1, 2 or 4 bytes (a byte, a half or a word).

  ends: the end of each field in units. order: the fields' order in a stream if it differs from the file's; see
  quants/row.py, `stream`.
  """
  unit: int  # bytes
  ends: tuple[int, ...]
  order: tuple[tuple[int, ...], ...] = ()

  @property
  def units(self) -> int: return self.ends[-1]

  @property
  def dtype(self) -> DType: return {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32}[self.unit]

  def fields(self) -> Iterator[tuple[int, int]]:
    """The first and the last + 1 unit of each field."""
    return zip((0, *self.ends), self.ends)

@dataclass(frozen=True)
class Place:
  """
  Where a field lies in a group of blocks.

  The field's `words` words are split into `parts` equal parts. Part i lies `skip` words into the i-th run of `step`
  words, counted from word `at` of the group. first, last: the field's first and last + 1 unit in a block.
  """
  first: int
  last: int
  at: int
  words: int
  step: int
  parts: int
  skip: int

  def slices(self) -> Iterator[slice]:
    """Where each part lies in the words of a group."""
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
  How blocks are grouped, interleaved and aligned.

  `together`: blocks of a group, whose fields lie together. `tile`: rows that are interleaved. `align`: fields start at
  multiples of so many bytes. `whole`: a group's size is a multiple of so many bytes. `halves`: a field's odd pieces
  come after its even ones, and fields are sorted by size, the largest first.
  """
  blocks: Blocks
  together: int
  tile: int
  align: int = WORD
  whole: int = WORD
  halves: bool = False

  def places(self) -> Iterator[Place]:
    """The place of each field, in memory order."""
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
    """A field of so many units of a block as (pairs of pieces, 2, units of a piece); None if it has no halves."""
    piece = PIECE // self.blocks.unit
    return (units // piece // 2, 2, piece) if self.halves and units % (2 * piece) == 0 else None

  def row_words(self, blocks: int) -> int: return blocks // self.together * self.group_words

  def rows(self, stored: Tensor) -> Tensor:
    """stored (rows / tile, words of a row, tile) -> (rows, words of a row), a view."""
    return stored.permute(0, 2, 1).reshape(-1, stored.shape[1])

  def repack(self, raw: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """
    Repacks the file's blocks, one part of a field at a time.

    raw: (rows, blocks, units). Yields for each part its place in the words of a group, and its words: lazy, uint32,
    (rows / tile, groups, words, tile).
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
  """Writes raw, as in repack(), into stored (rows / tile, words of a row, tile), from tile `first` on."""
  tiles, count = int(stored.shape[0]), int(raw.shape[0]) // layout.tile
  grouped = stored.reshape(tiles, -1, layout.group_words, layout.tile)
  for part, words in layout.repack(raw):
    grouped.shrink(((first, first + count), None, (part.start, part.stop), None)).assign(words).realize()

def choose(ren: Renderer, blocks: Blocks, rows: int, count: int, nbytes: int) -> Layout|None:
  """
  The layout of rows of `count` blocks for a renderer's device; None for shapes that do not fit: as in the file.

  nbytes: bytes of a row in the file.
  """
  if ren.has_local:  # neighbouring threads share a row
    blocks = replace(blocks, order=())
    packed = Layout(blocks, count, 1, halves=True)
    pieces, sectors = (Layout(blocks, count, 1, PIECE, whole, True) for whole in (PIECE, SECTOR))
    if sectors.group_words * WORD <= LARGER * nbytes: return sectors
    return pieces if pieces.group_words <= LARGER * packed.group_words else packed
  if rows % TILE or not lanes.available(ren): return None  # interleaved words would be scattered over scalar operations
  if blocks.unit == WORD: return Layout(blocks if blocks.order else Blocks(WORD, (blocks.units,)), 1, TILE)
  layouts = (Layout(blocks, together, TILE) for together in range(1, MOST + 1) if count % together == 0)
  needed = blocks.units * blocks.unit
  return next((it for it in layouts if it.group_words * WORD <= LARGER * it.together * needed), None)

def unpack(words: Tensor, unit: int) -> Tensor:
  """Splits words (.., n) uint32 into units of `unit` bytes: (.., n * 4 / unit), uint32."""
  if unit == WORD: return words
  shifts = (Tensor.arange(WORD // unit) * 8 * unit).cast(dtypes.uint32)
  return ((words.unsqueeze(-1) >> shifts) & ((1 << 8 * unit) - 1)).flatten(-2)

class Units:
  """
  The units of all blocks, indexed like a tensor (.., blocks, units of a block): [..., i], or [..., i:j] in one field.

  packed: (.., words of a row). Units are uint32. IndexError for a slice across fields.
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
