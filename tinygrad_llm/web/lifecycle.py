"""The life of the server: it listens, loads the model, answers, drains and ends."""
from __future__ import annotations
import asyncio, contextlib, gc, signal, socket, sys, threading, time
from collections.abc import Callable, Iterator
from typing import Any
import uvicorn
from tinygrad_llm.errors import InputError
from tinygrad_llm.process.forks import in_children
from tinygrad_llm.progress import listener
from tinygrad_llm.web.deadlines import DeadlineProtocol
from tinygrad_llm.web.service import Service

TICK = 0.2     # seconds between two looks at the engine
GRACE = 2.0    # seconds for the last bytes of answers that were cut
SWITCH = 5e-4  # seconds: the engine's thread waits for Python at most so long after a step

def listen(host: str, port: int) -> socket.socket:
  """A socket that listens. InputError if it cannot. A fork of this process gives it up, so that the port is free."""
  try:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    sock = socket.create_server(address[:2], family=family, backlog=2048)  # type: ignore[arg-type]
  except socket.gaierror as e: raise InputError(f"--host {host!r:.100}: {e.strerror}") from e
  except (OSError, OverflowError) as e:
    raise InputError(f"--port {port}: {getattr(e, 'strerror', None) or e}; choose another --port or --host") from e
  in_children(sock, socket.socket.close)
  return sock

class Server(uvicorn.Server):
  """uvicorn's server: a first signal drains the service, for `drain` seconds at most; a second one ends at once."""
  def __init__(self, service: Service, app: Any, drain: float):
    super().__init__(uvicorn.Config(app, http=DeadlineProtocol, ws="none", lifespan="off", log_config=None,
                                    access_log=False, server_header=False, log_level="error",
                                    timeout_graceful_shutdown=int(GRACE)))
    self.service, self._drain, self._until = service, drain, 0.0

  @contextlib.contextmanager
  def capture_signals(self) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
      yield
      return
    before = {sig: signal.signal(sig, lambda *_: self.stop()) for sig in (signal.SIGINT, signal.SIGTERM)}
    try: yield
    finally:
      for sig, handler in before.items(): signal.signal(sig, handler)

  def stop(self) -> None:
    """Drains; called again, ends at once."""
    if self.service.state in ("draining", "loading", "dead"): self.should_exit = self.force_exit = True
    else: self.service.state, self._until = "draining", time.monotonic() + self._drain

  async def watch(self) -> None:
    """Ends the server once it is drained, or its engine has failed."""
    service = self.service
    while not self.should_exit:
      await asyncio.sleep(TICK)
      if service.state == "ready" and (error := service.failed()) is not None:
        service.state, service.error = "dead", error
        print(f"error: the engine has failed: {error}", file=sys.stderr)
        self._until = time.monotonic() + GRACE  # open streams get their errors, and /health says dead
      busy = service.running + service.waiting
      if service.state == "draining" and not busy or self._until and time.monotonic() > self._until:
        service.cut()
        self.should_exit = True

async def _serve(server: Server, sock: socket.socket, load: Callable[[], Any], ready: Callable[[Any], None]) -> None:
  service = server.service
  loaded = (loop := asyncio.get_running_loop()).create_future()
  def work() -> None:
    listener.set(service.loading)
    try: found, error = load(), None
    except BaseException as e: found, error = None, e
    gc.collect()
    gc.freeze()  # a full collection holds all threads for as long as it walks over the model's graphs: 0.7 s
    def tell() -> None:
      if not loaded.cancelled(): loaded.set_result((found, error))
    with contextlib.suppress(RuntimeError): loop.call_soon_threadsafe(tell)
  async def wait() -> None:
    service.llm, error = await loaded
    if error is not None:
      service.error, server.should_exit = error, True
      return
    if service.state == "loading": service.state = "ready"
    ready(service.llm)
  threading.Thread(target=work, name="load", daemon=True).start()
  tasks = [asyncio.ensure_future(wait()), asyncio.ensure_future(server.watch())]
  try: await server.serve([sock])
  finally:
    for task in tasks: task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

def serve(server: Server, sock: socket.socket, load: Callable[[], Any],
          ready: Callable[[Any], None] = lambda llm: None) -> int:
  """
  Runs the server until a signal ends it; the exit code: 1 if the engine failed.

  load: makes the model, in a thread; its error is raised here. ready: is told of it.
  """
  sys.setswitchinterval(SWITCH)
  try: asyncio.run(_serve(server, sock, load, ready))
  finally: gc.unfreeze()
  service = server.service
  if service.llm is None and service.error is not None: raise service.error
  return 1 if service.state == "dead" else 0
