"""The engine: a thread that runs the steps of all requests, one after the other."""
from __future__ import annotations
import threading, time, weakref
from collections import deque
from contextlib import AbstractContextManager
from typing import Any
from tinygrad_llm.device.device_errors import device_error
from tinygrad_llm.engine.batch.request import Request
from tinygrad_llm.engine.batch.row_states import RowStates
from tinygrad_llm.engine.batch.row_steps import COUNTS, Row, RowSteps, count_for
from tinygrad_llm.engine.batch.scheduler import Decode, Piece, Scheduler
from tinygrad_llm.engine.batch.sequence import Sequence
from tinygrad_llm.engine.closed import CLOSED
from tinygrad_llm.engine.prefixes.kept_blocks import KeptBlocks
from tinygrad_llm.engine.prefixes.prefix_pool import PrefixPool
from tinygrad_llm.errors import InputError
from tinygrad_llm.nn.cache.place import BLOCK
from tinygrad_llm.process.forks import in_children


SNAPSHOTS = 1 << 30  # bytes of copies of recurrent states at most

def snapshot_at(s: Sequence) -> int:
  """Where a prompt's piece ends, so that recurrent states can be kept: at the last whole block."""
  return (s.prompt - 1) // BLOCK * BLOCK

class Engine:
  """
  Runs the requests of one model. submit() and close() may be called by any thread.

  The thread starts with the first request, and sleeps while there is none. It holds `lock` during a step, so that other
  users of the model come between two steps. A forked child has no request and no thread until it submits one.

  kept: prefixes on disk; None: there are none.
  """
  def __init__(self, steps: RowSteps, context: int, chunk: int, lock: AbstractContextManager[Any],
               kept: KeptBlocks | None = None):
    self.steps: Any = steps
    self.kept = kept
    self.lock, self._context, self._chunk = lock, context, chunk
    self._states = RowStates(steps.states, COUNTS[-1]) if steps.states else None
    self.counters = {"requests": 0, "errors": 0}
    self._open()
    self._begin()
    in_children(self, Engine._forked)

  def _open(self) -> None:
    """Without a thread: the next request starts one."""
    self._inbox, self._thread = _Inbox(), None  # type: _Inbox, threading.Thread | None
    self._stop = weakref.finalize(self, _stop, self._inbox)

  def _begin(self) -> None:
    """An empty pool, and no requests."""
    states = self._states is not None
    if self._states is not None: self._states.reset()
    self.pool = PrefixPool(self.steps.blocks, stateful=states, budget=SNAPSHOTS)
    sizes = [n for n in (16, 32, 64, 128, 256) if n < self._chunk]
    self.scheduler = Scheduler(self.pool, self._context, COUNTS[-1], sizes=(*sizes, self._chunk),
                               ends_at=snapshot_at if states else None)
    self._requests = dict[Any, Request]()
    if self.kept is not None: self.kept.attach(self.pool, self._inbox.wake)

  def submit(self, request: Request) -> None:
    """InputError after close(). An answer of no tokens is over at once."""
    inbox = self._inbox
    with inbox.changed:
      if inbox.closed: raise InputError("LLM: closed; load the model again")
      if request.ending.is_full(0): return request.end(request.ending.full)
      if self._thread is None or not self._thread.is_alive():
        self._thread = threading.Thread(target=_run, args=(weakref.ref(self), inbox), name="tinygrad_llm", daemon=True)
        self._thread.start()
        inbox.thread = self._thread
      inbox.requests.append(request)
      self.counters["requests"] += 1
      inbox.changed.notify()

  def cancel(self, request: Request) -> None:
    """Ends a request before its next step."""
    request.sequence.cancelled = True
    with self._inbox.changed: self._inbox.changed.notify()

  def is_busy(self) -> bool:
    """Whether there are requests."""
    return bool(self._requests or self._inbox.requests)

  def is_alive(self) -> bool:
    """Whether the thread still runs."""
    return self._thread is not None and self._thread.is_alive()

  def close(self) -> None:
    """Ends all requests as cancelled, and the thread. The step under way is finished."""
    self._stop()
    if self.kept is not None and not self.is_alive(): self.kept.finish()
    self.steps, self._states, self.kept = CLOSED, None, None  # a stream that is kept keeps no model

  # *** in the thread

  def step(self, inbox: _Inbox) -> bool:
    """Does the next step; False: there is nothing to do. An error of the engine ends all requests."""
    try:
      with inbox.changed: new, inbox.requests, inbox.news = inbox.requests, deque(), False
      for request in new:
        self._requests[request.sequence] = request
        if self.kept is None or not self.kept.look_up(request.sequence): self.scheduler.submit(request.sequence)
      with self.lock:
        if self.kept is not None: self._exchange(self.kept)
        action = self.scheduler.next()
        self._tell()
        if action is None: return self.kept is not None and self.kept.has_work()
        begun = time.perf_counter()
        if isinstance(action, Piece): self._read(action)
        else: self._decode(action)
        self.scheduler.done(action, time.perf_counter() - begun)
      return True
    except BaseException as e:
      self._failed(e)
      return True

  def _read(self, piece: Piece) -> None:
    s = piece.sequence
    request = self._requests[s]
    self._copy()
    if self._states is not None: self._states.before_piece(s)
    self.steps.piece(s.tokens[piece.first:piece.first + piece.count], piece.first, s.table)
    s.read(piece.count)
    request.read += piece.count
    if self._states is not None and s.fed == snapshot_at(s): self._keep(s)
    if s.fed < len(s.tokens): return
    row = self.steps.last_logits(piece.count)
    if not request.timing.tokens: request.timing.prefill = time.perf_counter() - request.began
    self._choose(request, None, lambda: row)

  def _decode(self, decode: Decode) -> None:
    self._copy()
    n = count_for(len(decode.sequences))
    placed: list[Sequence | None] = [*decode.sequences, *[None] * (n - len(decode.sequences))]
    if self._states is not None: placed = self._states.before_decode(decode.sequences, n)
    rows = [Row() if s is None else Row(s.tokens[s.fed], s.fed, s.table) for s in placed]
    logits, keys = self.steps.decode(rows, 0 if self._states is None else self._states.turn)
    if self._states is not None: self._states.decoded(placed)
    requests = [(i, self._requests[s]) for i, s in enumerate(placed) if s is not None]
    greedy = self.steps.keys(keys) if any(r.sampler.greedy for _, r in requests) else [None] * n
    for i, request in requests:
      request.sequence.fed += 1
      self._choose(request, greedy[i], lambda i=i: self.steps.logits(logits, i))  # type: ignore[misc]

  def _exchange(self, kept: KeptBlocks) -> None:
    """Copies blocks from disk and to it; sequences that waited for them begin."""
    self._copy()
    for s in kept.exchange(is_alone=not self.scheduler.running): self.scheduler.submit(s)

  def _keep(self, s: Sequence) -> None:
    """Keeps the recurrent layers' states where a later prompt may begin, if there is room for them."""
    assert self._states is not None
    if self._states.nbytes <= SNAPSHOTS: self.pool.snapshot(s, self._states.snapshot(), self._states.nbytes)

  @staticmethod
  def _choose(request: Request, key: int | None, logits: Any) -> None:
    """A choice that fails ends its own request."""
    try: request.chose(key, logits)
    except Exception as e: request.sequence.error = _told(e)

  def _copy(self) -> None:
    for source, target in self.pool.copies: self.steps.copy(source, target)
    self.pool.copies.clear()

  def _tell(self) -> None:
    """Tells the readers of answers that ended."""
    for s in self.scheduler.ended:
      request = self._requests.pop(s)
      if self._states is not None: self._states.forget(s)
      if s.error is not None: self.counters["errors"] += 1
      request.end(s.finish or "error", s.error)
    self.scheduler.ended.clear()

  def _failed(self, e: BaseException) -> None:
    """All requests end with an error, and the pool is empty again."""
    error = _told(e)
    requests = list(self._requests.values())
    self._begin()
    self.counters["errors"] += len(requests)
    for request in requests: request.end("error", error)

  def _forked(self) -> None:
    for request in (*self._requests.values(), *self._inbox.requests): request.outbox.leave()
    was_closed = self._stop.detach() is None
    self._open()
    if was_closed: self._stop()
    else: self._begin()

def _told(e: BaseException) -> Exception:
  """An error as its readers get it."""
  return device_error(e) or (e if isinstance(e, InputError) else InputError(f"engine: {type(e).__name__}: {e}"))

class _Inbox:
  """Messages of other threads to the engine's thread."""
  def __init__(self) -> None:
    self.changed, self.requests, self.closed = threading.Condition(), deque[Request](), False
    self.thread: threading.Thread | None = None
    self.news = False  # the disk has done something

  def wake(self) -> None:
    """Lets the thread look what the disk has done."""
    with self.changed:
      self.news = True
      self.changed.notify()

def _run(engine: weakref.ref[Engine], inbox: _Inbox) -> None:
  """The thread. It keeps no engine alive while it waits."""
  while True:
    with inbox.changed:
      if inbox.closed: return _end(engine, inbox)
    if (found := engine()) is None: return
    busy = found.step(inbox)
    del found
    with inbox.changed:
      if not busy and not inbox.requests and not inbox.closed and not inbox.news: inbox.changed.wait()

def _end(engine: weakref.ref[Engine], inbox: _Inbox) -> None:
  found = engine()
  for request in (*inbox.requests, *(found._requests.values() if found is not None else ())):
    request.end("cancelled")
  inbox.requests.clear()

def _stop(inbox: _Inbox) -> None:
  with inbox.changed:
    inbox.closed = True
    inbox.changed.notify()
  if inbox.thread is not None and inbox.thread is not threading.current_thread(): inbox.thread.join(30)
