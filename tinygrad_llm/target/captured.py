"""Functions of tensors that are traced, scheduled and compiled once, and found on disk by a later process."""
from __future__ import annotations
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar
from tinygrad import TinyJit
from tinygrad.engine.jit import _TinyJit

T = TypeVar("T")

def captured(function: Callable[..., T], *state: Any) -> _TinyJit[T]:
  """
  A TinyJit that captures on its first call: all that it reads is realised, an eager first call would be wasted.

  state: the function's first arguments. It reads nothing else, so that a capture may be found on disk.
  """
  jit: _TinyJit[T] = TinyJit(partial(function, *state))
  jit.cnt = 1
  return jit
