"""
Malformed HTTP requests, drawn at random, as the bytes of a connection.

hostile(rng, document) draws one. The document, which is the server's own, gives the fields of its JSON.
"""
import json
import random
import re
from collections.abc import Callable
from typing import Any, NamedTuple

JSON = b"content-type: application/json\r\n"
GOOD = {"messages": [{"role": "user", "content": "a fox"}], "prompt": "a fox", "input": "a fox", "content": "a fox",
        "tokens": [5], "input_prefix": "a", "input_suffix": "b", "max_tokens": 3, "n_predict": 3, "n": 1}
def depth(rng: random.Random) -> int: return rng.choice((3, rng.randint(50, 1500), 100_000))

VALUES: list[Callable[[random.Random], str]] = [  # JSON, or nearly so
  lambda r: r.choice(("null", "true", "false", "0", "-1", "1.5", '""', "[]", "{}", "-0", "1e999", "-1e999", "NaN",
                      "Infinity", "-Infinity", "nan", "undefined", "'x'", "01", "+1", ".5", "1.", "0x10", "1_0")),
  lambda r: r.choice(("", "-")) + r.choice((str(2 ** r.choice((31, 32, 53, 63, 64)) + r.randint(-1, 1)), "9" * 5000)),
  lambda r: "[" * (n := depth(r)) + r.choice(("", "1")) + "]" * r.choice((n, n, n - 1)),
  lambda r: '{"a":' * (n := depth(r)) + "1" + "}" * r.choice((n, n, n - 1)),
  lambda r: r.choice(('"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', '"\\uFFFF"', '"\\x"', '"\\u12"', '"\t"', '"',
                      '"\\')),
  lambda r: '"' + "a" * r.choice((1, 1000, 200_000)) + '"',
  lambda r: "[" + ",".join(r.choices(("1", '"x"', "null", "[]", "{}", "-5", "1e9"), k=r.randint(0, 9))) + "]",
  lambda r: json.dumps({r.choice(("role", "content", "type", "schema", "json_schema", "5", "a")):
                        r.choice(("user", "text", "json_schema", None, 5, {"type": "string"}, [[]]))
                        for _ in range(3)}),
  lambda r: '{"type":"json_schema","json_schema":{"schema":' + r.choice((
    "5", "{}", "true", '{"type":5}', '{"$ref":"#"}', '{"$ref":"http://x"}', '{"pattern":"(("}', '{"type":"object","prop'
    'erties":{"a":{"$ref":"#"}}}', '{"enum":[]}', '{"minItems":9999999999999,"type":"array"}')) + "}}",
  lambda r: r.choice(('"(((("', '"a{999999}"', '"(a*)*b"', '"[[:"', '"start: /x/"', '"start: start"', '"\\\\d+"'))]

class Hostile(NamedTuple):
  """data: what the client sends. kind: how it was drawn."""
  kind: str
  data: bytes

def hostile(rng: random.Random, document: dict[str, Any]) -> Hostile:
  """A request, most of them wrong, on a connection of its own."""
  kind = rng.choice([*KINDS])
  return Hostile(kind, KINDS[kind](rng, document))

def bodies(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
  """{path: {field: schema}} of the routes with a body."""
  schemas, found = document["components"]["schemas"], {}
  for path, methods in document["paths"].items():
    if (post := methods.get("post")) is not None:
      ref = post["requestBody"]["content"]["application/json"]["schema"]["$ref"]
      found[path] = schemas[ref.rsplit("/", 1)[1]]["properties"]
  return found

def request(path: str, body: bytes, headers: bytes = JSON, method: bytes = b"POST", close: bool = True,
            length: bool = True) -> bytes:
  end = b"connection: close\r\n" if close else b""
  size = b"content-length: %d\r\n" % len(body) if length else b""
  return method + b" " + path.encode() + b" HTTP/1.1\r\nhost: 127.0.0.1\r\n" + headers + size + end + b"\r\n" + body

def drawn(rng: random.Random, document: dict[str, Any], changes: int = 1) -> tuple[str, bytes]:
  """A path and its body, good but for some fields of random values, which need not be JSON."""
  path, fields = rng.choice([*bodies(document).items()])
  values = {name: json.dumps(GOOD[name]) for name in GOOD if name in fields}
  for name in rng.choices([*fields, "unknown"], k=changes): values[name] = rng.choice(VALUES)(rng)
  pairs = [f"{json.dumps(name)}:{value}" for name, value in values.items()]
  return path, ("{" + ",".join(pairs) + "}").encode()

def fields(rng: random.Random, document: dict[str, Any]) -> bytes:
  return request(*drawn(rng, document, rng.randint(1, 3)))

def broken(rng: random.Random, document: dict[str, Any]) -> bytes:
  """Bytes of the JSON changed, left out, doubled, or no UTF-8."""
  path, body = drawn(rng, document, 0)
  for _ in range(rng.randint(1, 4)):
    at, what = rng.randrange(len(body) + 1), rng.randrange(4)
    body = (body[:at], body[:at] + bytes([rng.randrange(256)]) + body[at + 1:], body[:at] + body[at // 2:],
            body[:at] + rng.choice((b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\x00", b"\xef\xbb\xbf")) + body[at:])[what]
  return request(path, body)

def twice(rng: random.Random, document: dict[str, Any]) -> bytes:
  """A key comes twice, with values of two kinds."""
  path, body = drawn(rng, document, 0)
  name = rng.choice(re.findall(rb'"(\w+)":', body))
  return request(path, body[:-1] + b',"' + name + b'":' + rng.choice(VALUES)(rng).encode() + b"}")

def whole(rng: random.Random, document: dict[str, Any]) -> bytes:
  """Any value instead of an object."""
  return request(rng.choice([*bodies(document)]), rng.choice(VALUES)(rng).encode("utf-8", "surrogatepass"))

def typed(rng: random.Random, document: dict[str, Any]) -> bytes:
  path, body = drawn(rng, document, 0)
  kind = rng.choice((b"", b"text/plain", b"application/json; charset=utf-16", b"multipart/form-data; boundary=x", b"/",
                     b"application/x-www-form-urlencoded", b"application/json, text/plain", b"\xff", b"a" * 5000))
  encoding = rng.choice((b"", b"content-encoding: gzip\r\n", b"content-encoding: br\r\n"))
  body = rng.choice((body, body.decode().encode("utf-16")))
  return request(path, body, b"content-type: " + kind + b"\r\n" + encoding)

def chunked(rng: random.Random, document: dict[str, Any]) -> bytes:
  """A body in chunks, right or wrong."""
  path, body = drawn(rng, document, 0)
  cut = rng.randrange(len(body))
  def chunk(part: bytes) -> bytes:
    size = rng.choice((b"%x", b"%X", b"%x;a=b", b"0000%x")) % len(part)
    return rng.choice((size,) * 8 + (b"-1", b"", b"g", b"ffffffffffffffffffff", b"1")) + b"\r\n" + part + b"\r\n"
  end = rng.choice((b"0\r\n\r\n",) * 4 + (b"0\r\nx: y\r\n\r\n", b"0\r\nx\r\n\r\n", b"0\n\n", b"", b"0\r\n"))
  data = chunk(body[:cut]) + chunk(body[cut:]) + end
  return request(path, data, JSON + b"transfer-encoding: chunked\r\n", length=False)

def framed(rng: random.Random, document: dict[str, Any]) -> bytes:
  """Two lengths that differ, or a length and chunks: a second request hides in the body of the first."""
  path, body = drawn(rng, document, 0)
  inner = request("/health", b"", b"x-hidden: yes\r\n", b"GET")
  lengths = rng.choice((
    b"content-length: %d\r\ntransfer-encoding: chunked\r\n" % len(body),
    b"transfer-encoding: chunked\r\ncontent-length: %d\r\n" % len(body),
    b"content-length: %d\r\ncontent-length: %d\r\n" % (len(body), len(body + inner)),
    b"content-length: %d, %d\r\n" % (len(body), len(body + inner)), b"content-length: +%d\r\n" % len(body),
    b"content-length: -1\r\n", b"content-length: 0x5\r\n", b"content-length: 99999999999999999999\r\n",
    b"content-length : %d\r\n" % len(body), b"transfer-encoding: xchunked\r\n", b"transfer-encoding: gzip, chunked\r\n",
    b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n", b"transfer-encoding:\x0bchunked\r\n",
    b"Transfer-Encoding\t: chunked\r\n", b"content-length:\r\n %d\r\n" % len(body)))
  data = rng.choice((body, b"0\r\n\r\n", b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)))
  return request(path, data + inner, JSON + lengths, close=False, length=False)

def headed(rng: random.Random, document: dict[str, Any]) -> bytes:
  """Headers too large, too many, or no headers."""
  path, body = drawn(rng, document, 0)
  more = rng.choice((
    b"x: " + b"a" * 200_000 + b"\r\n", b"".join(b"x-%d: y\r\n" % i for i in range(3000)), b"x: a\x00b\r\n", b": x\r\n",
    b"x\r\n", b"x: a\r\n b\r\n", b"x: \xff\xfe\r\n", b"host: 127.0.0.1\r\n", b"host: evil.example\r\n",
    b"expect: 100-continue\r\n", b"expect: nothing\r\n", b"connection: upgrade\r\nupgrade: websocket\r\n",
    b"connection: upgrade\r\nupgrade: h2c\r\n", b"authorization: Bearer \xff\r\n",
    b"x-request-id: " + b"\xe9" * 300 + b"\r\n",
    b"origin: http://[::1\r\n", b"origin: null\r\n", b"origin: \xff\r\n", b"sec-fetch-site: cross-site\r\n",
    b"if-none-match: " + b",".join([b'W/"x"'] * 900) + b"\r\n", b"content-length: 5\r\n", b"host:\r\n"))
  return request(path, body, JSON + more)

def lined(rng: random.Random, document: dict[str, Any]) -> bytes:
  """Strange request lines."""
  target = rng.choice((b"/" + b"a" * 100_000, b"//", b"/%00", b"/%ff", b"/../../etc/passwd", b"/v1/models/%2e%2e", b"*",
                       b"http://evil.example/health", b"/health?" + b"&".join([b"a=b"] * 500),
                       b"/v1/models/" + b"%41" * 900, b"/\xff", b"", b"/ x", b"/health#x", b"[", b"http://[",
                       b"/v1/models/a%0d%0ab"))
  method = rng.choice((b"GET", b"POST", b"HEAD", b"OPTIONS", b"TRACE", b"CONNECT", b"get", b"G E T", b"\x16\x03\x01",
                       b"", b"PRI", b"A" * 5000))
  version = rng.choice((b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9.9", b"", b"HTTP/1.1 ", b"ICY"))
  end = rng.choice((b"\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n",
                    b"\nhost: 127.0.0.1\nconnection: close\n\n", b"\r\n\r\n"))
  return method + b" " + target + b" " + version + end

def half(rng: random.Random, document: dict[str, Any]) -> bytes:
  """A request that ends too early."""
  whole = rng.choice((fields, chunked, headed))(rng, document)
  return whole[:rng.randrange(len(whole))]

def piped(rng: random.Random, document: dict[str, Any]) -> bytes:
  """Several requests at once, the last of which is malformed."""
  parts = [request("/health", b"", b"", b"GET", close=False) for _ in range(rng.randint(1, 20))]
  parts += [request(*drawn(rng, document, 1), close=False) for _ in range(rng.randint(0, 3))]
  rng.shuffle(parts)
  return b"".join(parts) + rng.choice([fields, broken, headed, lined, chunked])(rng, document)

def noise(rng: random.Random, document: dict[str, Any]) -> bytes:
  return rng.randbytes(rng.choice((1, 10, 1000, 100_000)))

KINDS: dict[str, Callable[[random.Random, dict[str, Any]], bytes]] = {f.__name__: f for f in (
  fields, fields, broken, twice, whole, typed, chunked, framed, headed, lined, half, piped, noise)}
