"""The server's life: loading, queues, clients that leave, slow ones, signals, failures, and the command."""
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from tests.support import child
from tests.support.served import Served, served
from tinygrad_llm.errors import InputError
from tinygrad_llm.web import deadlines, replies

FOX = [{"role": "user", "content": "Tell me about a fox."}]
LONG = {"messages": FOX, "temperature": 0, "ignore_eos": True}

@pytest.fixture(scope="module")
def server():
  with served(parallel=2, queue=2) as found: yield found

def late(do: Callable[..., Any], seconds: float) -> Callable[..., Any]:
  def slow(*args):
    time.sleep(seconds)
    return do(*args)
  return slow

def slowed(server: Served, monkeypatch, seconds: float = 0.05) -> None:
  """Each step of the engine takes longer."""
  steps = server.service.llm.engine.steps
  for name in ("decode", "piece"):
    monkeypatch.setattr(steps, name, late(getattr(steps, name), seconds))

def running(server: Served, stream: bool = True):
  """A request that has begun to answer: its socket."""
  connection = socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])))
  body = httpx.Request("POST", server.url, json={**LONG, "stream": stream}).content
  connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
                     b"content-length: %d\r\n\r\n" % len(body) + body)
  return connection

@pytest.mark.parametrize("stream", [True, False])
def test_client_that_leaves_ends_its_answer(server, monkeypatch, stream):
  slowed(server, monkeypatch)
  connection = running(server, stream)
  assert server.until(lambda: server.service.running == 1 and server.service.slots[0].stream is not None)
  slot = server.service.slots[0].stream
  assert server.until(lambda: slot.timing.tokens > 2)
  connection.close()
  assert server.until(lambda: server.service.running == 0, 2) and slot.timing.tokens < 200
  assert server.idle() and not server.service.llm.pool_counts().referenced

def test_client_that_leaves_while_its_prompt_is_read(server, monkeypatch):
  slowed(server, monkeypatch, 0.5)
  connection = running(server)
  assert server.until(lambda: server.service.slots[0].stream is not None)
  connection.close()
  assert server.until(lambda: server.service.running == 0, 2) and server.idle()

def test_queue(server, monkeypatch):
  """Two run, two wait, the next is refused; whoever leaves the queue never starts."""
  slowed(server, monkeypatch)
  connections = [running(server) for _ in range(4)]
  assert server.until(lambda: (server.service.running, server.service.waiting) == (2, 2))
  refused = server.post("/v1/chat/completions", {"messages": FOX})
  assert refused.status_code == 503 and refused.headers["retry-after"]
  assert refused.json()["error"]["code"] == "queue_full"
  assert server.http.get("/health").status_code == 200
  slots = server.http.get("/slots").json()
  assert [s["is_processing"] for s in slots] == [True, True] and "fox" not in str(slots)
  tasks = server.service._tasks
  connections[3].close()
  assert server.until(lambda: server.service.waiting == 1)
  for connection in connections: connection.close()
  assert server.idle() and server.service._tasks <= tasks + 1

def test_headers_at_once_and_pings(server, monkeypatch):
  monkeypatch.setattr(replies, "PING", 0.1)
  slowed(server, monkeypatch, 0.6)
  begun = time.perf_counter()
  with server.http.stream("POST", "/v1/chat/completions", json={**LONG, "max_tokens": 1, "stream": True}) as r:
    assert r.status_code == 200 and r.headers["x-accel-buffering"] == "no" and time.perf_counter() - begun < 0.5
    assert sum(line.startswith(": ping") for line in r.iter_lines()) >= 3

def test_bytes_leave_at_once(server):
  """No answer waits until the client has acknowledged its headers: 40 ms on a connection that is kept."""
  def seconds() -> float:
    begun = time.perf_counter()
    server.http.get("/health").raise_for_status()
    return time.perf_counter() - begun
  assert sorted(seconds() for _ in range(40))[10] < 0.03
  sockets = [c.transport.get_extra_info("socket") for c in server.server.server_state.connections]
  assert sockets and all(s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for s in sockets)

def test_health_while_a_prompt_is_read(server):
  """The event loop answers while the engine computes."""
  text, slowest = "fox " * 400, 0.0
  thread = threading.Thread(target=lambda: server.post("/v1/chat/completions", {
    "messages": [{"role": "user", "content": text}], "max_tokens": 1}))
  thread.start()
  while thread.is_alive():
    begun = time.perf_counter()
    server.http.get("/health").raise_for_status()
    slowest = max(slowest, time.perf_counter() - begun)
  assert slowest < 1  # on a busy machine

def test_many_wrong_requests(server):
  """Malformed requests: each is a 4xx, and the server goes on."""
  paths = ("/v1/chat/completions", "/v1/completions", "/completion", "/v1/embeddings", "/tokenize", "/detokenize",
           "/apply-template")
  bodies = (b"", b"{", b"[]", b"null", b"\xff\xfe", b"{}", b'{"messages": 5}', b'{"prompt": {}}', b'{"tokens": ["a"]}',
            b'{"prompt": [[], []]}', b'{"prompt": [1.5]}', b'{"input": [null]}', b"[" * 5000, b'{"messages": [[]]}',
            b'{"prompt": [99999999]}', b'{"tokens": [-1]}', b'{"content": {"a": 1}}', b'{"messages":[{"role":1}]}')
  for path in paths:
    for body in bodies:
      r = server.http.post(path, content=body, headers={"content-type": "application/json"})
      known = path in ("/tokenize", "/detokenize") and r.status_code == 200  # no text, no tokens
      assert known or 400 <= r.status_code < 500 and r.json()["error"]["message"], (path, body, r.text)
  assert server.http.get("/v1/chat/completions").status_code == 405
  assert server.idle() and server.post("/v1/completions", {"prompt": "Once", "max_tokens": 1}).status_code == 200

def test_slow_senders_are_cut(server, monkeypatch):
  monkeypatch.setattr(deadlines, "HEADERS", 0.3)
  monkeypatch.setattr(deadlines, "BODY", 0.3)
  address = ("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
  begins = (b"", b"GET /health HT", b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\ncontent-length: 50\r\n\r\n{")
  connections = [(socket.create_connection(address), begin) for _ in range(20) for begin in begins]
  for connection, begin in connections: connection.sendall(begin)
  end = time.monotonic() + 5
  for connection, begin in connections:
    connection.settimeout(max(0.1, end - time.monotonic()))
    try: assert connection.recv(100) == b"", begin
    except ConnectionError: pass
    connection.close()
  assert server.http.get("/health").status_code == 200 and server.service.waiting == 0

def test_tokens_do_not_wait_for_acknowledgements(server, monkeypatch):
  made, found = deadlines.DeadlineProtocol.connection_made, list[int]()
  def noted(protocol: Any, transport: Any) -> None:
    made(protocol, transport)
    found.append(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
  monkeypatch.setattr(deadlines.DeadlineProtocol, "connection_made", noted)
  with httpx.Client(base_url=server.url) as other: other.get("/version")
  assert found and all(found)

def test_loading_and_failing():
  """Until the model is there, /health says so; an error of loading ends the server and is raised."""
  go = threading.Event()
  def load():
    go.wait(30)
    raise InputError("no such model")
  with served(load=load, wait=False) as server:
    for path, status in (("/health", 503), ("/v1/models", 200), ("/props", 503), ("/metrics", 200)):
      assert server.until(lambda path=path, status=status: server.http.get(path).status_code == status, 5), path
    assert server.http.get("/health").json()["status"] == "loading"
    refused = server.post("/v1/chat/completions", {"messages": FOX})
    assert refused.status_code == 503 and refused.json()["error"]["code"] == "loading"
    go.set()
    assert server.until(lambda: bool(server.codes)) and "no such model" in str(server.codes[0])

def test_drain(monkeypatch):
  """After the first signal running answers go on, new ones are refused; then the server ends."""
  with served(drain=20) as server:
    slowed(server, monkeypatch, 0.01)
    found = []
    body = {**LONG, "max_tokens": 60}
    thread = threading.Thread(target=lambda: found.append(server.post("/v1/chat/completions", body)))
    thread.start()
    assert server.until(lambda: server.service.running == 1)
    server.server.stop()
    with httpx.Client(base_url=server.url) as other:
      assert other.get("/health").json()["status"] == "draining"
      assert other.post("/v1/chat/completions", json=body).json()["error"]["code"] == "draining"
    thread.join(30)
    assert found[0].status_code == 200 and found[0].json()["usage"]["completion_tokens"] == 60
    assert server.until(lambda: server.codes == [0])

def test_drain_cuts_at_its_end(monkeypatch):
  with served(drain=0.3) as server:
    slowed(server, monkeypatch)
    with server.http.stream("POST", "/v1/chat/completions", json={**LONG, "stream": True}) as r:
      lines = r.iter_lines()
      next(lines)
      server.server.stop()
      rest = [line for line in lines if line]
    assert "about to end" in rest[-1] and "error" in rest[-1]
    assert server.until(lambda: server.codes == [0])

def test_engine_that_fails_ends_the_server(monkeypatch):
  """Open streams get an error event, /health says dead, and the exit code is 1."""
  with served() as server:
    slowed(server, monkeypatch)
    with server.http.stream("POST", "/v1/chat/completions", json={**LONG, "stream": True}) as r:
      lines = r.iter_lines()
      for _ in range(4): next(lines)
      def fail(*_): raise RuntimeError("the card is gone")
      monkeypatch.setattr(server.service.llm.engine.steps, "decode", fail)
      rest = [line for line in lines if line]
    assert "the card is gone" in rest[-1] and '"error"' in rest[-1]
    begun = time.monotonic()
    with httpx.Client(base_url=server.url) as other:
      assert server.until(lambda: other.get("/health").json()["status"] == "dead", 2)
      refused = other.post("/v1/chat/completions", json=LONG)
    assert refused.status_code == 503 and refused.headers["x-should-retry"] == "false" and time.monotonic() - begun < 2
    assert server.until(lambda: server.codes == [1])

def test_engine_that_sticks_is_told(server, monkeypatch):
  monkeypatch.setattr(server.service.llm.engine.progress, "look", lambda: (100.0, True))
  slowed(server, monkeypatch)
  connection = running(server)
  assert server.until(lambda: server.http.get("/health").json()["status"] == "stuck", 5)
  assert server.http.get("/health").status_code == 503
  connection.close()
  assert server.idle()

# *** the command

def command(*args: str, **options) -> subprocess.Popen[str]:
  return subprocess.Popen([sys.executable, "-m", "tinygrad_llm.serve", *args], env=child.environment(), text=True,
                          stderr=subprocess.PIPE, **options)

@pytest.mark.parametrize("args,said", [
  (["--port", "70000"], "--port 70000"), (["--parallel", "9"], "--parallel 9"), (["--nothing"], "--nothing"),
  (["-m", "nothing.gguf"], "nothing.gguf"), (["--api-key-file", "/nowhere/keys"], "/nowhere/keys"),
  (["--host", "no.such.host.invalid", "--port", "0"], "no.such.host.invalid"), (["--drain", "-1"], "--drain"),
  (["--api-key", ""], "--api-key"), (["--port", "USED"], "--port")])
def test_wrong_arguments_are_one_line(args, said):
  with socket.create_server(("127.0.0.1", 0)) as taken:
    args = [str(taken.getsockname()[1]) if arg == "USED" else arg for arg in args]
    done = command(*args)
    line = done.communicate(timeout=60)[1]
    assert done.returncode == 2 and line.startswith("error: ") and line.count("\n") == 1 and said in line

def test_command_answers_and_ends_by_a_signal():
  process = command("--port", "0", "--log-format", "json")
  assert process.stderr is not None
  url = re.search(r"http://[\d.:]+", process.stderr.readline())[0]
  with httpx.Client(base_url=url, timeout=120) as http:
    end = time.monotonic() + 300
    while http.get("/health").status_code != 200 and time.monotonic() < end: time.sleep(0.2)
    body = {"messages": FOX, "max_tokens": 3}
    answer = http.post("/v1/chat/completions", json=body, headers={"x-request-id": "mine"})
    assert answer.status_code == 200 and answer.headers["x-request-id"] == "mine"
    os.kill(process.pid, signal.SIGTERM)
  log = process.communicate(timeout=30)[1]
  assert process.returncode == 0 and "Tell me" not in log
  assert answer.json()["choices"][0]["message"]["content"] not in log
  assert '"path": "/v1/chat/completions", "status": 200' in log and '"request_id": "mine"' in log
