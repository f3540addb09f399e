"""From the file's bytes to packed weights on the device."""
from __future__ import annotations
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
import numpy as np
from tinygrad import dtypes
from tqdm import tqdm
from tinygrad_llm.device import empty, fill
from tinygrad_llm.errors import InputError
from tinygrad_llm.gguf import GGUF, TensorInfo
from tinygrad_llm.quant import QUANT_TYPES, dequantize, pack, reference
from tinygrad_llm.weight import Linear, Weight

class Loader:
  """Hands out the tensors of a file. Each is read once, straight into the device's memory; shapes are checked first."""
  _READ = 16 << 20  # bytes read at a time: staging stays small beside the model

  def __init__(self, file: GGUF, dequantize_weights: bool = False, progress: bool = True):
    self.file, self.dequantize = file, dequantize_weights
    total = sum(info.nbytes for info in file.tensors.values())
    self.bar = tqdm(total=total, unit="B", unit_scale=True, desc="loading", file=sys.stderr, leave=False,
                    disable=None if progress else True)
    self.weights: list[Weight] = []

  def __enter__(self) -> Loader: return self
  def __exit__(self, *_: object) -> None: self.bar.close()

  def info(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
    if (info := self.file.tensors.get(name)) is None:
      raise InputError(f"{self.file.path}: {name}: the tensor is missing; the file is damaged")
    if info.shape != shape:
      raise InputError(f"{self.file.path}: {name}: shape {info.shape} should be {shape}; the file is damaged")
    return info

  def vector(self, name: str, n: int) -> Weight: return self._load([self.info(name, (n,))])
  def matrix(self, name: str, rows: int, n: int) -> Weight: return self._load([self.info(name, (rows, n))])

  def array(self, name: str, n: int) -> np.ndarray | None:
    """A small optional tensor (n,) as float32 on the host; None where the file has none."""
    if name not in self.file.tensors: return None
    info = self.info(name, (n,))
    self.file.read_into(info, memoryview(raw := bytearray(info.nbytes)))
    return reference(QUANT_TYPES[info.type], raw, n)[0]

  def linear(self, outputs: Sequence[tuple[str, int]], n: int, bias: bool = False) -> Linear:
    """`outputs`: (name, rows) of matrices on one input of n elements. Neighbours of one type become one Weight."""
    infos = [self.info(f"{name}.weight", (rows, n)) for name, rows in outputs]
    groups = [list(group) for _, group in groupby(infos, key=lambda info: info.type)]
    biases = [self.vector(f"{name}.bias", rows) if bias else None for name, rows in outputs]
    splits = [[info.shape[0] for info in group] for group in groups]
    return Linear([self._load(group) for group in groups], splits, biases)

  def _load(self, infos: list[TensorInfo]) -> Weight:
    qt, n = QUANT_TYPES[infos[0].type], infos[0].shape[-1]
    rows = [info.shape[0] if len(info.shape) > 1 else 1 for info in infos]
    shape: tuple[int, ...] = (sum(rows), n) if len(infos[0].shape) > 1 else (n,)
    packed = empty((sum(rows), qt.row_items(n)), qt.dtype)
    fill(packed, lambda memory: self._read(infos, rows, memory))
    if len(shape) == 1: packed = packed.reshape(-1)
    if self.dequantize and len(shape) == 2 and qt.dtype is dtypes.uint32:
      packed, qt = dequantize(qt, packed, n).cast(dtypes.half).realize(), QUANT_TYPES[1]
    self.weights.append(weight := Weight(qt, packed, shape, tuple(info.name for info in infos)))
    return weight

  def _read(self, infos: list[TensorInfo], rows: list[int], memory: np.ndarray) -> None:
    row = 0
    for info, count in zip(infos, rows):
      qt, n = QUANT_TYPES[info.type], info.shape[-1]
      size = qt.row_nbytes(n)
      step = max(1, self._READ // size)
      staging = memoryview(bytearray(min(step, count) * size))
      for first in range(0, count, step):
        part = staging[:(last := min(first + step, count)) * size - first * size]
        self.file.read_into(replace(info, offset=info.offset + first * size, nbytes=len(part)), part)
        pack(qt, part, n, memory[row + first:row + last])
        self.bar.update(len(part))
      row += count
