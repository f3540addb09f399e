"""A server in a thread of the test's process, and clients of it."""
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httpx
import openai
import tinygrad_llm
from tinygrad_llm.web.api.app import app
from tinygrad_llm.web.lifecycle import Server, listen, serve
from tinygrad_llm.web.service import Service

class Served(NamedTuple):
  """http: a client of its own address. codes: the exit code or the error, once it has ended."""
  url: str
  service: Service
  server: Server
  http: httpx.Client
  codes: list[Any]

  def openai(self, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{self.url}/v1", **({"api_key": "none", "max_retries": 0} | options))

  def post(self, path: str, body: Any) -> httpx.Response: return self.http.post(path, json=body)

  def until(self, true: Callable[[], bool], seconds: float = 20) -> bool:
    """Waits until something is true; whether it came to be."""
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end: time.sleep(0.01)
    return true()

  def idle(self) -> bool:
    """Waits until nothing runs, in the server and in the engine."""
    service = self.service
    return self.until(lambda: not service.running + service.waiting and not service.llm.engine.is_busy())

@contextlib.contextmanager
def served(path: Any = None, parallel: int = 4, queue: int = 64, load: Callable[[], Any] | None = None,
           drain: float = 5, wait: bool = True, context: int = 4096, **guard: Any) -> Iterator[Served]:
  """path: the model's file, the bundled one by default. guard: arguments of app(). wait: until the model is loaded."""
  service, sock, codes = Service("tiny", parallel, queue, "0"), listen("127.0.0.1", 0), list[Any]()
  server = Server(service, app(service, **guard), drain)
  def loaded() -> Any:
    llm = tinygrad_llm.load(path and str(path), max_context=context)
    llm.prepare(parallel)
    return llm
  def run() -> None:
    try: codes.append(serve(server, sock, load or loaded))
    except Exception as e: codes.append(e)
  thread = threading.Thread(target=run, daemon=True)
  thread.start()
  url = f"http://127.0.0.1:{sock.getsockname()[1]}"
  with httpx.Client(base_url=url, timeout=60) as http:
    found = Served(url, service, server, http, codes)
    assert not wait or found.until(lambda: service.state == "ready", 300)
    try: yield found
    finally:
      server.should_exit = True
      thread.join(30)
      if service.llm is not None: service.llm.close()
  assert not thread.is_alive()
