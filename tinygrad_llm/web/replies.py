"""Answers of the server: JSON, errors, and streams of events, which notice a client that goes away or is slow."""
from __future__ import annotations
import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar
import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from tinygrad_llm.web.errors import ApiError

T = TypeVar("T")
PING = 10.0  # seconds between two comments while nothing else is sent: proxies and clients keep the line then
DONE = b"data: [DONE]\n\n"

encode = msgspec.json.Encoder().encode

class Gone(Exception):
  """The client has closed the connection."""

class Json(Response):
  media_type = "application/json"
  def render(self, content: Any) -> bytes: return encode(content)

def error_reply(e: ApiError) -> Json: return Json(e.body(), e.status, e.headers)

def event(data: Any) -> bytes: return b"data: " + encode(data) + b"\n\n"

async def _left(receive: Receive) -> None:
  while (await receive())["type"] != "http.disconnect": pass

async def while_there(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
  """The result of `work`, which is cancelled, and Gone raised, if the client closes the connection meanwhile."""
  task, left = asyncio.ensure_future(work), asyncio.ensure_future(_left(receive))
  try:
    await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
    if not task.done(): raise Gone
    return task.result()
  finally: await _cancelled(task, left)

async def together(works: Iterable[Coroutine[Any, Any, list[T]]]) -> list[T]:
  """The results of all, in order; if one fails, the others are cancelled."""
  tasks = [asyncio.ensure_future(work) for work in works]
  try: return [one for found in await asyncio.gather(*tasks) for one in found]
  finally: await _cancelled(*tasks)

async def _cancelled(*tasks: asyncio.Future[Any]) -> None:
  for task in tasks:
    if not task.done(): task.cancel()
  for task in tasks:
    with suppress(asyncio.CancelledError, Exception, StopAsyncIteration): await task

class EventStream(Response):
  """
  Server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html).

  The headers leave at once. A comment follows every PING seconds in which there is no event. The generator is closed
  when the client goes away.
  """
  def __init__(self, events: AsyncGenerator[bytes, None]):
    super().__init__(None, media_type="text/event-stream",
                     headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
    del self.headers["content-length"]
    self._events = events

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    left, coming = asyncio.ensure_future(_left(receive)), None  # type: Any, asyncio.Future[bytes] | None
    try:
      await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
      while True:
        coming = coming or asyncio.ensure_future(_next(self._events))
        await asyncio.wait({coming, left}, timeout=PING, return_when=asyncio.FIRST_COMPLETED)
        if left.done(): return
        if not coming.done():
          await send(_part(b": ping\n\n"))
          continue
        if not (data := coming.result()): break
        coming = None
        await send(_part(data))
      await send(_part(b"", more=False))
    finally:
      await _cancelled(left, *([coming] if coming else []))
      await self._events.aclose()

async def _next(events: AsyncGenerator[bytes, None]) -> bytes: return await anext(events, b"")

def _part(data: bytes, more: bool = True) -> Message:
  return {"type": "http.response.body", "body": data, "more_body": more}
