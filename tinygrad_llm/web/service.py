"""The one model that the server answers with: whether it is ready, who runs, and who waits."""
from __future__ import annotations
import asyncio, time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from tinygrad_llm.engine.batch import health
from tinygrad_llm.web.errors import ApiError
from tinygrad_llm.web.loading import Loading
from tinygrad_llm.web.metrics import Metrics

State = Literal["loading", "ready", "draining", "dead"]

@dataclass
class Slot:
  """
  One of the answers that may run at a time. stream: the one that does; None while a thread computes something else.

  since: when that began.
  """
  id: int
  task: int = -1
  stream: Any = None
  settings: dict[str, Any] = field(default_factory=dict)
  since: float = 0.0

  @property
  def is_late(self) -> bool:
    """Whether something else than a stream has taken longer than anything should."""
    return self.task >= 0 and self.stream is None and time.perf_counter() - self.since > health.FIRST

class Service:
  """
  llm: None while it loads. name: the model's, in answers. parallel: answers at a time. queue: how many more may wait.
  version: of the server, for those who ask.

  For requests that give none: defaults, sampling settings by Sampler's names; most, tokens of an answer; variables, of
  the chat template.

  It belongs to the event loop; the engine's thread is asked by streams alone.
  """
  def __init__(self, name: str, parallel: int, queue: int, version: str = "", defaults: dict[str, Any] | None = None,
               most: int | None = None):
    self.defaults, self.most, self.variables = defaults or {}, most, dict[str, Any]()
    self.name, self.parallel, self.queue, self.version, self.created = name, parallel, queue, version, int(time.time())
    self.llm: Any = None
    self.state: State = "loading"
    self.loading = Loading()
    self.error: BaseException | None = None
    self.slots = [Slot(i) for i in range(parallel)]
    self.metrics = Metrics(self)
    self.waiting, self.ending, self._tasks = 0, False, 0
    self._free = asyncio.Semaphore(parallel)

  def check(self, more: int = 1, field: str = "n") -> Any:
    """
    The model, if it takes `more` answers. ApiError 503 if it loads, drains, has failed, or too many wait.

    field: the one of the request that asks for so many; it is a 400 if they are more than may ever wait.
    """
    if self.state == "loading": raise ApiError(503, "Loading model", "loading")
    if self.state == "draining": raise ApiError(503, "the server is about to end", "draining")
    if self.state == "dead": raise ApiError(503, f"the engine has failed: {self.error}", "dead", retry=False)
    if more > self.queue + self.parallel:
      raise ApiError(400, f"{field}: a request may ask for {self.queue + self.parallel} answers, and not for {more}",
                     "invalid_value", field)
    if self.waiting + more > self.queue + self.parallel - self.running:
      raise ApiError(503, f"{self.waiting} requests wait already", "queue_full")
    return self.llm

  def health(self) -> str:
    """ok, loading, draining, stuck or dead."""
    if self.state != "ready": return self.state
    found = self.llm.health().state
    if found in ("stuck", "dead"): return str(found)
    return "stuck" if any(slot.is_late for slot in self.slots) else "ok"

  def failed(self) -> BaseException | None:
    """Why the engine can go on no more, if so."""
    found: BaseException | None = self.llm.failure()
    return found

  def cut(self) -> None:
    """Ends the answers that still run; their readers are told."""
    self.ending = True
    for slot in self.slots:
      if slot.stream is not None: slot.stream.cancel()

  @property
  def running(self) -> int:
    """Slots that are taken, by answers or embeddings."""
    return sum(slot.task >= 0 for slot in self.slots)

  async def take(self, most: int = 1) -> list[Slot]:
    """
    Slots for up to `most` answers, which wait for one, first come first served. Each needs give().

    It returns as soon as one is free, with the others that nobody else waits for.
    """
    self.waiting += most
    try: await self._free.acquire()
    finally: self.waiting -= most
    taken = [self._taken()]
    while len(taken) < most and not self._free.locked():
      await self._free.acquire()  # at once
      taken.append(self._taken())
    return taken

  def _taken(self) -> Slot:
    slot = next(slot for slot in self.slots if slot.task < 0)
    slot.task = self._tasks = self._tasks + 1
    slot.since = time.perf_counter()
    return slot

  def give(self, slot: Slot) -> None:
    """The slot is free for the next one."""
    slot.task, slot.stream, slot.settings = -1, None, {}
    self._free.release()

  @asynccontextmanager
  async def slot(self) -> AsyncIterator[Slot]:
    """A slot, once one is free."""
    slot, = await self.take()
    try: yield slot
    finally: self.give(slot)
