"""Hosts, origins, keys, content types and sizes, on an application that does nothing."""
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from tinygrad_llm.web.api.app import BODIES, app
from tinygrad_llm.web.guard import Guard
from tinygrad_llm.web.service import Service

LOCAL = "http://127.0.0.1:8080"

async def echo(request: Request) -> PlainTextResponse: return PlainTextResponse(f"{len(await request.body())}")

def client(base: str = LOCAL, **guard) -> TestClient:
  routes = [Route(path, echo, methods=["GET", "POST"]) for path in ("/", "/v1/models", "/props", "/health")]
  app = Starlette(routes=routes, middleware=[Middleware(Guard, **guard)])
  return TestClient(app, base_url=base)

@pytest.mark.parametrize("host,status", [
  ("127.0.0.1:8080", 200), ("localhost", 200), ("[::1]:99", 200), ("10.0.0.7", 200), ("LOCALHOST:1", 200),
  ("evil.example", 403), ("127.0.0.1.evil.example", 403), ("localhost.evil.example:8080", 403), ("", 403),
  ("[::1", 403), ("[]", 403), ("127.0.0.1, evil.example", 403), ("a@b", 403)])
def test_hosts(host, status):
  assert client().get("/props", headers={"host": host}).status_code == status

def test_named_host():
  assert client(hosts=["box.lan"]).get("/props", headers={"host": "box.lan:8080"}).status_code == 200

@pytest.mark.parametrize("headers,status", [
  ({}, 200), ({"origin": LOCAL}, 200), ({"origin": "http://evil.example"}, 403), ({"origin": "null"}, 403),
  ({"origin": "http://[::1"}, 403),
  ({"origin": "http://127.0.0.1:9"}, 403), ({"origin": "https://ours.example"}, 200),
  ({"sec-fetch-site": "cross-site"}, 403), ({"sec-fetch-site": "same-origin"}, 200), ({"sec-fetch-site": "none"}, 200)])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_origins(headers, status, method):
  asking = client(origins=["https://ours.example"])
  found = asking.request(method, "/props", headers={"content-type": "application/json", **headers})
  assert found.status_code == status
  shared = found.headers.get("access-control-allow-origin")
  assert shared == ("https://ours.example" if headers.get("origin") == "https://ours.example" else None)

@pytest.mark.parametrize("path,mode,method,status", [
  ("/", "navigate", "GET", 200), ("/", "no-cors", "GET", 403), ("/", "navigate", "POST", 403),
  ("/props", "navigate", "GET", 403)])
def test_links_of_other_sites_lead_to_the_page_only(path, mode, method, status):
  headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": mode, "content-type": "application/json"}
  assert client().request(method, path, headers=headers).status_code == status

def test_preflight():
  asking = {"access-control-request-method": "POST"}
  found = client(origins=["*"], keys=["k"]).options("/props", headers={"origin": "https://a.example", **asking})
  assert found.status_code == 200 and found.headers["access-control-allow-origin"] == "https://a.example"
  assert "authorization" in found.headers["access-control-allow-headers"]
  assert client().options("/props", headers={"origin": "https://a.example", **asking}).status_code == 403
  def allowed(names: str) -> str:
    headers = {"origin": "https://a.example", "access-control-request-headers": names, **asking}
    return client(origins=["*"]).options("/props", headers=headers).headers["access-control-allow-headers"]
  assert allowed("authorization, x-stainless-lang,x-b") == "authorization, x-stainless-lang,x-b"
  for wrong in ("a b", "a,", "a" * 50 + ", b" * 60): assert allowed(wrong) == allowed("")

@pytest.mark.parametrize("origin,status", [
  ("http://localhost", 200), ("http://localhost:3000", 200), ("https://127.0.0.1:3000", 200), ("http://[::1]:9", 200),
  ("http://localhost.evil.example", 403), ("http://notlocalhost", 403), ("null", 403),
  ("ftp://localhost", 403), ("http://[::1", 403), ("http://127.0.0.2", 403)])
def test_origins_of_this_machine(origin, status):
  assert client(origins=["localhost"]).get("/props", headers={"origin": origin}).status_code == status

@pytest.mark.parametrize("kind,status", [
  ("application/json", 503), ("application/json; charset=utf-8", 503), ("Application/JSON", 503),
  ("application/vnd.api+json", 503), ("text/plain", 415), ("application/x-www-form-urlencoded", 415),
  ("multipart/form-data", 415), ("", 415), ("text/plain; application/json", 415)])
def test_content_types(kind, status):
  """Each route that takes a body looks at its type first; the model that is not there is a 503."""
  asking = TestClient(app(Service("tiny", 1, 1)), base_url=LOCAL)
  for path in (path for paths in BODIES for path in paths):
    answer = asking.post(path, content=b'{"messages": [], "prompt": "x", "input": "x", "content": "x", "tokens": [], '
                         b'"input_prefix": "", "input_suffix": ""}', headers={"content-type": kind})
    assert answer.status_code == status, path

@pytest.mark.parametrize("headers,status", [
  ({}, 401), ({"authorization": "Bearer one"}, 200), ({"authorization": "bearer two"}, 200),
  ({"x-api-key": "two"}, 200), ({"authorization": "Bearer on"}, 401), ({"authorization": "Basic one"}, 401),
  ({"x-api-key": ""}, 401),
  ({"authorization": "Bearer"}, 401), ({"x-api-key": "one two"}, 401), ({"authorization": "Bearer \u00e9"}, 401)])
def test_keys(headers, status):
  encoded = {name: value.encode("latin-1") for name, value in headers.items()}
  asking = client(keys=["one", "two"])
  found = asking.get("/props", headers=encoded)
  assert found.status_code == status
  if status == 401: assert found.json()["error"]["type"] == "authentication_error" and found.headers["www-authenticate"]
  assert asking.get("/health").status_code == asking.get("/v1/models").status_code == 200

@pytest.mark.parametrize("chunked", [False, True])
def test_sizes(chunked):
  asking = client(largest=1000)
  def body(size: int): return iter([b"x" * 100] * (size // 100)) if chunked else b"x" * size
  headers = {"content-type": "application/json"}
  assert asking.post("/props", content=body(1000), headers=headers).text == "1000"
  if not chunked: assert asking.post("/props", content=body(1100), headers=headers).status_code == 413
  else:
    with pytest.raises(Exception, match="larger than 1000"): asking.post("/props", content=body(1100), headers=headers)
