"""
/openapi.json: what the API takes and gives, for programs (https://spec.openapis.org/oas/v3.1.0).

How: the app's own tables give the paths, the structs of `schemas` the bodies, and the answers' docstrings the texts. So
there is no second list that could differ.
"""
from __future__ import annotations
from collections.abc import Awaitable, Callable, Collection, Iterable
from http import HTTPStatus
from typing import Any, NamedTuple
import msgspec
from starlette.responses import Response
from starlette.routing import Route
from tinygrad_llm.web.errors import Error
from tinygrad_llm.web.guard import PUBLIC

JSON, EVENTS = "application/json", "text/event-stream"
EVENT = {"type": "object", "required": ["data"],  # each of a stream's, as tools before OpenAPI 3.2 read it
         "properties": {"data": {"type": "string", "description": "JSON; an error has the key `error`; or [DONE]"}}}
CONTENT = {JSON: {}, EVENTS: EVENT}  # schemas; a text's else
SCHEMES = {"bearer": {"type": "http", "scheme": "bearer"}, "key": {"type": "apiKey", "in": "header",
                                                                   "name": "X-Api-Key"}}
COMMON = (403,)                          # of all requests: a foreign host or origin
WITH_BODY = (400, 413, 415, 500, 503)    # of requests with a body, beside these
WHY = {400: "The body is no JSON, or a field is wrong; `param` names it", 401: "The key is missing or wrong",
       403: "The Host or Origin header is foreign", 404: "There is no such model",
       405: "Another method is for this path",
       413: "The body is too large", 415: "The body's content type is not JSON",
       500: "The engine has failed at this request",
       503: "The model loads, too many requests wait, the server ends, or its engine has failed"}

class Operation(NamedTuple):
  """
  A route for the document. body: the struct of its JSON; None: it has none. answer: whose docstring tells what it does.

  content: types of its answer. errors: its statuses beside the usual ones.
  """
  path: str
  answer: Callable[..., Awaitable[Response]]
  body: type | None = None
  content: Collection[str] = (JSON,)
  errors: Collection[int] = ()

  @property
  def method(self) -> str: return "GET" if self.body is None else "POST"

def document(operations: Iterable[Operation], version: str, with_keys: bool) -> dict[str, Any]:
  """The document. with_keys: requests need a key, but for the public paths."""
  operations = [*operations]
  structs = [Error, *dict.fromkeys(o.body for o in operations if o.body is not None)]
  refs, components = msgspec.json.schema_components(structs, ref_template="#/components/schemas/{name}")
  ref_of, paths = dict(zip(structs, refs)), dict[str, Any]()
  for o in operations:
    has_key = with_keys and o.path not in PUBLIC
    paths.setdefault(o.path.replace(":path}", "}"), {})[o.method.lower()] = _operation(o, ref_of, has_key)
  return {"openapi": "3.1.0", "info": {"title": "tinygrad_llm", "version": version or "0"}, "paths": paths,
          "components": {"schemas": components, **({"securitySchemes": SCHEMES} if with_keys else {})}}

def _operation(o: Operation, ref_of: dict[type, Any], has_key: bool) -> dict[str, Any]:
  error = {JSON: {"schema": ref_of[Error]}}
  errors = {*COMMON, 405, *o.errors, *(WITH_BODY if o.body is not None else ()), *((401,) if has_key else ())}
  good = {kind: {"schema": CONTENT.get(kind, {"type": "string"})} for kind in o.content}
  text = " ".join((o.answer.__doc__ or "").split())
  found: dict[str, Any] = {
    "operationId": f"{o.method.lower()}{o.path.translate(str.maketrans('/-{}:', '_____'))}",
    "summary": text.partition(". ")[0].rstrip("."), "description": text,
    "responses": {"200": {"description": HTTPStatus(200).phrase, "content": good},
                  **{str(status): {"description": WHY[status], "content": error} for status in sorted(errors)}}}
  if has_key: found["security"] = [{name: []} for name in SCHEMES]
  if o.body is not None: found["requestBody"] = {"required": True, "content": {JSON: {"schema": ref_of[o.body]}}}
  names = Route(o.path, o.answer).param_convertors
  if names: found["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                                   for name in names]
  return found
