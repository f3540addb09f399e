"""A file's metadata under its architecture's prefix, checked value by value."""
from __future__ import annotations
from collections.abc import Mapping
from typing import Any, NoReturn
import numpy as np
from tinygrad_llm.errors import InputError, naming
from tinygrad_llm.files.gguf import GGUF
from tinygrad_llm.files.purpose import DRAFTS, ONLY_DRAFTS
from tinygrad_llm.nn.archs import ARCHS

def check_architecture(kv: Mapping[str, Any]) -> None:
  """InputError if a file's metadata names an architecture that is not supported."""
  if not isinstance(arch := kv.get("general.architecture"), str): return
  if arch in DRAFTS:
    raise InputError(f"general.architecture: {arch!r}, {ONLY_DRAFTS}; load the model that it drafts for")
  if arch not in ARCHS:
    raise InputError(f"general.architecture: {arch!r:.40} is not supported; supported: {', '.join(sorted(ARCHS))}")

class Keys:
  """The keys of one file. Each method gives a checked value, or raises an InputError that names the key."""
  def __init__(self, file: GGUF):
    self.file, self.prefix = file, "general"
    self.arch = self.value("architecture", str)
    with naming(file.path): check_architecture(file.kv)
    self.prefix, self.features = self.arch, ARCHS[self.arch]

  def fail(self, key: str, problem: str, fix: str = "the file is damaged") -> NoReturn:
    raise InputError(f"{self.file.path}: {self.prefix}.{key}: {problem}; {fix}")

  def has(self, key: str) -> bool: return f"{self.prefix}.{key}" in self.file.kv

  def value(self, key: str, kind: type, default: Any = None) -> Any:
    """One value for the whole model; an array of equal numbers, one for each layer, counts as one."""
    value = self.file.kv.get(f"{self.prefix}.{key}", default)
    if isinstance(value, np.ndarray) and len(value) and (value == value[0]).all(): value = value[0].item()
    if value is None: self.fail(key, "missing", "convert the model again with a current converter")
    if isinstance(value, bool) and kind is not bool: self.fail(key, f"{value} is not of type {kind.__name__}")
    if kind is float and isinstance(value, int): value = float(value)
    shown = f"{' '.join(repr(value).split()):.40}"
    if isinstance(value, np.ndarray): self.fail(key, f"{shown} is not one for all layers", "that is not supported")
    if not isinstance(value, kind): self.fail(key, f"{shown} is not of type {kind.__name__}")
    return value

  def size(self, key: str, default: int | None = None, low: int = 1, high: int = 1 << 24) -> int:
    if not low <= (value := self.value(key, int, default)) <= high: self.fail(key, f"{value} is not in {low}..{high}")
    return int(value)

  def number(self, key: str, default: float | None = None, low: float = 0.0, high: float = 1e12) -> float:
    if not low <= (value := self.value(key, float, default)) <= high:  # NaN fails both
      self.fail(key, f"{value} is not a number from {low} to {high:g}")
    return float(value)

  def sizes(self, key: str, n: int, default: int | None = None, low: int = 1, high: int = 1 << 24) -> tuple[int, ...]:
    """n numbers, one for each layer: an array of n and more, or one number for all."""
    value = self.file.kv.get(f"{self.prefix}.{key}")
    if not isinstance(value, np.ndarray): return (self.size(key, default, low, high),) * n
    if len(value) < n: self.fail(key, f"it has {len(value)} elements for {n} layers")
    if value.dtype.kind not in "iu": self.fail(key, f"{' '.join(repr(value).split()):.40} is not of type int")
    for x in value[:n]:
      if not low <= x <= high: self.fail(key, f"{x} is not in {low}..{high}")
    return tuple(map(int, value[:n]))
