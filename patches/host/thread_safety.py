"""
Thread safety: tinygrad traces, schedules, captures and compiles in one thread at a time; replays run in parallel.

Why: tinygrad's state belongs to the process: one list of captures, switches that a `with Context` sets for all threads,
  devices that two threads open twice. Two threads that load and answer with an empty cache ended in "TinyJit inside
  another TinyJit" or "usage of device CPU disallowed".
How: process_lock.lock is held in all functions that make schedules and kernels, while a device is opened, and while a
  TinyJit runs eagerly or captures. It is also held for a TinyJit's first replay in a process, which loads its code and
  makes its graphs. Later replays take no lock but their device's.
  While another thread compiles, a replay meets state of its own. Each thread has its own list of captures.
  ALLOW_DEVICE_USAGE applies to the thread that holds the lock. A capture lists the existing buffers without stumbling
  over new ones. Equal UOps are one object for all threads by compile_time/interning.py.
Numbers: two threads that load and answer, each its own model, caches empty: an error -> both answer, as each alone.
Upstream: not sent; in tinygrad, a process compiles in one thread.
"""
from __future__ import annotations
import importlib, os, threading
from collections.abc import Callable, Iterator
from typing import Any
import tinygrad.device
from tinygrad import Tensor, codegen, schedule
from tinygrad.device import Compiled, _Device
from tinygrad.engine import jit, realize
from tinygrad.engine.jit import CapturedJit, _TinyJit
from tinygrad.helpers import ALLOW_DEVICE_USAGE
from tinygrad.uop import ops
from tinygrad.uop.ops import UOp
from tinygrad_llm.patches import places
from tinygrad_llm.patches.host.process_lock import lock

SEAMS = {
  "tinygrad.engine.jit:_TinyJit": "87ce13451fb5",
  "tinygrad.engine.realize:capturing": "92af1c340d22",
  "tinygrad.engine.realize:run_linear": "2dca8a9f2522",
  "tinygrad.engine.realize:lower_and_compile": "bced2cdfd2f2",
  "tinygrad.codegen:do_to_program": "f4acce5335e4",
  "tinygrad.codegen:full_rewrite_to_sink": "a1124f83af03",
  "tinygrad.schedule:create_linear_with_vars": "7780da6bc6dd",
  "tinygrad.tensor:Tensor.linear_with_vars": "ce8b072fbafe",
  "tinygrad.tensor:Tensor._buffer": "b9da1ab67b94",
  "tinygrad.function:_function": "3aa3fffe128c",
  "tinygrad.device:_Device": "3b9190d47d69",
}

def locked(function: Callable[..., Any]) -> Callable[..., Any]:
  """The same function, run by one thread at a time."""
  def run(*args: Any, **kwargs: Any) -> Any:
    with lock: return function(*args, **kwargs)
  run.__name__ = function.__name__
  return run

# *** captures

class Captures(threading.local):
  """realize.capturing, for each thread: the jits that capture its schedules."""
  def __init__(self) -> None: self.jits: list[Any] = []
  def append(self, jit: Any) -> None: self.jits.append(jit)
  def clear(self) -> None: self.jits.clear()
  def __len__(self) -> int: return len(self.jits)
  def __getitem__(self, i: int) -> Any: return self.jits[i]
  def __repr__(self) -> str: return repr(self.jits)

class Buffers:
  """The table of buffers for jit.py, which walks through it while other threads may add to it."""
  def __iter__(self) -> Iterator[UOp]:
    return iter([u for ref in list(ops.buffers.data) if (u := ref()) is not None])  # type: ignore[attr-defined]
  def get(self, u: UOp) -> Any: return ops.buffers.get(u)

_process = [object()]  # another object in each process

def is_replayed(captured: CapturedJit) -> bool:
  """Whether a capture has run in this process since its capture or its load, and so is ready."""
  return vars(captured).get("replayed_in") is _process[0]

def call(self: _TinyJit, *args: Any, **kwargs: Any) -> Any:
  if self.captured is not None and is_replayed(self.captured): return _call(self, *args, **kwargs)
  with lock:
    ret = _call(self, *args, **kwargs)
    if self.captured is not None: vars(self.captured)["replayed_in"] = _process[0]
    return ret

def run_linear(*args: Any, **kwargs: Any) -> None:
  if kwargs.get("jit"): _run_linear(*args, **kwargs)
  else:
    with lock: _run_linear(*args, **kwargs)

# *** devices

class Usage:
  """ALLOW_DEVICE_USAGE for the thread that compiles; other threads may use their devices."""
  def __bool__(self) -> bool: return bool(ALLOW_DEVICE_USAGE.value) or not lock.is_held()

_devices: dict[str, Compiled] = {}

def opened(self: _Device, name: str) -> Compiled:
  if (device := _devices.get(name)) is None:
    with lock: _devices[name] = device = _open(self, name)
  return device

def _after_fork() -> None:
  _process[0] = object()

_call: Callable[..., Any]
_run_linear = realize.run_linear
_open: Callable[[_Device, str], Compiled] = _Device._Device__get_canonicalized_item  # type: ignore[attr-defined]

def install() -> None:
  global _call
  captures = Captures()
  for module in (realize, jit, schedule): places.replace(module, "capturing", captures)
  for module in (realize, jit, importlib.import_module("tinygrad.tensor")):
    places.replace(module, "run_linear", run_linear)
  places.replace(jit, "buffers", Buffers())
  _call = places.wrap(_TinyJit, "__call__", call)
  function = importlib.import_module("tinygrad.function")._function  # plain tinygrad.function is a class in it
  for holder, name in ((function, "__call__"), (Tensor, "linear_with_vars"), (realize, "lower_and_compile"),
                       (codegen, "do_to_program"), (codegen, "full_rewrite_to_sink")):
    places.wrapped(holder, name, locked)
  places.replace(tinygrad.device, "ALLOW_DEVICE_USAGE", Usage())
  places.replace(_Device, "_Device__get_canonicalized_item", opened)
  if hasattr(os, "register_at_fork"): os.register_at_fork(after_in_child=_after_fork)
