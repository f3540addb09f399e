"""Each fault of the engine is told by /health within 2 s; a fault of one client or request is not."""
import os
import re
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from tests.support.extended import extended, some
from tests.support.served import Served, served
from tests.web.test_life import FOX, LONG, command, slowed
from tinygrad_llm.engine.batch import health
from tinygrad_llm.engine.batch.engine import Engine
from tinygrad_llm.errors import DeviceError

ERRORS = (RuntimeError("the card is gone"), MemoryError(), DeviceError("CUDA: out of memory"), OSError(5, "x"),
          SystemExit(2), KeyboardInterrupt(), RecursionError())
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
TOLD = 2.0  # seconds

@pytest.fixture(scope="module")
def server():
  with served(parallel=2, queue=2) as found: yield found

def raising(error: BaseException):
  def fail(*_, **__): raise error
  return fail

def status(server: Served) -> str:
  with httpx.Client(base_url=server.url, timeout=TOLD) as http:
    found: str = http.get("/health").json()["status"]
    return found

def dies(monkeypatch, target: object, name: str, error: BaseException, prompt_only: bool = False) -> None:
  """A fault while a stream runs, or while the next prompt is read: the reader, /health and the exit code tell it."""
  with served(parallel=2, queue=2) as server:
    if not prompt_only: slowed(server, monkeypatch)
    with server.http.stream("POST", "/v1/chat/completions", json={**LONG, "stream": True}) as r:
      lines = r.iter_lines()
      for _ in range(4): next(lines)
      monkeypatch.setattr(target or server.service.llm.engine.steps, name, raising(error))
      begun = time.monotonic()
      # a piece reads it: it shares one token, at most, with the stream's prompt, which may be in the pool by now
      if prompt_only: server.http.post("/v1/completions", json={"prompt": "Once upon a time", "max_tokens": 1})
      rest = [line for line in lines if line]
    assert server.until(lambda: status(server) == "dead", TOLD) and time.monotonic() - begun < TOLD
    assert prompt_only or '"error"' in rest[-1]
    monkeypatch.undo()
    assert server.until(lambda: server.codes == [1])

@pytest.mark.parametrize("error", some(ERRORS, 0, 4), ids=lambda e: type(e).__name__)
def test_step_that_raises(monkeypatch, error): dies(monkeypatch, None, "decode", error)

def test_prompt_that_raises(monkeypatch): dies(monkeypatch, None, "piece", MemoryError(), prompt_only=True)

@pytest.mark.parametrize("name", some(["step", "_failed"], 0))
def test_thread_that_ends(monkeypatch, name):
  """An error beside the steps ends the engine's thread."""
  if name == "_failed": monkeypatch.setattr(Engine, "_decode", raising(RuntimeError("x")))
  dies(monkeypatch, Engine, name, RuntimeError("x"))

def test_step_that_hangs(server, monkeypatch):
  """It is told once the step is over its time, and no longer once it has returned."""
  steps, go = server.service.llm.engine.steps, threading.Event()
  for _ in range(3): server.post("/v1/completions", {"prompt": "Once", "max_tokens": 3})
  monkeypatch.setattr(health, "SHORT", 0.2)
  monkeypatch.setattr(health, "TIMES", 0)
  decode = steps.decode
  def hang(*args):
    go.wait(30)
    return decode(*args)
  with ThreadPoolExecutor() as pool:
    monkeypatch.setattr(steps, "decode", hang)
    answer = pool.submit(server.post, "/v1/completions", {"prompt": "Once", "max_tokens": 3})
    assert server.until(lambda: status(server) == "stuck", TOLD)
    assert server.http.get("/health").status_code == 503
    go.set()
    assert answer.result().status_code == 200 and server.until(lambda: status(server) == "ok", TOLD)

@pytest.mark.parametrize("path,body,name", [
  ("/v1/embeddings", {"input": "a fox"}, "embed"),
  ("/v1/completions", {"prompt": "a fox", "echo": True, "logprobs": 1, "max_tokens": 1}, "iter_logits")])
def test_other_work_that_hangs(server, monkeypatch, path, body, name):
  """Embeddings and scores of prompts run beside the engine's steps, and hold the model."""
  go, done = threading.Event(), getattr(server.service.llm, name)
  def hang(*args):
    go.wait(30)
    return done(*args)
  monkeypatch.setattr(server.service.llm, name, hang)
  with ThreadPoolExecutor() as pool:
    answer = pool.submit(server.post, path, body)
    time.sleep(0.3)
    assert status(server) == "ok"
    monkeypatch.setattr(health, "FIRST", 0.2)
    assert server.until(lambda: status(server) == "stuck", TOLD)
    go.set()
    assert answer.result().status_code == 200 and server.until(lambda: status(server) == "ok", TOLD)
  assert server.idle()

@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("x")], ids=lambda e: type(e).__name__)
def test_other_work_that_raises(server, monkeypatch, error):
  """It is an error of its request. The engine goes on."""
  monkeypatch.setattr(server.service.llm, "embed", raising(error))
  assert server.post("/v1/embeddings", {"input": "a fox"}).status_code == 500
  assert status(server) == "ok" and server.idle()
  assert server.post("/v1/chat/completions", {"messages": FOX, "max_tokens": 2}).status_code == 200

def test_socket_that_is_reset(server, monkeypatch):
  """A client that vanishes is no fault: its answer ends."""
  slowed(server, monkeypatch)
  connection = socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])))
  body = httpx.Request("POST", server.url, json={**LONG, "stream": True}).content
  connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
                     b"content-length: %d\r\n\r\n" % len(body) + body)
  assert server.until(lambda: server.service.running == 1)
  connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
  connection.close()
  assert server.until(lambda: server.service.running == 0, TOLD) and status(server) == "ok" and server.idle()

@extended
def test_process_that_is_killed():
  """Nobody answers any more at once; another process takes the port and answers."""
  port = 0
  for _ in range(2):
    process = command("--port", str(port), "--log-format", "none")
    assert process.stderr is not None
    url = re.search(r"http://[\d.:]+", process.stderr.readline())[0]
    port = int(url.rsplit(":", 1)[1])
    with httpx.Client(base_url=url, timeout=60) as http:
      end = time.monotonic() + 300
      while http.get("/health").status_code != 200 and time.monotonic() < end: time.sleep(0.2)
      with http.stream("POST", "/v1/chat/completions", json={**LONG, "stream": True}) as r: next(r.iter_lines())
      os.kill(process.pid, signal.SIGKILL)
      process.wait(10)
      with pytest.raises(httpx.TransportError): http.get("/health")
    process.communicate()
