"""The command for replicas, with an engine that is slow and can be broken: each token takes STEP seconds."""
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httpx
from starlette.responses import JSONResponse
from tests.support import child
from tinygrad_llm import replicas
from tinygrad_llm.command import guarded

STEP = 0.03

class Slow(replicas.Served):
  """Beside the server's paths there are /pid, /fail (the next step raises) and /stick (steps never end)."""
  _fault = ""
  async def __serve_build_asgi_app__(self) -> Any:
    replica = await super().__serve_build_asgi_app__()
    engine = replica.service.llm.engine
    for name in ("decode", "piece"): setattr(engine.steps, name, self._slowed(getattr(engine.steps, name)))
    look = engine.progress.look
    engine.progress.look = lambda: (100.0, True) if self._fault == "stick" else look()
    async def app(scope: Any, receive: Any, send: Any) -> None:
      if (path := scope.get("path")) not in ("/pid", "/fail", "/stick"): return await replica(scope, receive, send)
      if path != "/pid": self._fault = path[1:]
      await JSONResponse(os.getpid())(scope, receive, send)
    return app

  def _slowed(self, do: Callable[..., Any]) -> Callable[..., Any]:
    def slow(*args: Any) -> Any:
      time.sleep(STEP)
      while self._fault == "stick": time.sleep(STEP)
      if self._fault == "fail": raise RuntimeError("the card is gone")
      return do(*args)
    return slow

def main() -> None: guarded(lambda: replicas.run(replicas.parsed(), Slow))

class Started(NamedTuple):
  """The command that runs, and a client of it. lines: its stderr so far."""
  url: str
  http: httpx.Client
  process: subprocess.Popen[str]
  lines: list[str]
  seconds: float

  def replica(self, session: str) -> str:
    """The replica that answers a session."""
    return self.http.get("/version", headers={"x-session-id": session}).headers["x-replica"]

  def replicas(self, tries: int = 40) -> set[str]: return {self.replica(f"any {i}") for i in range(tries)}

  def sessions(self, each: int = 1) -> dict[str, list[str]]:
    """{replica: names of `each` sessions that it answers}, for two replicas."""
    found: dict[str, list[str]] = {}
    for i in range(1000):
      if len(names := found.setdefault(self.replica(f"session {i}"), [])) < each: names.append(f"session {i}")
      if len(found) == 2 and all(len(names) == each for names in found.values()): return found
    raise AssertionError(f"not two replicas: {list(found)}")

@contextlib.contextmanager
def started(*args: str) -> Iterator[Started]:
  """The command on a free port; a signal ends it, and leaves none of its processes."""
  begun, lines = time.monotonic(), list[str]()
  command = [sys.executable, "-c", "from tests.support import slow_replicas; slow_replicas.main()", "--port", "0"]
  with subprocess.Popen([*command, "-t", "1", "-c", "512", *args], env=child.environment(NUM_CPU_THREADS="1"),
                        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
    assert process.stderr is not None
    try:
      for line in process.stderr:
        lines.append(line)
        if found := re.search(r" at (http://\S+) \(", line): break
      else: raise AssertionError("".join(lines))
      threading.Thread(target=lines.extend, args=[process.stderr], daemon=True).start()
      with httpx.Client(base_url=found[1], timeout=60, limits=httpx.Limits(max_keepalive_connections=0)) as http:
        yield Started(found[1], http, process, lines, time.monotonic() - begun)
    finally:
      process.send_signal(signal.SIGTERM)
      try: process.wait(60)
      finally: process.kill()
