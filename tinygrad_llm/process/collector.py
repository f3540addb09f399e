"""Pausing Python's garbage collector while many long-lived objects are created."""
from __future__ import annotations
import gc
from collections.abc import Iterator
from contextlib import contextmanager

@contextmanager
def without_collector() -> Iterator[None]:
  """Inside, the collector is off: imports and vocabularies create hundreds of thousands of objects that all stay."""
  enabled = gc.isenabled()
  gc.disable()
  try: yield
  finally:
    if enabled: gc.enable()
