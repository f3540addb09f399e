"""Stores a file's rows as tensors: allocates their memory, chooses a layout, and repacks the rows piece by piece."""
from __future__ import annotations
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from tinygrad import Device, Tensor, Variable, dtypes
from tinygrad.helpers import ceildiv, round_up
from tinygrad.renderer import Renderer
from tinygrad_llm.device.buffers import empty, fill, has_memory
from tinygrad_llm.device.captured import captured
from tinygrad_llm.files.gguf import TensorInfo
from tinygrad_llm.quants.table import QuantType, quant_type
from tinygrad_llm.weights.decode import layout
from tinygrad_llm.weights.layout import TILE, Layout, store
from tinygrad_llm.weights.rows import RowReader

LEAST_PADDED = 512  # rows of a matrix that is padded: TILE - 1 rows of zeros are 3% of it at most
THREADS = 8  # share the tiles of a large matrix evenly
SHARED = 64  # tiles for each of these threads, at least: so few tiles of zeros are 1.6% of the matrix at most
PIECE = 16 << 20  # bytes that are repacked at once, about
TILES = 16  # a piece has a multiple of so many tiles, which threads share

def padded(rows: int) -> int:
  """How many rows a matrix of `rows` rows has in memory: whole tiles, which 2, 4 or 8 threads share if it has many."""
  if rows < LEAST_PADDED: return rows
  tiles, threads = ceildiv(rows, TILE), THREADS
  while threads > 1 and tiles < threads * SHARED: threads //= 2
  return round_up(tiles, threads) * TILE

def held_as(qt: QuantType, shape: tuple[int, ...], ren: Renderer) -> tuple[tuple[int, ...], Layout|None]:
  """
  The shape in which a renderer's device holds a tensor of `shape`, and its layout, if it has one.

  The shape is (rows / tile, words of a row, tile) with a layout, else (rows, items of a row).
  """
  if len(shape) == 2: shape = padded(shape[0]), shape[1]
  n, rows = shape[-1], prod(shape[:-1])
  if len(shape) > 1 and (lay := layout(qt, ren, shape[-2], n)) is not None:
    return (rows // lay.tile, lay.row_words(n // qt.block), lay.tile), lay
  return (rows, qt.row_items(n)), None

def piece_shape(qt: QuantType, lay: Layout, tiles: int, n: int) -> tuple[int, int, int]:
  """The staging memory of `tiles` tiles of rows of n weights: (rows of a piece, blocks, units of a block)."""
  pieces = ceildiv(tiles * lay.tile * qt.row_nbytes(n), PIECE)
  return min(tiles, round_up(ceildiv(tiles, pieces), TILES)) * lay.tile, n // qt.block, lay.blocks.units

class WeightMemory:
  """Reads each tensor once; where its layout is the file's, straight into the device's memory."""
  def __init__(self, rows: RowReader):
    self.rows = rows
    self.pieces: dict[tuple, Tensor] = {}  # staging memory: rows are read into it, then repacked
    self.stores: dict[tuple, Callable[..., None]] = {}

  def hold(self, infos: Sequence[TensorInfo], shape: tuple[int, ...]) -> tuple[Tensor, Layout|None]:
    """
    Stores the rows of tensors that share a type and a row length, one after another; returns them and their layout.

    shape: all rows as one tensor. The stored tensor's shape is held_as() of it.
    """
    held, lay = held_as(qt := quant_type(infos[0]), shape, Device[Device.DEFAULT].renderer)
    if lay is not None: return self._laid_out(qt, lay, infos, held, shape[-1]), lay
    stored = empty(held, qt.dtype, full=True)
    fill(stored, partial(self.rows.read, infos, 0))
    return stored, None

  def _laid_out(self, qt: QuantType, lay: Layout, infos: Sequence[TensorInfo], held: tuple[int, ...], n: int) -> Tensor:
    """The rows as (rows / tile, words, tile), read and repacked piece by piece."""
    tiles, stored, shape = held[0], empty(held, dtypes.uint32, full=True), piece_shape(qt, lay, held[0], n)
    count = shape[0] // lay.tile
    if (piece := self.pieces.get(key := (shape, lay.blocks.dtype))) is None:
      piece = self.pieces[key] = empty(shape, lay.blocks.dtype)
    write = self.stores.setdefault((lay, stored.shape, *key), captured(store, lay))
    for i in range(0, tiles if has_memory() else 0, count):
      first = min(i, tiles - count)  # the last piece may repack some rows again
      fill(piece, partial(self.rows.read, infos, first * lay.tile))
      write(stored, piece, Variable("tile", 0, tiles - count).bind(first) if count < tiles else 0)
    return stored
