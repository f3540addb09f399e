"""
Memory goes back to the system when nothing uses it: tinygrad keeps freed buffers for the next ones of the same size,
and what it found out about graphs and kernels for the next ones that are alike. All of it is made again, or read from
disk, when it is wanted again.
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

# functions that remember graphs
_REMEMBERING = (indexing.apply_movement_op, reshapes.stock, divandmod.fold_divmod_general, schedules.key_of)

def release(device: str) -> None:
  """Gives back what is kept of `device`'s freed buffers, and of graphs. Any thread may call it, at any time."""
  for known in (trace_cache.traces, schedule.schedule_cache, realize.runtime_cache): known.clear()
  for function in _REMEMBERING: function.cache_clear()
  opened = Device._Device__get_canonicalized_item  # type: ignore[attr-defined]  # Device[..] refuses while one compiles
  free_buffers(opened(Device.canonicalize(device)).allocator)
  _trim()

def forget_programs() -> None:
  """
  Compiled kernels that are found on disk again are dropped. Not while one is compiled, as another thread might:
  tinygrad looks up at the end of a batch what it has put there.
  """
  if disk_cache.caching(): codegen.to_program_cache.clear()

def free_buffers(allocator: Any) -> None:
  """LRUAllocator.free_cache(), which frees what another thread takes out in the middle of it."""
  for (size, options), kept in list(getattr(allocator, "cache", {}).items()):
    while kept:
      try: buffer = kept.pop()
      except IndexError: break
      try: Allocator.free(allocator, buffer, size, options)
      except RuntimeError: pass  # the device is lost, and its memory with it

@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
  """glibc's; None where there is none."""
  try: return ctypes.CDLL(None).malloc_trim
  except (OSError, AttributeError, TypeError): return None

def _trim() -> None:
  if (trim := _malloc_trim()) is not None: trim(0)
