"""What is left of a model that was closed: its name and sizes, and an error for whoever wants more."""
from __future__ import annotations
import traceback
from contextlib import nullcontext
from typing import Any
from tinygrad import Device
from tinygrad_llm.device.release import release
from tinygrad_llm.errors import InputError

KEPT = frozenset(("path", "device", "config", "max_context", "chunk", "timing", "load_s", "lock", "_progress"))

class Closed:
  """In place of a part of a closed model: InputError, whatever it is asked for."""
  def __getattr__(self, name: str) -> Any:
    if name.startswith("__"): raise AttributeError(name)
    raise InputError("LLM: closed; load the model again")
  def __call__(self, *_: Any) -> Any: return self.used
  def __getitem__(self, _: Any) -> Any: return self.used
  def __iter__(self) -> Any: return self.used
  def __len__(self) -> int: return int(self.used)

CLOSED = Closed()

def close(llm: Any) -> None:
  """
  Puts CLOSED in place of all that takes memory, ends the processes that work for the model, and releases what they and
  it held. llm: an LLM, perhaps one whose loading failed. An answer that is under way in another thread ends first, if
  the model has a lock, or keeps its memory until it meets CLOSED.
  """
  parts = vars(llm)
  with parts.get("lock") or nullcontext():
    if all(value is CLOSED for name, value in parts.items() if name not in KEPT): return
    for name in ("_ahead", "template"):
      if (part := parts.get(name)) is not None and part is not CLOSED: part.close()
    parts.update({name: CLOSED for name in parts if name not in KEPT})
    del part
  if "device" in parts: release(parts["device"])

def forget(error: BaseException | None) -> None:
  """Clears the variables of the calls that an error went through, and releases: who keeps the error keeps no model."""
  seen: set[int] = set()
  while error is not None and id(error) not in seen:
    seen.add(id(error))
    traceback.clear_frames(error.__traceback__)
    error = error.__cause__ or error.__context__
  for device in list(Device._opened_devices): release(device)
