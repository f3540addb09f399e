"""
The CPU's buffers are memory of this process alone: after a fork, parent and child each have their own.

tinygrad maps them MAP_SHARED on POSIX systems, so that what one writes (activations, keys and values) the other reads.
Windows has no fork. Nothing here or in tinygrad shares a buffer with another process: kernels are compiled elsewhere
from graphs, and searches and forks that compile have data of their own. It is the app's and not one of its patches,
which may be off: a wrong answer is no matter of speed, and kernels stay as they are.
"""
from __future__ import annotations
import mmap
from tinygrad.device import BufferSpec
from tinygrad.helpers import WIN, mv_address
from tinygrad.runtime.ops_cpu import CPUAllocator
from tinygrad.runtime.support.hcq import HCQBuffer, MMIOInterface

_before = CPUAllocator._alloc

def alloc(self: CPUAllocator, size: int, options: BufferSpec) -> HCQBuffer:
  if options.external_ptr is not None or WIN: return _before(self, size, options)
  memory = mmap.mmap(-1, size, mmap.MAP_ANON | mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
  address = mv_address(memory)
  return HCQBuffer(address, size, meta=memory, view=MMIOInterface(address, size, fmt="B"), owner=self.dev)

def install() -> None: CPUAllocator._alloc = alloc  # type: ignore[method-assign]
