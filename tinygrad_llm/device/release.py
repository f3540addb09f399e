"""
Returns unused memory to the system. tinygrad keeps freed buffers for later ones of the same size, and caches graphs and
kernels for later ones that are alike. All of these are made again, or read from disk, when they are needed again.
"""
from __future__ import annotations
import ctypes, functools
from collections.abc import Callable
from typing import Any
from tinygrad import Device, codegen, schedule
from tinygrad.device import Allocator
from tinygrad.engine import realize
from tinygrad.schedule import indexing
from tinygrad.uop import divandmod
from tinygrad_llm.patches.cache import disk_cache, schedules
from tinygrad_llm.patches.compile_time import trace_cache
from tinygrad_llm.patches.graph import reshapes

# functions whose caches hold graphs
_REMEMBERING = (indexing.apply_movement_op, reshapes.stock, divandmod.fold_divmod_general, schedules.key_of)

def release(device: str) -> None:
  """Frees `device`'s cached buffers and the cached graphs. Any thread may call it, at any time."""
  for known in (trace_cache.traces, schedule.schedule_cache, realize.runtime_cache): known.clear()
  for function in _REMEMBERING: function.cache_clear()
  opened = Device._Device__get_canonicalized_item  # type: ignore[attr-defined]  # Device[..] refuses while one compiles
  free_buffers(opened(Device.canonicalize(device)).allocator)
  _trim()

def forget_programs() -> None:
  """
  Drops compiled kernels from memory if they can be loaded from disk again.

  The caller makes sure that no other thread compiles: tinygrad looks up a batch's kernels at the end of the batch.
  """
  if disk_cache.caching(): codegen.to_program_cache.clear()

def free_buffers(allocator: Any) -> None:
  """A thread-safe LRUAllocator.free_cache(): tinygrad's could free a buffer that another thread takes meanwhile."""
  for (size, options), kept in list(getattr(allocator, "cache", {}).items()):
    while kept:
      try: buffer = kept.pop()
      except IndexError: break
      try: Allocator.free(allocator, buffer, size, options)
      except RuntimeError: pass  # the device is lost, and its memory with it

@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
  """glibc's malloc_trim; None for other C libraries."""
  try: return ctypes.CDLL(None).malloc_trim
  except (OSError, AttributeError, TypeError): return None

def _trim() -> None:
  if (trim := _malloc_trim()) is not None: trim(0)
