"""
Pinned copies: copies to and from a CUDA card go through a little pinned memory, which is used again and again.

Why: tinygrad pins memory for each copy and keeps it until something waits for the device, then for the next copy of
  exactly that size. Nothing waits while a model is loaded, so pinned memory as large as the model stays for good.
  Systems and containers let little be pinned, and where that ended, the card was said to have no memory.
  Copies from the card go to pageable memory, at 0.8 GB/s where an H100 was tried: a step's logits took as long as its
  kernels.
How: two blocks take turns. A copy goes into them piece by piece. A full block has an event after its copies, which is
  waited for before the block is written again. Where nothing can be pinned, copies are from pageable memory: the driver
  has read it when its call returns. Copies from the card pass through the same blocks.
Numbers: pinned after a model of 129.7 MB was loaded, on a driver of the tests: 129.8 -> 33.6 MB (two blocks)
Upstream: not sent; there, its CUDA allocator could take turns with such blocks.
"""
from __future__ import annotations
import ctypes, threading
from collections.abc import Callable
from typing import Any
from tinygrad.device import BufferSpec, Compiled
from tinygrad.helpers import mv_address, round_up
from tinygrad_llm.patches import places

SEAMS = {
  "tinygrad.device:Compiled.__init__": "80dcaf3af241",
  "tinygrad.runtime.ops_cuda:CUDAAllocator": "d5815ee2d2b4",
  "tinygrad.runtime.ops_cuda:CUDADevice": "0608eb580ee6",
}

BLOCK, BLOCKS = 16 << 20, 2
ALIGN = 256  # bytes: a copy begins at a multiple of this in its block
PIECE = 1 << 20  # bytes: the least that is copied from the card at once

class PinnedCopies:
  """
  The blocks of a device, as (address, event after its copies). The last block is being filled; used: its bytes in use.
  """
  def __init__(self, dev: Any):
    self.dev, self.lock = dev, threading.Lock()
    self.blocks, self.most, self.used = list[tuple[int, Any]](), BLOCKS, BLOCK

  def copyin(self, dest: Any, src: memoryview) -> None:
    """CUDAAllocator._copyin: the device has the bytes before any later launch; `src` has been read on return."""
    from tinygrad.runtime.autogen import cuda
    from tinygrad.runtime.ops_cuda import check
    check(cuda.cuCtxSetCurrent(self.dev.context))
    to, source, left = dest.value, mv_address(src), len(src)
    with self.lock:
      while left:
        if self.used == BLOCK and not self._turn():
          check(cuda.cuMemcpyHtoD_v2(to, source, left))
          return
        piece, place = min(left, BLOCK - self.used), self.blocks[-1][0] + self.used
        ctypes.memmove(place, source, piece)
        check(cuda.cuMemcpyHtoDAsync_v2(to, place, piece, None))
        to, source, left, self.used = to + piece, source + piece, left - piece, round_up(self.used + piece, ALIGN)

  def copyout(self, dest: memoryview, src: Any) -> None:
    """CUDAAllocator._copyout: `dest` gets the device's memory as all earlier launches leave it."""
    from tinygrad.runtime.autogen import cuda
    from tinygrad.runtime.ops_cuda import check
    type(self.dev).synchronize_system()
    check(cuda.cuCtxSetCurrent(self.dev.context))
    to, source, left = mv_address(dest), src.value, len(dest)
    with self.lock:
      while left:
        if BLOCK - self.used < min(left, PIECE) and not self._turn():
          check(cuda.cuMemcpyDtoH_v2(to, source, left))
          return
        piece, place = min(left, BLOCK - self.used), self.blocks[-1][0] + self.used
        check(cuda.cuMemcpyDtoH_v2(place, source, piece))
        ctypes.memmove(to, place, piece)
        to, source, left = to + piece, source + piece, left - piece

  def _turn(self) -> bool:
    """Goes on to a block that nothing reads any more; False if no memory can be pinned at all."""
    from tinygrad.runtime.autogen import cuda
    from tinygrad.runtime.ops_cuda import check
    from tinygrad.runtime.support.c import init_c_var
    if self.blocks: check(cuda.cuEventRecord(self.blocks[-1][1], None))
    if len(self.blocks) < self.most:
      try: memory = self.dev.allocator._alloc(BLOCK, BufferSpec(host=True))
      except RuntimeError: self.most = len(self.blocks)  # a lost device: the copy reports it
      else:
        event = init_c_var(cuda.CUevent, lambda x: check(cuda.cuEventCreate(ctypes.byref(x), 0)))
        self.blocks.append((memory.value, event))
        self.used = 0
        return True
    if not self.blocks: return False
    self.blocks.append(self.blocks.pop(0))
    check(cuda.cuEventSynchronize(self.blocks[-1][1]))
    self.used = 0
    return True

_init: Callable[..., None]

def init(self: Compiled, device: str, allocator: Any, *args: Any, **kwargs: Any) -> None:
  _init(self, device, allocator, *args, **kwargs)
  if type(allocator).__name__ == "CUDAAllocator":
    copies = PinnedCopies(self)
    allocator._copyin, allocator._copyout = copies.copyin, copies.copyout

def install() -> None:
  global _init
  _init = places.wrap(Compiled, "__init__", init)
