"""The routes of the server."""
from __future__ import annotations
import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from tinygrad_llm.errors import InputError
from tinygrad_llm.web.api import completions, embeddings, native, operations, schemas
from tinygrad_llm.web.access import AccessLog, writer
from tinygrad_llm.web.api.chat import chat, input_tokens
from tinygrad_llm.web.api import page as web_page
from tinygrad_llm.web.api.openapi import EVENTS, JSON, Operation, document
from tinygrad_llm.web.errors import ApiError, as_api_error
from tinygrad_llm.web.guard import Guard, check_is_json
from tinygrad_llm.web.replies import Gone, Json, error_reply
from tinygrad_llm.web.service import Service

STREAMED = (JSON, EVENTS)
Answer = Callable[..., Awaitable[Response]]
BODIES: dict[tuple[str, ...], tuple[type, Answer, tuple[str, ...]]] = {
  # {paths: (the struct of the body, the answer to it, types of its content)}
  ("/v1/chat/completions", "/chat/completions"): (schemas.Chat, chat, STREAMED),
  ("/v1/completions",): (schemas.Completion, completions.completions, STREAMED),
  ("/completion", "/completions"): (schemas.Native, native.completion, STREAMED),
  ("/infill",): (schemas.Infill, native.infill, STREAMED),
  ("/v1/embeddings",): (schemas.Embeddings, embeddings.embeddings, (JSON,)),
  ("/embedding", "/embeddings"): (schemas.NativeEmbedding, embeddings.native, (JSON,)),
  ("/tokenize",): (schemas.Tokenize, native.tokenize, (JSON,)),
  ("/detokenize",): (schemas.Detokenize, native.detokenize, (JSON,)),
  ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"): (schemas.Chat, input_tokens, (JSON,)),
  ("/apply-template",): (schemas.Template, native.apply_template, (JSON,))}
FACTS: dict[tuple[str, ...], tuple[Answer, str, tuple[int, ...]]] = {
  # {paths: (the answer, the type of its content, its errors)}
  ("/health", "/v1/health"): (operations.health, JSON, (503,)),
  ("/v1/models", "/models"): (operations.models, JSON, ()),
  ("/v1/models/{name:path}",): (operations.model, JSON, (404,)),
  ("/metrics",): (operations.metrics, "text/plain", ()),
  ("/version",): (operations.version, JSON, ()), ("/props",): (native.props, JSON, (503,)),
  ("/slots",): (native.slots, JSON, (503,)), ("/tokenizer_info",): (native.tokenizer_info, JSON, (503,))}
HERE = "/openapi.json"

def described() -> list[Operation]:
  """All routes of the server, for its document."""
  found = [Operation(path, answer, kind, content)
           for paths, (kind, answer, content) in BODIES.items() for path in paths]
  found += [Operation(path, answer, None, (content,), errors) for paths, (answer, content, errors) in FACTS.items()
            for path in paths]
  return [*found, Operation("/", web_page.page, None, ("text/html",)), Operation(HERE, _document)]

def app(service: Service, keys: Sequence[str] = (), hosts: Sequence[str] = (), origins: Sequence[str] = (),
        log: str = "none", largest: int = 32 << 20, page: bool = True) -> Starlette:
  """The ASGI application. keys, hosts, origins, largest: see Guard. log: of choices.LOGS. page: whether / has one."""
  about = document(described(), service.version, bool(keys))
  routes = [Route(HERE, partial(_document, about)), *([Route("/", web_page.page)] if page else [])]
  for paths, (kind, answer, _) in BODIES.items():
    routes += [Route(path, _Asked(service, kind, answer), methods=["POST"]) for path in paths]
  for paths, (fact, _, _) in FACTS.items(): routes += [Route(path, partial(_fact, service, fact)) for path in paths]
  handlers: dict[Any, Any] = dict.fromkeys((ApiError, InputError, HTTPException, Exception), _failed)
  handlers |= {Gone: _gone, ClientDisconnect: _gone}
  middleware = [Middleware(AccessLog, writer(log)), Middleware(Guard, keys, hosts, origins, largest)]
  return Starlette(routes=routes, exception_handlers=handlers, middleware=middleware)

class _Asked:
  """A route with a body. An answer with a parameter `receive` looks whether the client is still there."""
  def __init__(self, service: Service, kind: type, answer: Answer):
    self._service, self._kind, self._answer = service, kind, answer
    self._looks = "receive" in inspect.signature(answer).parameters

  async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
    request = Request(scope, receive)
    check_is_json(request.headers)
    asked: Any = schemas.decoded(await request.body(), self._kind)
    response = await self._answer(self._service, asked, *((receive,) if self._looks else ()))
    await response(scope, receive, send)

async def _fact(service: Service, fact: Answer, request: Request) -> Response:
  return await fact(service, **request.path_params)

async def _document(about: dict[str, Any], _: Request) -> Response:
  """This document: the routes, the bodies of requests, and the errors."""
  return Json(about)

async def _gone(_: Request, __: Exception) -> Response: return Response(status_code=499)

async def _failed(request: Request, e: Exception) -> Response:
  if isinstance(e, HTTPException):
    what = {404: f"there is nothing at {request.url.path!r:.200}", 405: f"{request.method} is not for this path"}
    code = "not_found" if e.status_code == 404 else None
    told = ApiError(e.status_code, what.get(e.status_code, str(e.detail)), code)
    told.headers |= e.headers or {}  # which methods there are
    return error_reply(told)
  return error_reply(as_api_error(e))
