"""A server as one of several replicas: a supervisor starts it, asks for its health, and replaces it."""
from __future__ import annotations
import asyncio, sys
from collections.abc import Callable
from typing import Any
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tinygrad_llm.web.lifecycle import SWITCH
from tinygrad_llm.web.service import Service

PATIENCE = 3  # looks in a row that find no health, before its readers are told: Ray replaces a replica then

class Replica:
  """An application that names itself in each answer, in the header x-replica."""
  def __init__(self, service: Service, app: ASGIApp, name: str):
    self.service, self._app, self._name, self._sick = service, app, name.encode(), 0

  async def load(self, load: Callable[[], Any]) -> None:
    """Loads the model, in a thread; an error of `load` is raised."""
    sys.setswitchinterval(SWITCH)
    self.service.llm = await asyncio.to_thread(load)
    self.service.state = "ready"

  def check(self) -> None:
    """
    RuntimeError if the engine has failed or makes no progress.

    Readers of an engine that makes no progress are told after PATIENCE such calls, for their answers are lost.
    """
    service = self.service
    if service.state == "ready" and (error := service.failed()) is not None:
      service.state, service.error = "dead", error
    if (health := service.health()) not in ("dead", "stuck"):
      self._sick = 0
      return
    self._sick += 1
    if self._sick == PATIENCE and health == "stuck":
      service.state, service.error = "dead", RuntimeError("it makes no progress")
      service.cut()
    raise RuntimeError(f"the engine is {health}" + (f": {service.error}" if health == "dead" else ""))

  def close(self) -> None:
    """Ends the engine, which writes what its prompt cache still holds. One that has failed is left as it is."""
    if (llm := self.service.llm) is not None and self.service.state != "dead": llm.close()

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    async def named(message: Message) -> None:
      if message["type"] == "http.response.start":
        message = {**message, "headers": [*message.get("headers", ()), (b"x-replica", self._name)]}
      await send(message)
    await self._app(scope, receive, named)
