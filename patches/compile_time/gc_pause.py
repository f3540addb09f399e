"""
GC pause: Python's garbage collector is off while a graph is traced, scheduled or lowered.

Why: these steps make graphs of some 100,000 objects, and the collector scans all live objects whenever there are a
  quarter more of them. It finds nothing: graphs have no cycles, so reference counts free their nodes. A TinyJit that
  captures has the collector off already. Graphs made outside of one, as by the kernels command and BEAM, do not have it
  off.
How: the collector is off while a function is traced, a schedule is made or a kernel is lowered, and on again after
  each.
Numbers: CPU seconds without the C compiler until the bundled model's prompt is compiled, outside of a TinyJit, 9.1 ->
  7.4, a 1B model's 10.0 -> 8.2, at the same peak of memory (2-core AMD EPYC).
Upstream: not sent; applications may gc.freeze() instead.
"""
from __future__ import annotations
import importlib
from collections.abc import Callable
from typing import Any
from tinygrad import Tensor, codegen
from tinygrad.helpers import disable_gc
from tinygrad_llm.patches import places

SEAMS = {
  "tinygrad.codegen:full_rewrite_to_sink": "a1124f83af03",
  "tinygrad.tensor:Tensor.linear_with_vars": "ce8b072fbafe",
  "tinygrad.function:_function": "3aa3fffe128c",
}

def paused(function: Callable[..., Any]) -> Callable[..., Any]:
  """The same function, run with the garbage collector off."""
  def run(*args: Any, **kwargs: Any) -> Any:  # disable_gc()(function) would pass for tinygrad's (owner in explain/)
    with disable_gc(): return function(*args, **kwargs)
  run.__name__ = function.__name__
  return run

def install() -> None:
  function = importlib.import_module("tinygrad.function")._function  # plain tinygrad.function is a class in it
  for holder, name in ((function, "__call__"), (codegen, "full_rewrite_to_sink"), (Tensor, "linear_with_vars")):
    places.wrapped(holder, name, paused)
