"""Device buffers: allocated without a kernel, filled from host memory, and read back."""
from __future__ import annotations
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from struct import Struct
from weakref import WeakKeyDictionary
import numpy as np
from tinygrad import Device, Tensor
from tinygrad.device import Buffer
from tinygrad.dtype import DType, _to_np_dtype
from tinygrad.helpers import getenv, prod
from tinygrad.uop.ops import Ops
from tinygrad_llm.patches.host import huge_pages

KEPT = 16 << 20  # bytes of a buffer, at most, whose reads reuse host memory: new pages cost as much as the copy

_memory = ContextVar("_memory", default=True)
_read = WeakKeyDictionary[Buffer, np.ndarray]()  # host memory of a buffer's last read()

@contextmanager
def without_memory() -> Iterator[None]:
  """Inside, empty() allocates nothing and fill() writes nothing: functions can be compiled, but not run."""
  token = _memory.set(False)
  try: yield
  finally: _memory.reset(token)

def has_memory() -> bool: return _memory.get()

def is_lazy() -> bool:
  """Whether parts of a buffer that are never written take no memory: on the CPU, pages are allocated on demand."""
  return Device.DEFAULT.split(":")[0] == "CPU"

def empty(shape: tuple[int, ...], dtype: DType, full: bool = False) -> Tensor:
  """An allocated, uninitialised tensor on the default device. full: whether all of it will be written."""
  tensor = Tensor.empty(*shape, dtype=dtype)
  if _memory.get():
    buffer_of(tensor).ensure_allocated()
    if full: huge_pages.advise(buffer_of(tensor))
  return tensor

def fill(tensor: Tensor, write: Callable[[np.ndarray], None]) -> None:
  """Calls `write` with an array of the tensor's shape to fill: device memory if the host can reach it, else a copy."""
  if not _memory.get(): return
  buffer = buffer_of(tensor)
  if _is_reached(buffer):
    write(_array(tensor, buffer.as_memoryview(force_zero_copy=True)))
  else:
    # copied by the allocator: Buffer.copy_from schedules a copy, 0.2 ms of Python, and a decode step has two
    write(_array(tensor, staged := memoryview(bytearray(buffer.nbytes))))
    buffer.ensure_allocated().allocator._copyin(buffer._buf, staged)

def host_view(tensor: Tensor) -> np.ndarray | None:
  """A realised tensor's memory as an array to read and write; None if the host cannot reach it."""
  buffer = buffer_of(tensor)
  if not _memory.get() or not _is_reached(buffer): return None
  return _array(tensor, buffer.as_memoryview(force_zero_copy=True))

def writer(tensor: Tensor) -> Callable[[Callable[[np.ndarray], None]], None]:
  """fill() of one tensor, for many calls: the array is made once. The tensor must stay allocated as long."""
  if (view := host_view(tensor)) is None: return lambda write: fill(tensor, write)
  if (wait := _waiting(tensor)) is None: return lambda write: write(view)
  def waited(write: Callable[[np.ndarray], None]) -> None:
    wait()
    write(view)
  return waited

def packer(tensor: Tensor) -> Callable[..., object]:
  """A function that fills an int32 tensor with the numbers it is called with; for a few, it is faster than an array."""
  pack = Struct(f"={tensor.numel()}i").pack_into
  if (view := host_view(tensor)) is not None and _waiting(tensor) is None: return partial(pack, view.data, 0)
  write = writer(tensor)
  return lambda *numbers: write(lambda memory: pack(memory.data, 0, *numbers))

class Readings:
  """
  read() of the few tensors in which steps leave their results: the array of each is made once, if it can be.

  form: a view of an array, as the caller wants to have it.
  """
  def __init__(self, most: int = 16, form: Callable[[np.ndarray], np.ndarray] = lambda array: array):
    self._most, self._form, self._made = most, form, dict[int, tuple[Tensor, np.ndarray, Callable[[], None] | None]]()

  def __call__(self, tensor: Tensor, *shape: int) -> np.ndarray:
    """The tensor's contents; all calls for a tensor have the same shape. Without one, it is the tensor's own."""
    kept = self._made.get(id(tensor))
    if kept is None or kept[0] is not tensor:
      array = read(tensor, *(shape or map(int, tensor.shape)))
      if not _memory.get() or not _is_reached(buffer := buffer_of(tensor)): return self._form(array)
      if not np.may_share_memory(array, _numbers(buffer)): return self._form(array)  # a number is a copy
      if len(self._made) == self._most: self._made.clear()
      kept = self._made[id(tensor)] = tensor, self._form(array), _waiting(tensor)
    if kept[2] is not None: kept[2]()
    return kept[1]

def _waiting(tensor: Tensor) -> Callable[[], None] | None:
  """A function that waits for a tensor's device; None for the CPU, which has done all that it was told."""
  return None if is_lazy() and not getenv("HCQ2") else buffer_of(tensor).allocator.dev.synchronize

def copy(to: Tensor, of: Tensor) -> None:
  """Copies a realised tensor's contents to another one of its shape, type and device."""
  if not _memory.get(): return
  view, source = host_view(to), host_view(of)
  if view is not None and source is not None: return np.copyto(view, source)
  target, origin = buffer_of(to).ensure_allocated(), buffer_of(of)
  allocator, device = target.allocator, origin.allocator.dev
  # by the allocator, as fill() does: a model's states are dozens of copies
  if hasattr(allocator, "_transfer") and allocator.supports_transfer:
    allocator._transfer(target._buf, origin._buf, target.nbytes, src_dev=device, dest_dev=allocator.dev)
  else: target.copy_from(origin)

def read(tensor: Tensor, *shape: int) -> np.ndarray:
  """
  The first elements along each axis of a realised tensor, as an array of `shape`; leading axes of size 1 are left out.

  A buffer may be larger than its tensor, for the longest symbolic length or for rows of padding. The array is the
  device's own memory if the host can reach it. Otherwise the tensor's next read() reuses its memory. Copy the array
  if it is needed after that, or after the tensor is written again. ValueError for another view of a buffer.
  """
  view, buffer = tensor.uop, buffer_of(tensor)
  while view.op is Ops.SHRINK and all(first == 0 for first, _ in view.marg): view = view.src[0]
  if view is not view.base and (view.op is not Ops.RESHAPE or view.src[0] is not view.base):
    raise ValueError(f"read() does not know this view of a buffer: {view.op}")
  held, sizes = view.max_shape, (1,) * (len(view.shape) - len(shape)) + shape
  if len(sizes) != len(held) or any(n > room for n, room in zip(sizes, held)):
    raise ValueError(f"read() of {shape} from a buffer of {held}")
  dtype, wanted = _to_np_dtype(buffer.dtype), tuple(slice(n) for n in sizes)
  if _is_reached(buffer): memory = _numbers(buffer)
  else:
    count = 1 + sum((n - 1) * prod(held[i + 1:]) for i, n in enumerate(sizes)) if min(sizes, default=1) else 0
    kept = _read.get(buffer)
    memory = np.empty(buffer.size, dtype) if kept is None else kept
    if buffer.nbytes <= KEPT: _read[buffer] = memory
    if count: buffer.allocator._copyout(memory[:count].data.cast("B"), buffer._buf)
  return memory[:prod(held)].reshape(held)[wanted].reshape(shape)

def buffer_of(tensor: Tensor) -> Buffer:
  """The buffer of a realised tensor."""
  buffer = tensor.uop.base.buffer
  assert isinstance(buffer, Buffer), "tensors over several devices are not supported"
  return buffer

def _is_reached(buffer: Buffer) -> bool:
  """Whether the device's memory is the host's, too."""
  return hasattr(buffer.allocator, "_as_buffer")

def _numbers(buffer: Buffer) -> np.ndarray:
  """All of a buffer, which the host reaches."""
  return np.frombuffer(buffer.as_memoryview(force_zero_copy=True), dtype=_to_np_dtype(buffer.dtype))  # type: ignore[arg-type]

def _array(tensor: Tensor, memory: memoryview) -> np.ndarray:
  return np.frombuffer(memory, dtype=_to_np_dtype(tensor.dtype)).reshape(tensor.shape)  # type: ignore[arg-type]
