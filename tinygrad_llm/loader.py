"""From the file's bytes to packed weights on the device."""
from __future__ import annotations
import os, sys, threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import groupby
from math import prod
import numpy as np
from tinygrad import Device, Tensor, Variable, dtypes
from tinygrad.helpers import round_up
from tqdm import tqdm
from tinygrad_llm.captured import captured
from tinygrad_llm.device import empty, fill, has_memory
from tinygrad_llm.errors import InputError
from tinygrad_llm.gguf import GGUF, TensorInfo
from tinygrad_llm.layout import TILE, Layout
from tinygrad_llm.layout import store as store_rows
from tinygrad_llm.quant import QUANT_TYPES, QuantType, layout, pack, quant_type
from tinygrad_llm.weight import ExpertLinear, FusedExperts, Linear, Weight

LEAST_PADDED = 512  # rows of a matrix: TILE - 1 rows of zeros more are 3% of it at most

class Loader:
  """Hands out the tensors of a file. Each is read once, straight into the device's memory; shapes are checked first."""
  _PIECE = 16 << 20  # bytes that are laid out at once
  _READ = 1 << 20  # bytes of a read: what must be repacked stays in the processor's cache

  def __init__(self, file: GGUF, dequantize_weights: bool = False, progress: bool = True):
    self.file, self.dequantize = file, dequantize_weights
    total = sum(info.nbytes for info in file.tensors.values())
    self.bar = tqdm(total=total, unit="B", unit_scale=True, desc="loading", file=sys.stderr, leave=False,
                    disable=None if progress else True)
    self.pool = ThreadPoolExecutor(min(4, os.cpu_count() or 1))  # page faults of fresh memory cost more than the reads
    self.local = threading.local()
    self.weights: list[Weight] = []
    self.pieces: dict[tuple, Tensor] = {}  # memory that rows are read to before they are laid out
    self.stores: dict[tuple, Callable[..., None]] = {}

  def __enter__(self) -> Loader: return self
  def __exit__(self, *_: object) -> None:
    self.pool.shutdown()
    self.bar.close()
    self.pieces.clear()
    self.stores.clear()

  def info(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
    if (info := self.file.tensors.get(name)) is None:
      raise InputError(f"{self.file.path}: {name}: the tensor is missing; the file is damaged")
    if info.shape != shape:
      raise InputError(f"{self.file.path}: {name}: shape {info.shape} should be {shape}; the file is damaged")
    return info

  def has(self, name: str) -> bool: return name in self.file.tensors
  def tensor(self, name: str, *shape: int) -> Weight: return self._load([self.info(name, shape)], shape)
  def vector(self, name: str, n: int) -> Weight: return self.tensor(name, n)
  def matrix(self, name: str, rows: int, n: int) -> Weight: return self.tensor(name, rows, n)

  def array(self, name: str, n: int) -> np.ndarray | None:
    """A small optional F32 tensor (n,) on the host; None where the file has none."""
    if not self.has(name): return None
    if (qt := quant_type(info := self.info(name, (n,)))).name != "F32":
      raise InputError(f"{self.file.path}: {name}: type {qt.name} should be F32; convert the model again")
    self.file.read_into(info, memoryview(raw := bytearray(info.nbytes)))
    if not (values := np.frombuffer(raw, np.float32)).all():
      raise InputError(f"{self.file.path}: {name}: it holds a zero; the file is damaged")
    return values

  def linear(self, outputs: Sequence[tuple[str, int]], n: int, bias: bool = False) -> Linear:
    """
    `outputs`: (name, rows) of matrices on one input of n elements. Neighbours of one type become one Weight.

    A bias that the file has is added; `bias`: it must be there.
    """
    infos = [self.info(f"{name}.weight", (rows, n)) for name, rows in outputs]
    groups = [list(group) for _, group in groupby(infos, key=lambda info: info.type)]
    splits = [[info.shape[0] for info in group] for group in groups]
    weights = [self._load(group, (sum(rows), n)) for group, rows in zip(groups, splits)]
    return Linear(weights, splits, [self._bias(name, (rows,), bias) for name, rows in outputs])

  def experts(self, names: Sequence[str], experts: int, rows: int, n: int, bias: bool = False) -> ExpertLinear:
    """Tensors (experts, rows, n) on one input of n elements; otherwise as linear()."""
    infos = [self.info(f"{name}.weight", (experts, rows, n)) for name in names]
    groups = [list(group) for _, group in groupby(infos, key=lambda info: info.type)]
    weights = [self._load(group, (len(group), experts, rows, n)) for group in groups]
    return ExpertLinear(weights, [self._bias(name, (experts, rows), bias) for name in names])

  def fused_experts(self, name: str, parts: int, experts: int, rows: int, n: int) -> ExpertLinear:
    """The same for a tensor (experts, parts * rows, n): each expert's matrices one after another."""
    weight = self.tensor(f"{name}.weight", experts, parts * rows, n)
    fused = FusedExperts(weight.qtype, weight.stored, (parts, experts, rows, n), weight.names, weight.layout)
    self.weights[-1] = fused
    return ExpertLinear([fused], [None] * parts)

  def _bias(self, name: str, shape: tuple[int, ...], needed: bool) -> Weight | None:
    return self.tensor(f"{name}.bias", *shape) if needed or self.has(f"{name}.bias") else None

  def _load(self, infos: list[TensorInfo], shape: tuple[int, ...]) -> Weight:
    """The rows of the tensors, which are of one type and row length, one after another, as one Weight of `shape`."""
    qt, n = quant_type(infos[0]), shape[-1]
    rows, lay = prod(shape[:-1]), None
    if len(shape) > 1:
      padded = round_up(shape[-2], TILE) if len(shape) == 2 and shape[-2] >= LEAST_PADDED else shape[-2]
      lay = layout(qt, Device[Device.DEFAULT].renderer, padded, n)
    if lay is None:
      stored = empty((rows, qt.row_items(n)), qt.dtype, full=True)
      fill(stored, partial(self._read, infos, 0))
    else: stored = self._laid_out(qt, lay, infos, rows // shape[-2] * padded, n)
    weight = Weight(qt, stored, shape, tuple(info.name for info in infos), lay)
    if self.dequantize and len(shape) > 1 and qt.dtype is dtypes.uint32:
      weight = Weight(QUANT_TYPES[1], weight.float().cast(dtypes.half).realize(), shape, weight.names)
    self.weights.append(weight)
    return weight

  def _laid_out(self, qt: QuantType, lay: Layout, infos: list[TensorInfo], rows: int, n: int) -> Tensor:
    """The rows as (rows / tile, words, tile), read and laid out by pieces."""
    tiles, blocks = rows // lay.tile, n // qt.block
    stored = empty((tiles, lay.row_words(blocks), lay.tile), dtypes.uint32, full=True)
    most = max(1, self._PIECE // (lay.tile * qt.row_nbytes(n)))
    count = next(c for c in range(min(tiles, most), 0, -1) if tiles % c == 0)
    shape = (count * lay.tile, blocks, lay.blocks.units)
    if (piece := self.pieces.get(key := (shape, lay.blocks.dtype))) is None:
      piece = self.pieces[key] = empty(shape, lay.blocks.dtype)
    write = self.stores.setdefault((lay, stored.shape, *key), captured(store_rows, lay))
    for first in range(0, tiles if has_memory() else 0, count):
      fill(piece, partial(self._read, infos, first * lay.tile))
      write(stored, piece, Variable("tile", 0, tiles - count).bind(first) if count < tiles else 0)
    return stored

  def _staging(self, nbytes: int) -> memoryview:
    """The reading thread's own buffer: a fresh one each time would cost its page faults each time."""
    if len(getattr(self.local, "staging", b"")) < nbytes: self.local.staging = bytearray(nbytes)
    return memoryview(self.local.staging)[:nbytes]

  def _read(self, infos: list[TensorInfo], first: int, memory: np.ndarray) -> None:
    """Reads rows first.. of the tensors, one tensor after another, into memory (rows, ..); zeros after the last."""
    memory = memory.reshape(len(memory), -1)
    def part(info: TensorInfo, row: int, out: np.ndarray) -> int:
      qt, n = quant_type(info), info.shape[-1]
      size = qt.row_nbytes(n)
      info = replace(info, offset=info.offset + row * size, nbytes=len(out) * size)
      if out.nbytes == info.nbytes:
        self.file.read_into(info, out.view(np.uint8).data)
      else:
        staged = self._staging(info.nbytes)
        self.file.read_into(info, staged)
        pack(qt, staged, n, out)
      return info.nbytes
    jobs, before, end = [], -first, 0
    step = max(1, self._READ // memory[0].nbytes)
    for info in infos:
      count = prod(info.shape[:-1])
      start, end = max(before, 0), min(before + count, len(memory))
      jobs += [(info, i - before, memory[i:min(i + step, end)]) for i in range(start, end, step)]
      before += count
    memory[max(end, 0):] = 0
    for nbytes in self.pool.map(lambda job: part(*job), jobs): self.bar.update(nbytes)
