"""Python's garbage collector, where it would look for garbage among what is only being made."""
from __future__ import annotations
import gc
from collections.abc import Iterator
from contextlib import contextmanager

@contextmanager
def without_collector() -> Iterator[None]:
  """Inside, nothing is collected: imports and vocabularies are hundreds of thousands of objects, and all are kept."""
  enabled = gc.isenabled()
  gc.disable()
  try: yield
  finally:
    if enabled: gc.enable()
