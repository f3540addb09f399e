"""The access log, and a name for each request: no text of a prompt or an answer is in it."""
from __future__ import annotations
import json, re, sys, time, uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

NAME = re.compile(r"[\w.-]{1,100}")

class AccessLog:
  """Middleware. write: is given each request's fields once it is over."""
  def __init__(self, app: ASGIApp, write: Callable[[dict[str, Any]], None]):
    self._app, self._write = app, write

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http": return await self._app(scope, receive, send)
    given, begun, status = Headers(scope=scope).get("x-request-id", ""), time.perf_counter(), 0
    name = given if NAME.fullmatch(given) else uuid.uuid4().hex
    async def named(message: Message) -> None:
      nonlocal status
      if message["type"] == "http.response.start":
        status = message["status"]
        message = {**message, "headers": [*message.get("headers", ()), (b"x-request-id", name.encode())]}
      await send(message)
    try: await self._app(scope, receive, named)
    finally:
      client = scope.get("client") or ("-", 0)
      self._write({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "client": client[0],
                   "method": scope["method"], "path": scope["path"][:200], "status": status,
                   "ms": round((time.perf_counter() - begun) * 1e3, 1), "request_id": name})

def writer(form: str) -> Callable[[dict[str, Any]], None]:
  """Writes a line to stderr in one of choices.LOGS."""
  def text(fields: dict[str, Any]) -> None:
    path = fields["path"].encode("unicode_escape").decode()
    _line(f"{fields['time']} {fields['client']} {fields['method']} {path} {fields['status'] or 'closed'} "
          f"{fields['ms']:.0f} ms {fields['request_id']}")
  return {"text": text, "json": lambda fields: _line(json.dumps(fields)), "none": lambda fields: None}[form]

def _line(text: str) -> None:
  with suppress(OSError, ValueError, AttributeError):
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
