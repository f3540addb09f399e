"""The routes of the server."""
from __future__ import annotations

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
from tinygrad_llm.web.errors import ApiError, as_api_error
from tinygrad_llm.web.guard import Guard
from tinygrad_llm.web.replies import Gone, error_reply
from tinygrad_llm.web.service import Service

# {paths: (the kind of the body, the answer to it)}
ANSWERS: dict[tuple[str, ...], tuple[type, Callable[..., Awaitable[Response]]]] = {
  ("/v1/chat/completions", "/chat/completions"): (schemas.Chat, chat),
  ("/v1/completions",): (schemas.Completion, completions.completions),
  ("/completion", "/completions"): (schemas.Native, native.completion),
  ("/v1/embeddings",): (schemas.Embeddings, embeddings.embeddings),
  ("/embedding", "/embeddings"): (schemas.NativeEmbedding, embeddings.native)}
TEXTS: dict[str, tuple[type, Callable[..., Awaitable[Response]]]] = {
  "/tokenize": (schemas.Tokenize, native.tokenize), "/detokenize": (schemas.Detokenize, native.detokenize),
  "/v1/chat/completions/input_tokens": (schemas.Chat, input_tokens),
  "/chat/completions/input_tokens": (schemas.Chat, input_tokens),
  "/apply-template": (schemas.Template, native.apply_template)}
FACTS: dict[tuple[str, ...], Callable[[Service], Awaitable[Response]]] = {
  ("/health", "/v1/health"): operations.health, ("/v1/models", "/models"): operations.models,
  ("/metrics",): operations.metrics, ("/version",): operations.version,
  ("/props",): native.props, ("/slots",): native.slots, ("/tokenizer_info",): native.tokenizer_info}

def app(service: Service, keys: Sequence[str] = (), hosts: Sequence[str] = (), origins: Sequence[str] = (),
        log: str = "none", largest: int = 32 << 20, page: bool = True) -> Starlette:
  """The ASGI application. keys, hosts, origins, largest: see Guard. log: of choices.LOGS. page: whether / has one."""
  routes = [Route("/", web_page.page)] if page else []
  routes += [Route("/v1/models/{name:path}", partial(_model, service))]
  for paths, (kind, answer) in ANSWERS.items():
    routes += [Route(path, _Asked(service, kind, answer), methods=["POST"]) for path in paths]
  for path, (kind, answer) in TEXTS.items():
    routes.append(Route(path, _Asked(service, kind, answer, alone=True), methods=["POST"]))
  for paths, fact in FACTS.items(): routes += [Route(path, partial(_fact, service, fact)) for path in paths]
  handlers: dict[Any, Any] = dict.fromkeys((ApiError, InputError, HTTPException, Exception), _failed)
  handlers |= {Gone: _gone, ClientDisconnect: _gone}
  middleware = [Middleware(AccessLog, writer(log)), Middleware(Guard, keys, hosts, origins, largest)]
  return Starlette(routes=routes, exception_handlers=handlers, middleware=middleware)

class _Asked:
  """A route with a body. alone: its answer needs no look at whether the client is still there."""
  def __init__(self, service: Service, kind: type, answer: Callable[..., Awaitable[Response]], alone: bool = False):
    self._service, self._kind, self._answer, self._alone = service, kind, answer, alone

  async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
    request = Request(scope, receive)
    asked: Any = schemas.decoded(await request.body(), self._kind)
    response = await (self._answer(self._service, asked) if self._alone else
                      self._answer(self._service, asked, receive))
    await response(scope, receive, send)

async def _fact(service: Service, fact: Callable[[Service], Awaitable[Response]], _: Request) -> Response:
  return await fact(service)

async def _model(service: Service, request: Request) -> Response:
  return await operations.model(service, request.path_params["name"])

async def _gone(_: Request, __: Exception) -> Response: return Response(status_code=499)

async def _failed(request: Request, e: Exception) -> Response:
  if isinstance(e, HTTPException):
    what = {404: f"there is nothing at {request.url.path!r:.200}", 405: f"{request.method} is not for this path"}
    e = ApiError(e.status_code, what.get(e.status_code, str(e.detail)), "not_found" if e.status_code == 404 else None)
  return error_reply(as_api_error(e))

