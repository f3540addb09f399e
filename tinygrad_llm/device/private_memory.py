"""
Private CPU buffers: after a fork, parent and child each have their own memory.

On POSIX systems tinygrad maps buffers MAP_SHARED. After a fork, activations, keys and values that one process writes
would then be read by the other. Windows has no fork. Nothing here or in tinygrad needs shared buffers: other processes
compile kernels from graphs, and searches and forks that compile have their own data. The patch huge_pages makes buffers
private too, for speed. This module is for when it is off, as with NO_PATCHES=1: kernels stay tinygrad's, answers right.
"""
from __future__ import annotations
from tinygrad.device import BufferSpec
from tinygrad.runtime.ops_cpu import CPUAllocator
from tinygrad.runtime.support.hcq import HCQBuffer
from tinygrad_llm.patches.host import huge_pages

def alloc(self: CPUAllocator, size: int, options: BufferSpec) -> HCQBuffer:
  """Calls the patch's allocator. This wrapper is installed, so that no function of a patch that is off is."""
  return huge_pages.alloc(self, size, options)

def install() -> None:
  """Replaces tinygrad's allocator, unless the patch huge_pages, which gives private memory too, has done so."""
  if CPUAllocator._alloc.__module__ == CPUAllocator.__module__: CPUAllocator._alloc = alloc  # type: ignore[method-assign]
