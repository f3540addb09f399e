"""Loads a file's tensors by name as the weights that layers use; shapes and types are checked first."""
from __future__ import annotations
import math
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import groupby
from typing import Any
import numpy as np
from tinygrad import dtypes
from tinygrad_llm.errors import InputError, warn
from tinygrad_llm.files.gguf import GGUF, TensorInfo
from tinygrad_llm.files.purpose import layers_ahead
from tinygrad_llm.quants.table import QUANT_TYPES, quant_type, reference
from tinygrad_llm.weights.linear import ExpertLinear, Linear
from tinygrad_llm.weights.memory import WeightMemory
from tinygrad_llm.weights.rows import RowReader
from tinygrad_llm.weights.weight import FusedExperts, Weight

FLOATS = ("F32", "F16", "BF16", "F64")

def is_left_out(name: str, ahead: Collection[str]) -> bool:
  """
  Whether no model uses a tensor of this name: scales of activations, indexers, the head of a reranker, and the layers
  `ahead` (purpose.layers_ahead).
  """
  return name.endswith(".input_scale") or name.startswith(("cls.", *ahead)) or ".indexer." in name

class Loader:
  """
  Hands out the tensors of a file, each once.

  `weights`: all loaded so far, in order, by the names of the tensors whose rows they hold. `meanwhile`: other work for
  the model in another thread; its error ends the loading.
  """
  def __init__(self, file: GGUF, dequantize_weights: bool = False, progress: bool = True,
               meanwhile: Future[Any] | None = None):
    self.file, self.dequantize, self.meanwhile = file, dequantize_weights, meanwhile
    self.rows = RowReader(file, progress)
    self.memory = WeightMemory(self.rows)
    self.weights: dict[tuple[str, ...], Weight] = {}
    self.asked: set[str] = set()

  def __enter__(self) -> Loader: return self
  def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
    self.rows.close()
    del self.memory  # with its staging memory
    if failed is None: self._check_unused()

  def _check_unused(self) -> None:
    """
    Warns of layers of multi-token prediction, and of other tensors that nobody asked for and that are not left out.

    InputError for the scale of a weight that does not support one.
    """
    if ahead := layers_ahead(self.file.tensors):
      warn(f"{self.file.path}: it has {len(ahead)} layer{'s' * (len(ahead) > 1)} of multi-token prediction, which "
           f"{'are' if len(ahead) > 1 else 'is'} not used")
    unused = [name for name in self.file.tensors if name not in self.asked and not is_left_out(name, ahead)]
    for name in unused:
      if name.endswith(".scale") and f"{name.removesuffix('scale')}weight" in self.asked:
        raise InputError(f"{self.file.path}: {name}: a scale of this tensor is not supported; use another quant type")
    if unused:
      some = ", ".join(ascii(name)[1:-1][:80] for name in unused[:3]) + (", .." if len(unused) > 3 else "")
      warn(f"{self.file.path}: {len(unused)} of {len(self.file.tensors)} tensors are not used: {some}")

  def info(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
    self.asked.add(name)
    self.check(name)
    if (info := self.file.tensors[name]).shape != shape:
      raise InputError(f"{self.file.path}: {name}: shape {info.shape} should be {shape}; the file is damaged")
    return info

  def has(self, name: str) -> bool: return name in self.file.tensors

  def check(self, name: str) -> None:
    """InputError if the file has no tensor of this name."""
    if not self.has(name): raise InputError(f"{self.file.path}: {name}: the tensor is missing; the file is damaged")

  def shape(self, name: str) -> tuple[int, ...]:
    """The shape of a tensor. InputError if the file has no such tensor."""
    self.check(name)
    return self.file.tensors[name].shape

  def optional(self, name: str, *shape: int) -> Weight | None:
    """The tensor of this name; None where the file has none."""
    return self.tensor(name, *shape) if self.has(name) else None

  def tensor(self, name: str, *shape: int) -> Weight: return self._load([self.info(name, shape)], shape)

  def reshaped(self, name: str, *shape: int) -> Weight:
    """A tensor that files hold with different axes; the number of elements has to be right."""
    return self.stacked([name], *shape)

  def stacked(self, names: Sequence[str], *shape: int) -> Weight:
    """The same for some tensors of such a shape, one after another along its first axis; they have to share a type."""
    infos = self._of_one_type([self._reshaped(name, shape) for name in names], names[0])
    return self._load(infos, (len(infos) * shape[0], *shape[1:]))

  def _reshaped(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
    found = self.file.tensors.get(name)
    if found is None or math.prod(found.shape) != math.prod(shape): return self.info(name, shape)  # which fails
    return replace(self.info(name, found.shape), shape=shape)

  def vector(self, name: str, n: int) -> Weight: return self.tensor(name, n)
  def matrix(self, name: str, rows: int, n: int) -> Weight: return self.tensor(name, rows, n)

  def array(self, name: str, n: int) -> np.ndarray | None:
    """
    A small optional tensor of floats (n,) on the host, float32; None where the file has none.

    InputError for another type, a zero or NaN.
    """
    if not self.has(name): return None
    if (qt := quant_type(info := self.info(name, (n,)))).name not in FLOATS:
      raise InputError(f"{self.file.path}: {name}: type {qt.name} should be F32; convert the model again")
    self.file.read_into(info, memoryview(raw := bytearray(info.nbytes)))
    values: np.ndarray = reference(qt, raw, n)[0]
    if not values.all() or np.isnan(values).any():
      raise InputError(f"{self.file.path}: {name}: it holds a zero or no number; the file is damaged")
    return values

  def linear(self, outputs: Sequence[tuple[str, int]], n: int, fused: str = "") -> Linear:
    """
    `outputs`: (name, rows) of matrices that share an input of n elements. Neighbours of one type become one Weight.

    fused: a tensor with the rows of all, one matrix after another; it is read if the file has it in place of the first.
    A bias in the file is added. A scale of the product in the file (NVFP4) is multiplied in. A scale of the input, of n
    elements, is left to the caller.
    """
    sizes, names = [rows for _, rows in outputs], [name for name, _ in outputs]
    biases = [self._info(f"{name}.bias", (rows,)) for name, rows in outputs]
    if fused and not self.has(f"{names[0]}.weight") and self.has(f"{fused}.weight"):
      infos, names = self._slices(f"{fused}.weight", sizes, n), [fused] * len(outputs)
      if self.has(f"{fused}.bias"): biases = [*self._slices(f"{fused}.bias", sizes)]
    else: infos = [self.info(f"{name}.weight", (rows, n)) for name, rows in outputs]
    groups = [list(group) for _, group in groupby(infos, key=lambda info: info.type)]
    splits = [[info.shape[0] for info in group] for group in groups]
    weights = [self._load(group, (sum(rows), n)) for group, rows in zip(groups, splits)]
    return Linear(weights, splits, [None if info is None else self._load([info], info.shape) for info in biases],
                  [None if self._scales_input(name, n) else self._scale(name) for name in names])

  def apart(self, name: str, sizes: Sequence[int], n: int) -> Linear:
    """
    The matrix `name` (sum(sizes), n) as one matrix for each of `sizes`, with a Weight of its own.

    A kernel's threads share the rows of a Weight, so a few odd ones beside many even ones keep it to one thread.
    """
    infos = self._slices(f"{name}.weight", sizes, n)
    biases = [self._load([x], x.shape) for x in self._slices(f"{name}.bias", sizes)] if self.has(f"{name}.bias") else []
    return Linear([self._load([x], x.shape) for x in infos], [[rows] for rows in sizes],
                  biases or [None] * len(sizes), [self._scale(name)] * len(sizes))

  def experts(self, names: Sequence[str], experts: int, rows: int, n: int, fused: str = "") -> ExpertLinear:
    """
    The same for tensors (experts, rows, n) that share an input of n elements.

    A tensor may be absent, with a matrix of its own for each expert, such as blk.0.ffn_up.3 of blk.0.ffn_up_exps.
    `fused`: one tensor (experts, len(names) * rows, n) in place of all; each expert's matrices follow each other.
    """
    if fused and self.has(f"{fused}.weight"):
      info = self.info(f"{fused}.weight", (experts, len(names) * rows, n))
      weight = self._load([info], info.shape, FusedExperts, (len(names), experts, rows, n))
      return ExpertLinear([weight], [None] * len(names), [self._scale(fused, experts)] * len(names))
    infos = [self._expert_infos(name, experts, rows, n) for name in names]
    groups = [list(group) for _, group in groupby(infos, key=lambda of_name: of_name[0].type)]
    weights = [self._load([info for of_name in group for info in of_name], (len(group), experts, rows, n))
               for group in groups]
    return ExpertLinear(weights, [self.optional(f"{name}.bias", experts, rows) for name in names],
                        [self._scale(name, experts) for name in names])

  def _expert_infos(self, name: str, experts: int, rows: int, n: int) -> list[TensorInfo]:
    """The tensor of all experts' matrices, or one tensor for each expert, all of one type."""
    each = [f"{name.removesuffix('_exps')}.{i}.weight" for i in range(experts)]
    if self.has(f"{name}.weight") or not self.has(each[0]): return [self.info(f"{name}.weight", (experts, rows, n))]
    return self._of_one_type([self.info(of_one, (rows, n)) for of_one in each], "expert 0")

  def _of_one_type(self, infos: list[TensorInfo], first: str) -> list[TensorInfo]:
    """`infos`, which become one Weight. InputError if a type differs from the first one, which is called `first`."""
    for info in infos:
      if info.type != infos[0].type:
        raise InputError(f"{self.file.path}: {info.name}: its type differs from {first}'s; convert the model again")
    return infos

  def _slices(self, name: str, sizes: Sequence[int], *shape: int) -> list[TensorInfo]:
    """A tensor (sum(sizes), *shape), cut along its first axis."""
    info, first, parts = self.info(name, (sum(sizes), *shape)), 0, list[TensorInfo]()
    if info.nbytes % info.shape[0]:
      raise InputError(f"{self.file.path}: {name}: type {quant_type(info).name} should be F32; convert the model again")
    row = info.nbytes // info.shape[0]
    for size in sizes:
      parts.append(replace(info, shape=(size, *shape), offset=info.offset + first * row, nbytes=size * row))
      first += size
    return parts

  def _info(self, name: str, shape: tuple[int, ...]) -> TensorInfo | None:
    return self.info(name, shape) if self.has(name) else None

  def _scales_input(self, name: str, n: int) -> bool:
    return n > 1 and self.has(f"{name}.scale") and self.file.tensors[f"{name}.scale"].shape == (n,)

  def _scale(self, name: str, experts: int = 1) -> Weight | None:
    """NVFP4's factor for all weights of a matrix, (experts, 1), which is a tensor beside its blocks; or None."""
    if not self.has(f"{name}.scale"): return None
    if (qt := quant_type(info := self.info(f"{name}.scale", (experts,)))).name != "F32":
      raise InputError(f"{self.file.path}: {info.name}: type {qt.name} should be F32; convert the model again")
    return self._load([replace(info, shape=(experts, 1))], (experts, 1))

  def _load(self, infos: list[TensorInfo], shape: tuple[int, ...], kind: type[Weight] = Weight,
            seen_as: tuple[int, ...] = ()) -> Weight:
    """
    One Weight of `shape` with the rows of all tensors in `infos`, which share a type and a row length.

    seen_as: the weight's own shape, if `kind` has another one than `shape`.
    """
    if self.meanwhile is not None and self.meanwhile.done(): self.meanwhile.result()
    qt, names = quant_type(infos[0]), tuple(dict.fromkeys(info.name for info in infos))
    stored, layout = self.memory.hold(infos, shape)
    if self.dequantize and len(shape) > 1 and qt.dtype is dtypes.uint32:
      stored = Weight(qt, stored, shape, layout).float().cast(dtypes.half).realize()
      qt, layout = QUANT_TYPES[1], None
    while names in self.weights: names += names[:1]  # other rows of the same tensor
    self.weights[names] = weight = kind(qt, stored, seen_as or shape, layout)
    return weight
