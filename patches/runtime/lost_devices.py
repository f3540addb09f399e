"""
Lost devices: objects of a device that is lost, or of a kernel that it refused, are deleted without a traceback.

Why: once a device is lost, its driver answers every call with the first error, also calls that free something.
  tinygrad's kernels and graphs check this answer when they are deleted. Each prints a traceback of its own, which
  nothing can catch, and the line that says what happened is somewhere among them.
How: the classes of a device's kernels and graphs drop driver errors in __del__, where nobody can handle them. They also
  drop the errors of an object that was never completed, such as a module that the driver refused.
Numbers: lines on stderr of an answer whose device is lost, on a driver of the tests: 151 -> 1
Upstream: not sent; suppress_finalizing does this at the interpreter's end.
"""
from __future__ import annotations
import functools
from collections.abc import Callable
from typing import Any
from tinygrad.device import Compiled
from tinygrad_llm.patches import places

SEAMS = {
  "tinygrad.device:Compiled.__init__": "80dcaf3af241",
  "tinygrad.helpers:suppress_finalizing": "0acddc3b3e95",
  "tinygrad.runtime.graph.cuda:CUDAGraph.__del__": "38202734e239",
  "tinygrad.runtime.ops_cuda:CUDAProgram.__del__": "1bc23d80c3b9",
}

def _quieten(kind: Any) -> None:
  """Makes a class delete its objects without errors; nothing for one without __del__, or that does so already."""
  stock = getattr(kind, "__del__", None)
  if stock is None or hasattr(stock, "quiet"): return
  @functools.wraps(stock)
  def delete(thing: Any) -> None:
    try: stock(thing)
    except (RuntimeError, AttributeError): pass
  delete.quiet = True  # type: ignore[attr-defined]
  kind.__del__ = delete

_init: Callable[..., None]

def init(self: Compiled, device: str, allocator: Any, renderers: Any, runtime: Any, graph: Any = None,
         arch: Any = None) -> None:
  _init(self, device, allocator, renderers, runtime, graph, arch)
  for kind in (runtime, graph): _quieten(getattr(kind, "func", kind))

def install() -> None:
  global _init
  _init = places.wrap(Compiled, "__init__", init)
