"""
Asynchronous reads of a few bytes of device memory, while the device works on.

Buffer.copyout waits for all launched work. These reads wait only for work that was launched before them. Devices that
run nothing beside the host (the CPU), and unknown devices, have no reader.
"""
from __future__ import annotations
import ctypes, functools, itertools, weakref
from collections.abc import Callable
from typing import Any
from tinygrad import Device
from tinygrad.device import Buffer, BufferSpec
from tinygrad.helpers import JIT, getenv

SLOTS = 2  # reads in flight, at most
Read = Callable[[], bytes]  # waits for the read and returns its bytes

def is_asynchronous(device: str) -> bool:
  """Whether a device works while the host does, and has a reader."""
  return reader(device, 8, 0) is not None

@functools.cache
def reader(device: str, size: int, name: int) -> Callable[[Buffer], Read] | None:
  """
  A function that enqueues a read of a buffer of `size` bytes; None for devices that cannot do that.

  With more than SLOTS reads in flight, the oldest is lost. So each user has a reader of its own, with name_of() it.
  The reader lives as long as the process, so that a read nobody waits for still has memory to write to.
  """
  kind = _KINDS.get(type(dev := Device[device]).__name__)
  return None if kind is None or not JIT or getenv("HCQ2") else kind(dev, size)

def name_of(owner: object) -> int:
  """A name for reader() that is the owner's for as long as it lives, and another owner's after that."""
  try: name = _free.pop()
  except IndexError: name = next(_names)
  weakref.finalize(owner, _free.append, name)
  return name

_names, _free = itertools.count(), list[int]()

def _opencl(dev: Any, size: int) -> Callable[[Buffer], Read]:
  from tinygrad.runtime.autogen import opencl as cl
  from tinygrad.runtime.ops_cl import check
  slots = [(ctypes.c_char * size)() for _ in range(SLOTS)]
  def enqueue(buffer: Buffer) -> Read:
    slots.append(slot := slots.pop(0))
    event = cl.cl_event()
    check(cl.clEnqueueReadBuffer(dev.queue, buffer._buf, False, 0, size, slot, 0, None, ctypes.byref(event)))
    check(cl.clFlush(dev.queue))
    def wait() -> bytes:
      check(cl.clWaitForEvents(1, ctypes.byref(event)))
      check(cl.clReleaseEvent(event))
      return bytes(slot)
    return wait
  return enqueue

def _cuda(dev: Any, size: int) -> Callable[[Buffer], Read]:
  from tinygrad.runtime.autogen import cuda
  from tinygrad.runtime.ops_cuda import check
  from tinygrad.runtime.support.c import init_c_var
  check(cuda.cuCtxSetCurrent(dev.context))
  def memory() -> Any:
    try: return dev.allocator._alloc(size, BufferSpec(host=True))
    except RuntimeError:  # no more memory can be pinned: the driver then waits for each copy itself
      pageable.append(ctypes.create_string_buffer(size))
      return ctypes.c_void_p(ctypes.addressof(pageable[-1]))
  pageable = list[Any]()
  slots = [(memory(), init_c_var(cuda.CUevent, lambda x: check(cuda.cuEventCreate(ctypes.byref(x), 0))))
           for _ in range(SLOTS)]
  def enqueue(buffer: Buffer) -> Read:
    slots.append(slot := slots.pop(0))
    to, event = slot
    check(cuda.cuCtxSetCurrent(dev.context))
    check(cuda.cuMemcpyDtoHAsync_v2(to, buffer._buf, size, None))
    check(cuda.cuEventRecord(event, None))
    def wait() -> bytes:
      check(cuda.cuEventSynchronize(event))
      return ctypes.string_at(to, size)
    return wait
  return enqueue

def _metal(dev: Any, size: int) -> Callable[[Buffer], Read]:
  """Unified memory: waits for the last command buffer so far. The caller alternates between SLOTS buffers."""
  from tinygrad.runtime.ops_metal import wait_check
  def enqueue(buffer: Buffer) -> Read:
    last = dev.mtl_buffers_in_flight[-1]
    def wait() -> bytes:
      wait_check(last)
      flying = dev.mtl_buffers_in_flight  # in order: all up to this one have ended; tinygrad would search the list
      done = next((i + 1 for i, x in enumerate(flying) if x is last), 0)
      del flying[:done]
      return bytes(dev.allocator._as_buffer(buffer._buf)[:size])
    return wait
  return enqueue

def _queues(dev: Any, size: int) -> Callable[[Buffer], Read] | None:
  """NV and AMD: the copy is one more entry of the device's timeline."""
  if dev.hw_copy_queue_t is None: return None
  slots = [dev.allocator.alloc(size, BufferSpec(host=True)) for _ in range(SLOTS)]
  def enqueue(buffer: Buffer) -> Read:
    slots.append(slot := slots.pop(0))
    queue = dev.hw_copy_queue_t().wait(dev.timeline_signal, dev.timeline_value - 1).copy(slot, buffer._buf, size)
    queue.signal(dev.timeline_signal, value := dev.next_timeline()).submit(dev)
    def wait() -> bytes:
      dev.timeline_signal.wait(value)
      return bytes(slot.cpu_view().view(size=size, fmt="B")[:])
    return wait
  return enqueue

_KINDS: dict[str, Callable[[Any, int], Callable[[Buffer], Read] | None]] = {
  "CLDevice": _opencl, "CUDADevice": _cuda, "MetalDevice": _metal, "NVDevice": _queues, "AMDDevice": _queues}
