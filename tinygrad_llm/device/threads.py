"""The number of threads of the CPU device."""
from __future__ import annotations
import os
from tinygrad_llm.errors import InputError

def use_threads(count: int | None) -> None:
  """Sets the number, for child processes too, before any kernel is made. None: unchanged. InputError below 1."""
  if count is None: return
  if count < 1: raise InputError(f"--threads {count}: give 1 or more threads")
  os.environ["NUM_CPU_THREADS"] = str(count)
  from tinygrad.helpers import NUM_CPU_THREADS
  NUM_CPU_THREADS.value = count
