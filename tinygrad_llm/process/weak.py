"""Methods that others may call, which keep nothing alive."""
from __future__ import annotations
import weakref
from collections.abc import Callable
from typing import Any

def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
  """A call of a method that keeps its object no longer alive; afterwards it does nothing and returns None."""
  found = weakref.WeakMethod(method)
  def call(*args: Any) -> Any:
    return None if (alive := found()) is None else alive(*args)
  return call
