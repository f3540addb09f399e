"""How far the loading of the server's model is, for /health."""
from __future__ import annotations
import time
from typing import Any

DOING = {"weights": "reading weights", "steps": "preparing steps", "kernels": "compiling kernels"}

class Loading:
  """
  A listener of tinygrad_llm.progress. One thread tells, others look.

  Steps were found on disk if nothing of them had to be scheduled.
  """
  def __init__(self) -> None:
    self._begun, self._compiles = time.perf_counter(), False
    self._now: dict[str, Any] = {"doing": "starting"}

  def __call__(self, what: str, done: int, total: int) -> None:
    now = self._now | {"doing": DOING[what]}
    if what == "kernels":
      self._compiles = True
      if not total: now["doing"] = "scheduling a step"
      else: now |= {"kernels_compiled": done, "kernels": total}
    elif what == "steps":
      before = self._now.get("steps_ready", 0)
      now |= {"steps_ready": done, "steps": total}
      for name, counts in (("steps_found", not self._compiles), ("steps_compiled", self._compiles)):
        now[name] = self._now.get(name, 0) + (done - before if counts else 0)
      self._compiles = False
    else: now |= {"bytes_read": done, "bytes": total}
    self._now = now

  def told(self) -> dict[str, Any]:
    """The work under way, and the counts so far."""
    return {**self._now, "seconds": round(time.perf_counter() - self._begun, 1)}
