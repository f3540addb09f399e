"""
The checks before a request's body is parsed: keys, hosts, origins, content types and sizes.

Why: a page on any site can send requests to a server on the same machine, and a name that is made to point at 127.0.0.1
reaches it, too (https://owasp.org/www-community/attacks/DNS_Rebinding). So a browser's foreign origin, a foreign Host
and a body that is no JSON are refused.
"""
from __future__ import annotations
import hmac, ipaddress, re
from collections.abc import Collection, Sequence
from urllib.parse import SplitResult, urlsplit
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tinygrad_llm.web.choices import LOCAL
from tinygrad_llm.web.errors import ApiError
from tinygrad_llm.web.replies import error_reply

NAMES = re.compile(r"[\w-]+(?:, ?[\w-]+){0,50}", re.ASCII)
PUBLIC = {"/", "/health", "/v1/health", "/v1/models", "/models", "/openapi.json"}  # without a key

class Guard:
  """
  Middleware. keys: none, and anybody may ask. hosts: names that a Host header may have, beside any IP address.

  origins: of pages on other sites that may ask; "localhost" is any page of this machine, "*" is all.
  largest: bytes of a body.
  """
  def __init__(self, app: ASGIApp, keys: Sequence[str] = (), hosts: Collection[str] = LOCAL,
               origins: Collection[str] = (), largest: int = 32 << 20):
    self._app, self._keys = app, [key.encode() for key in keys]
    self._hosts, self._origins, self._largest = {*hosts, *LOCAL}, {*origins}, largest

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http": return await self._app(scope, receive, send)
    headers = Headers(scope=scope)
    try:
      self._check_framing(headers)
      self._check_host(headers.get("host", ""))
      origin = self._allowed_origin(headers, is_link=scope["path"] == "/" and scope["method"] in ("GET", "HEAD"))
      if scope["method"] == "OPTIONS" and origin and "access-control-request-method" in headers:
        return await _preflight(send, origin, headers.get("access-control-request-headers", ""))
      send = _sharing(send, origin) if origin else send
      self._check_key(scope["path"], headers)
      self._check_size(headers)
    except ApiError as e: return await error_reply(e)(scope, receive, send)
    await self._app(scope, self._limited(receive), send)

  def _check_framing(self, headers: Headers) -> None:
    """A proxy may go by the other length, and take the end of one client's body for another client's request."""
    if "transfer-encoding" in headers and "content-length" in headers:
      error = ApiError(400, "the body has a Content-Length and a Transfer-Encoding; send one of them", "two_lengths")
      error.headers["connection"] = "close"
      raise error

  def _check_host(self, host: str) -> None:
    name = _split(f"//{host}").hostname or ""
    if name.lower() in self._hosts or "*" in self._hosts or _is_address(name): return
    raise ApiError(403, f"the host {name!r:.100} is not this server's; --allow-host adds a name", "forbidden_host")

  def _allowed_origin(self, headers: Headers, is_link: bool) -> str:
    """
    The foreign origin that is let in; "" if the request has none. ApiError for any other.

    is_link: a link on another site may lead here.
    """
    if (origin := headers.get("origin")) is None:
      is_link = is_link and headers.get("sec-fetch-mode") == "navigate"
      if headers.get("sec-fetch-site", "none") in ("cross-site", "same-site") and not is_link:
        raise ApiError(403, "a page on another site may not ask", "forbidden_origin")
      return ""
    where = _split(origin)
    if where.netloc == headers.get("host") and origin != "null": return ""
    if origin in self._origins or "*" in self._origins: return origin
    if "localhost" in self._origins and where.scheme in ("http", "https") and where.hostname in LOCAL:
      return origin
    raise ApiError(403, f"the origin {origin!r:.100} is not allowed; --cors-origin adds it", "forbidden_origin")

  def _check_key(self, path: str, headers: Headers) -> None:
    if not self._keys or path in PUBLIC: return
    scheme, _, given = headers.get("authorization", "").partition(" ")
    key = (given.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")).encode()
    # every key is compared, in constant time, so that the time tells nothing
    if not sum(hmac.compare_digest(key, known) for known in self._keys):
      raise ApiError(401, "Invalid API Key", "invalid_api_key")

  def _check_size(self, headers: Headers) -> None:
    length = headers.get("content-length", "0")
    if length.isdecimal() and int(length) > self._largest: raise self._too_large()

  def _too_large(self) -> ApiError:
    return ApiError(413, f"the body is larger than {self._largest} bytes", "body_too_large")

  def _limited(self, receive: Receive) -> Receive:
    """Counts a body that does not tell its length."""
    count = 0
    async def limited() -> Message:
      nonlocal count
      message = await receive()
      count += len(message.get("body", b""))
      if count > self._largest: raise self._too_large()
      return message
    return limited

def _split(url: str) -> SplitResult:
  """The parts of a URL; of one that is none, no parts."""
  try: return urlsplit(url)
  except ValueError: return urlsplit("")

def check_is_json(headers: Headers) -> None:
  """ApiError 415 if a body is said to be something else, as the form of a page on another site is."""
  kind = headers.get("content-type", "").partition(";")[0].strip().lower()
  if kind != "application/json" and not kind.endswith("+json"):
    raise ApiError(415, "the body must be JSON, with the header Content-Type: application/json", "not_json")

def _is_address(name: str) -> bool:
  try: ipaddress.ip_address(name)
  except ValueError: return False
  return True

async def _preflight(send: Send, origin: str, asked: str) -> None:
  """asked: names of headers. Clients such as openai's in a browser send some of their own."""
  allowed = asked if NAMES.fullmatch(asked) else "authorization, content-type, x-api-key"
  headers = [*_sharing_headers(origin), (b"access-control-allow-methods", b"GET, POST"),
             (b"access-control-allow-headers", allowed.encode()),
             (b"access-control-max-age", b"600")]
  await send({"type": "http.response.start", "status": 200, "headers": headers})
  await send({"type": "http.response.body", "body": b""})

def _sharing_headers(origin: str) -> list[tuple[bytes, bytes]]:
  return [(b"access-control-allow-origin", origin.encode()), (b"vary", b"Origin")]

def _sharing(send: Send, origin: str) -> Send:
  async def sharing(message: Message) -> None:
    if message["type"] == "http.response.start":
      message = {**message, "headers": [*message.get("headers", ()), *_sharing_headers(origin)]}
    await send(message)
  return sharing
