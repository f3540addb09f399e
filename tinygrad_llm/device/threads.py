"""How many threads the CPU device has."""
from __future__ import annotations
import os
from tinygrad_llm.errors import InputError

def use_threads(count: int | None) -> None:
  """Makes it `count`, before a kernel is made, for children, too; None leaves it. InputError below 1."""
  if count is None: return
  if count < 1: raise InputError(f"--threads {count}: give 1 or more threads")
  os.environ["NUM_CPU_THREADS"] = str(count)
  from tinygrad.helpers import NUM_CPU_THREADS
  NUM_CPU_THREADS.value = count
