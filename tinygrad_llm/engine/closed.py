"""The remains of a closed model: its name and sizes, and an InputError for any other use."""
from __future__ import annotations
import traceback
from typing import Any
from tinygrad import Device
from tinygrad_llm.device.release import release
from tinygrad_llm.errors import InputError

KEPT = frozenset(("path", "device", "config", "max_context", "positions", "chunk", "timing", "load_s", "lock",
                  "_progress", "_suppressed"))

class Closed:
  """Stands in for a part of a closed model: any use of it is an InputError."""
  def __getattr__(self, name: str) -> Any:
    if name.startswith("__"): raise AttributeError(name)
    raise InputError("LLM: closed; load the model again")
  def __call__(self, *_: Any) -> Any: return self.used
  def __getitem__(self, _: Any) -> Any: return self.used
  def __iter__(self) -> Any: return self.used
  def __len__(self) -> int: return int(self.used)

CLOSED = Closed()
STEP = 30.0  # seconds that close() waits for a step under way

def close(llm: Any) -> None:
  """
  Frees a model: replaces all that takes memory by CLOSED, ends its helper processes, and releases the device's memory.

  llm: an LLM, perhaps one whose loading failed. If the model has a lock already, an answer under way in another thread
  ends its step first; otherwise the answer keeps its memory until it meets CLOSED. A step that does not return within
  STEP seconds keeps what it uses; the rest is freed.
  """
  parts = vars(llm)
  # without the lock: the engine's thread may need it for the step under way
  engine, returned = parts.get("engine"), True
  if engine is not None and engine is not CLOSED: returned = engine.close()
  del engine
  lock = parts.get("lock")
  has_lock = lock is not None and lock.acquire(timeout=STEP if returned else 0)
  try:
    if all(value is CLOSED for name, value in parts.items() if name not in KEPT): return
    for name in ("_ahead", "template", "_disk"):
      if (part := parts.get(name)) is not None and part is not CLOSED: part.close()
    parts.update({name: CLOSED for name in parts if name not in KEPT})
    part = None
  finally:
    if has_lock: lock.release()
  if "device" in parts: release(parts["device"])

def forget(error: BaseException | None) -> None:
  """
  Releases memory after an error: clears the local variables of all calls that it went through.

  A caller that keeps the error then keeps no model.
  """
  seen: set[int] = set()
  while error is not None and id(error) not in seen:
    seen.add(id(error))
    traceback.clear_frames(error.__traceback__)
    error = error.__cause__ or error.__context__
  for device in list(Device._opened_devices): release(device)
