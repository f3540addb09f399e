"""Buffers on the device: allocate without a kernel, fill from host memory, read back."""
from __future__ import annotations
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
import numpy as np
from tinygrad import Tensor
from tinygrad.device import Buffer
from tinygrad.dtype import DType, _to_np_dtype
from tinygrad.helpers import prod
from tinygrad_llm.patches import huge_pages

_memory = ContextVar("_memory", default=True)

@contextmanager
def without_memory() -> Iterator[None]:
  """Inside, empty() allocates nothing and fill() writes nothing: what is built there can be compiled, but not run."""
  token = _memory.set(False)
  try: yield
  finally: _memory.reset(token)

def has_memory() -> bool: return _memory.get()

def empty(shape: tuple[int, ...], dtype: DType, full: bool = False) -> Tensor:
  """An allocated, uninitialised tensor on the default device; `full`: all of it will be written."""
  tensor = Tensor.empty(*shape, dtype=dtype)
  if _memory.get():
    _buffer(tensor).ensure_allocated()
    if full: huge_pages.advise(_buffer(tensor))
  return tensor

def fill(tensor: Tensor, write: Callable[[np.ndarray], None]) -> None:
  """Calls `write` with an array of the tensor's shape to fill: the device's own memory if the host can reach it."""
  if not _memory.get(): return
  buffer = _buffer(tensor)
  if hasattr(buffer.allocator, "_as_buffer"):
    write(_array(tensor, buffer.as_memoryview(force_zero_copy=True)))
  else:
    write(_array(tensor, staged := memoryview(bytearray(buffer.nbytes))))
    buffer.copy_from(Buffer("PYTHON", buffer.size, buffer.dtype, opaque=staged))

def read(tensor: Tensor, *shape: int) -> np.ndarray:
  """
  A realised tensor that starts its buffer; `shape` says what a symbolic shape is bound to.

  It is the device's own memory if the host can reach it: copy what is needed after the tensor is written again.
  """
  buffer = _buffer(tensor)
  memory = buffer.as_memoryview(allow_zero_copy=True)
  return np.frombuffer(memory, dtype=_to_np_dtype(buffer.dtype))[:prod(shape)].reshape(shape)

def _buffer(tensor: Tensor) -> Buffer:
  buffer = tensor.uop.base.buffer
  assert isinstance(buffer, Buffer), "tensors over several devices are not supported"
  return buffer

def _array(tensor: Tensor, memory: memoryview) -> np.ndarray:
  return np.frombuffer(memory, dtype=_to_np_dtype(tensor.dtype)).reshape(tensor.shape)  # type: ignore[arg-type]
