"""How far a prompt has been read, told while its answer is waited for."""
from __future__ import annotations
import asyncio, time
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, NamedTuple
from tinygrad_llm.engine.batch.stream import AsyncStream

LOOK = 0.05  # seconds between two looks

class Progress(NamedTuple):
  """Tokens of a prompt: all, those that were cached, and those that are read, the cached ones included."""
  total: int
  cached: int
  processed: int
  seconds: float

  def shown(self) -> dict[str, Any]:
    """As llama-server tells it."""
    return {"total": self.total, "cache": self.cached, "processed": self.processed,
            "time_ms": round(self.seconds * 1e3)}

async def with_progress(stream: AsyncStream[Any]) -> AsyncGenerator[Any, None]:
  """
  The pieces of an answer, after at least two Progress.

  The first one has only the cached tokens, the last one all, and each has more than the one before.
  """
  first, began, cached, told = asyncio.ensure_future(_next(stream)), time.perf_counter(), -1, -1
  total = stream.timing.prompt_tokens
  try:
    while True:
      await asyncio.wait({first}, timeout=LOOK)
      is_read = first.done()
      if is_read: first.result()  # an error comes before any progress
      reused, fed = stream.read
      fed = total if is_read else min(fed, total)
      if fed and cached < 0:
        cached = told = min(reused, total - 1)
        yield Progress(total, cached, cached, 0.0)
      if fed > told and cached >= 0:
        told = fed
        yield Progress(total, cached, fed, time.perf_counter() - began)
      if is_read: break
    if (piece := first.result()) is None: return
    yield piece
    async for piece in stream: yield piece
  finally:
    if not first.done():
      first.cancel()
      with suppress(asyncio.CancelledError): await first

async def _next(stream: AsyncStream[Any]) -> Any: return await anext(stream, None)
