"""
The CPU's buffers are memory of this process alone: after a fork, parent and child each have their own.

tinygrad maps them MAP_SHARED on POSIX systems, so that what one writes (activations, keys and values) the other reads.
Windows has no fork. Nothing here or in tinygrad shares a buffer with another process: kernels are compiled elsewhere
from graphs, and searches and forks that compile have data of their own. The patch huge_pages does the same, for the
sake of speed; this is for when it is off, as with NO_PATCHES=1: kernels stay tinygrad's, and answers right.
"""
from __future__ import annotations
from tinygrad.device import BufferSpec
from tinygrad.runtime.ops_cpu import CPUAllocator
from tinygrad.runtime.support.hcq import HCQBuffer
from tinygrad_llm.patches.host import huge_pages

def alloc(self: CPUAllocator, size: int, options: BufferSpec) -> HCQBuffer:
  """The patch's own, called from here: what is installed is no function of a patch that is off."""
  return huge_pages.alloc(self, size, options)

def install() -> None:
  """In place of tinygrad's own; the patch huge_pages, where it is on, gives private memory, too."""
  if CPUAllocator._alloc.__module__ == CPUAllocator.__module__: CPUAllocator._alloc = alloc  # type: ignore[method-assign]
