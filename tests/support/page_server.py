"""A server without a model: the page, and answers that a test has written, piece by piece."""
import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from tinygrad_llm.web.api.page import FOLDER, page

NAME, CONTEXT = "scripted-1B", 4096

@dataclass
class Answer:
  """
  texts: pieces of the answer. thoughts: pieces before them. pause: seconds before each piece.

  status: an HTTP error instead, with `error` as its body. breaks: the connection ends without a last chunk.
  """
  texts: list[str] = field(default_factory=list)
  thoughts: list[str] = field(default_factory=list)
  pause: float = 0.0
  finish: str = "stop"
  status: int = 200
  error: dict[str, Any] = field(default_factory=dict)
  breaks: bool = False

  async def events(self) -> AsyncIterator[bytes]:
    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
      choice = {"index": 0, "delta": delta, "finish_reason": finish}
      return f"data: {json.dumps({'model': NAME, 'choices': [choice], **more})}\n\n".encode()
    yield chunk({"role": "assistant", "content": None})
    yield b": ping\n\n"
    for kind, texts in (("reasoning_content", self.thoughts), ("content", self.texts)):
      for text in texts:
        if self.pause: await asyncio.sleep(self.pause)
        yield chunk({kind: text})
    if self.breaks: return
    count = len(self.thoughts) + len(self.texts)
    timings = {"cache_n": 12, "prompt_n": 30, "prompt_ms": 210.0, "prompt_per_second": 142.8, "predicted_n": count,
               "predicted_ms": 1000.0, "predicted_per_second": 41.7}
    yield chunk({}, self.finish, timings=timings)
    usage = {"prompt_tokens": 42, "completion_tokens": count, "total_tokens": 42 + count}
    yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n".encode()

class PageServer:
  """
  answers: of the next requests, the last one of all that follow. asked: the requests' bodies. key: wanted, if any.

  health: the body of /health; it is answered with 503 unless its status is ok. gone: streams whose reader left early.
  """
  def __init__(self) -> None:
    self.asked, self.key, self.health, self.gone = list[dict[str, Any]](), "", dict[str, Any](status="ok"), 0
    self.answers = [Answer(["Hello", " there."])]
    routes = [Route("/", page), Route("/health", self._health), Route("/v1/models", self._models),
              Route("/props", self._props), Route("/v1/chat/completions", self._chat, methods=["POST"]),
              Route("/blank", self._blank), Mount("/scripts", StaticFiles(directory=FOLDER / "scripts"))]
    self.app, self.url = Starlette(routes=routes), ""

  def _refused(self, request: Request) -> Response | None:
    if not self.key or request.headers.get("authorization") == f"Bearer {self.key}": return None
    return JSONResponse({"error": {"message": "Invalid API Key", "code": "invalid_api_key"}}, 401)

  async def _blank(self, _: Request) -> Response:
    """A document without a policy, in which a test imports the page's modules from /scripts."""
    return Response("<!doctype html><title>blank</title><div id=status></div>", media_type="text/html")

  async def _health(self, _: Request) -> Response:
    return JSONResponse(self.health, 200 if self.health["status"] == "ok" else 503)

  async def _models(self, _: Request) -> Response:
    return JSONResponse({"object": "list", "data": [{"id": NAME, "max_model_len": CONTEXT}]})

  async def _props(self, request: Request) -> Response:
    return self._refused(request) or JSONResponse({"default_generation_settings": {
      "n_ctx": CONTEXT, "params": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}}})

  async def _chat(self, request: Request) -> Response:
    if refused := self._refused(request): return refused
    self.asked.append(await request.json())
    answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
    if answer.status != 200: return JSONResponse({"error": answer.error}, answer.status)
    async def watched() -> AsyncIterator[bytes]:
      whole = False
      try:
        async for data in answer.events(): yield data
        whole = True
      finally: self.gone += not whole and not answer.breaks
    return StreamingResponse(watched(), media_type="text/event-stream")

  @contextlib.contextmanager
  def running(self) -> Iterator["PageServer"]:
    """Listens on a free port of this machine, in a thread."""
    sock = socket.create_server(("127.0.0.1", 0))
    self.url = f"http://127.0.0.1:{sock.getsockname()[1]}/"
    server = uvicorn.Server(uvicorn.Config(self.app, log_level="error", lifespan="off", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
    thread.start()
    until = time.monotonic() + 20
    while not server.started and time.monotonic() < until: time.sleep(0.01)
    try: yield self
    finally:
      server.should_exit = True
      thread.join(20)
