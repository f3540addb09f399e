"""Malformed requests and slow senders, many of them at random, while another client is served."""
import ctypes
import gc
import random
import re
import socket
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from tests.support.extended import some
from tests.support.hostile_requests import KINDS, Hostile, hostile
from tests.support.resident import resident
from tests.support.served import Served, served
from tinygrad_llm.web import deadlines

STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")
FOX = {"prompt": "Tell me about a fox.", "max_tokens": 8, "temperature": 0}
SECONDS = 20  # an answer that takes longer hangs

@pytest.fixture(scope="module")
def server():
  with served(queue=1000) as found:
    found.post("/v1/embeddings", {"input": "a fox"})  # which compiles its step
    found.post("/v1/completions", {**FOX, "echo": True, "logprobs": 1})
    yield found

@contextmanager
def normal_client(server: Served) -> Iterator[list[float]]:
  """Somebody who asks all the time: the seconds of each answer. All answers are right."""
  times, end, wrong = list[float](), threading.Event(), list[str]()
  want = server.post("/v1/completions", FOX).json()["choices"][0]["text"]
  def ask() -> None:
    while not end.is_set():
      begun = time.perf_counter()
      found = server.post("/v1/completions", FOX)
      times.append(time.perf_counter() - begun)
      if found.status_code != 200 or found.json()["choices"][0]["text"] != want: wrong.append(found.text)
      end.wait(0.02)
  thread = threading.Thread(target=ask)
  thread.start()
  try: yield times
  finally:
    end.set()
    thread.join(60)
  assert times and not wrong, wrong[:3]

def address(server: Served) -> tuple[str, int]: return "127.0.0.1", int(server.url.rsplit(":", 1)[1])

def answered(server: Served, data: bytes) -> bytes:
  """All that the server says on one connection. The client ends its side once the server has been silent for long."""
  found, silent = b"", False
  with socket.create_connection(address(server)) as connection:
    connection.settimeout(0.5)
    begun = time.monotonic()
    with suppress(ConnectionError):  # the server need not read the rest of what it has refused
      connection.sendall(data)
    while time.monotonic() - begun < SECONDS:
      try: part = connection.recv(1 << 16)
      except TimeoutError:
        if not silent:
          with suppress(OSError): connection.shutdown(socket.SHUT_WR)
        silent = True
        continue
      except ConnectionError: return found
      if not part: return found
      found += part
  raise AssertionError(f"no end after {SECONDS} s: {data[:300]!r} .. {found[-300:]!r}")

def memory() -> tuple[int, int]:
  """Resident bytes without what malloc keeps free, and the objects that the collector knows."""
  gc.collect()
  if sys.platform != "linux": return 0, len(gc.get_objects())
  if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None: trim(0)
  return resident(), len(gc.get_objects())

@pytest.mark.parametrize("count,seed", some(((150, 1), (2000, 2)), 0))
def test_malformed_requests(server, count, seed):
  """Each is refused or answered, none is a 5xx, and nothing of it stays."""
  rng, document = random.Random(seed), server.http.get("/openapi.json").json()
  cases, statuses, faults = [hostile(rng, document) for _ in range(count)], Counter[tuple[str, int]](), list[Any]()
  lock, left, held = threading.Lock(), iter(cases[:0]), list[tuple[int, int]]()
  def next_case() -> Hostile | None:
    with lock: return next(left, None)
  def work() -> None:
    for case in iter(next_case, None):
      try: found = [int(status) for status in STATUS.findall(answered(server, case.data))]
      except Exception as e:
        faults.append((case.kind, e))
        continue
      with lock:
        statuses.update((case.kind, status) for status in found or [0])
        if any(status >= 500 for status in found): faults.append((case.kind, found, case.data[:3000]))
  with normal_client(server) as times:
    for half in (cases[:count // 2], cases[count // 2:]):
      left = iter(half)
      threads = [threading.Thread(target=work) for _ in range(4)]
      for thread in threads: thread.start()
      for thread in threads: thread.join()
      held.append(memory())
  told = {kind: {status: n for (k, status), n in sorted(statuses.items()) if k == kind} for kind in KINDS}
  print(told, f"normal client: {len(times)} answers, median {statistics.median(times):.3f} s, worst {max(times):.3f} s",
        "after each half: " + ", ".join(f"{size >> 20} MB, {objects} objects" for size, objects in held), sep="\n")
  assert not faults, faults[:5]
  assert server.idle() and server.service.health() == "ok" and not server.service.llm.pool_counts().referenced
  assert server.until(lambda: len(server.server.server_state.connections) <= 1)  # the test's own client
  (size, objects), (size_after, objects_after) = held
  if count >= 2000: assert objects_after <= 1.02 * objects and size_after <= 1.15 * size, held  # pages come and go

def test_second_request_in_a_body_is_not_answered(server):
  """A proxy that goes by the other length would take it for another client's."""
  inner = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
  for lengths, body in ((b"content-length: 5\r\ntransfer-encoding: chunked\r\n", b"0\r\n\r\n"),
                        (b"transfer-encoding: chunked\r\ncontent-length: %d\r\n" % (5 + len(inner)), b"0\r\n\r\n"),
                        (b"content-length: 2\r\ncontent-length: %d\r\n" % (2 + len(inner)), b"{}")):
    data = b"POST /tokenize HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n" + lengths
    found = answered(server, data + b"\r\n" + body + inner)
    assert STATUS.findall(found) == [b"400"] and b"connection: close" in found.lower(), found

@pytest.mark.parametrize("kind,status", [("text/plain", 415), ("application/json", 400)])
def test_body_that_breaks_off(server, caplog, kind, status):
  """A chunk that is none, after the answer or before it: the connection ends without an error of the server's own."""
  with socket.create_connection(address(server)) as connection:
    connection.settimeout(5)
    connection.sendall(b"POST /tokenize HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: " + kind.encode() +
                       b"\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n")
    found = connection.recv(1 << 16) if status == 415 else b""
    while b"}}" not in found and status == 415: found += connection.recv(1 << 16)
    connection.sendall(b"zz\r\n")
    with suppress(ConnectionError):
      while part := connection.recv(1 << 16): found += part
  assert STATUS.findall(found) == [b"%d" % status] and not caplog.records

def test_many_values_are_refused_at_once(server):
  """A million empty lists take 0.2 s to read, ten million would take many: nobody else is answered meanwhile."""
  for value in (b"[],", b"1,", b'"a",'):
    begun = time.perf_counter()
    r = server.http.post("/v1/completions", content=b'{"prompt":[' + value * (2 << 20) + b'1]}',
                         headers={"content-type": "application/json"})
    assert r.status_code == 413 and r.json()["error"]["code"] == "body_too_large" and time.perf_counter() - begun < 3

class Slow:
  """
  A client that sends or reads a byte now and then, and begins anew when it is cut. cut: how often that was.
  """
  STARTS = (b"", b"GET /health HT", b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nx-a: ",
            b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            b"content-length: 5000\r\n\r\n{", b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n")
  def __init__(self, server: Served, rng: random.Random):
    self._server, self._rng, self.cut = server, rng, 0
    self._begin()

  def _begin(self) -> None:
    self._socket = socket.create_connection(address(self._server))
    self._socket.setblocking(False)
    self._socket.sendall(self._rng.choice(self.STARTS))

  def go_on(self) -> None:
    try:
      if self._rng.random() < 0.3: self._socket.send(b"a")
      if self._socket.recv(1000): return
    except BlockingIOError: return
    except ConnectionError: pass
    self._socket.close()
    self.cut += 1
    self._begin()

  def close(self) -> None: self._socket.close()

@pytest.mark.parametrize("count,seconds", some(((60, 2), (200, 20)), 0))
def test_slow_senders_starve_nobody(server, monkeypatch, count, seconds):
  """They hold connections only: no slots, no place in the queue, and no memory. Each is cut, again and again."""
  monkeypatch.setattr(deadlines, "HEADERS", seconds / 4)
  monkeypatch.setattr(deadlines, "BODY", seconds / 4)
  rng = random.Random(count)
  with normal_client(server) as alone: time.sleep(seconds / 4)
  slow, sizes, end = [Slow(server, rng) for _ in range(count)], list[int](), time.monotonic() + seconds
  with normal_client(server) as times:
    while time.monotonic() < end:
      for one in slow: one.go_on()
      sizes.append(resident() if sys.platform == "linux" else 0)
      assert server.service.waiting == 0
      time.sleep(0.02)
  for one in slow: one.close()
  print(f"{sum(one.cut for one in slow)} cuts of {count} senders; a normal answer: median "
        f"{statistics.median(times):.3f} s, worst {max(times):.3f} s of {len(times)}; alone "
        f"{statistics.median(alone):.3f} s; {sizes[0] >> 20} to {max(sizes) >> 20} MB")
  assert all(one.cut for one in slow) and max(times) < 2
  assert server.idle() and server.until(lambda: len(server.server.server_state.connections) <= 1)
  assert max(sizes) <= 1.02 * sizes[0] + (4 << 20)
