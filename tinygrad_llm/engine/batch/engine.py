"""The engine: a thread that runs the steps of all requests, one after the other."""
from __future__ import annotations
import threading, time, weakref
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple
from tinygrad_llm.device.device_errors import device_error
from tinygrad_llm.engine.batch.budget import MOST_SNAPSHOTS
from tinygrad_llm.engine.batch.health import Health, Progress
from tinygrad_llm.engine.batch.outbox import Relay
from tinygrad_llm.engine.batch.request import Request
from tinygrad_llm.engine.batch.row_ahead import Results
from tinygrad_llm.engine.batch.row_states import RowStates
from tinygrad_llm.engine.batch.row_steps import COUNTS, Row, RowSteps, count_for
from tinygrad_llm.engine.batch.scheduler import Decode, Piece, Scheduler
from tinygrad_llm.engine.batch.sequence import Sequence
from tinygrad_llm.engine.closed import CLOSED
from tinygrad_llm.engine.inbox import Inbox
from tinygrad_llm.engine.prefixes.kept_blocks import KeptBlocks
from tinygrad_llm.engine.prefixes.prefix_pool import PrefixPool
from tinygrad_llm.engine.ready import PIECE, Kind, Ready
from tinygrad_llm.errors import InputError
from tinygrad_llm.nn.cache.place import BLOCK
from tinygrad_llm.process.forks import in_children
from tinygrad_llm.process.weak import weakly

LOOK = 1.0  # seconds between two looks whether a request whose reader lags behind was cancelled
SPACED = 16 * BLOCK  # positions between two snapshots of a long prompt's states

def snapshot_at(s: Sequence) -> int:
  """Where a prompt's next piece ends, to keep recurrent states: at multiples of SPACED, and at the last whole block."""
  return min(s.fed // SPACED * SPACED + SPACED, (s.prompt - 1) // BLOCK * BLOCK)

class Engine:
  """
  Runs the requests of one model. submit(), check(), health() and close() may be called by any thread.

  The thread starts with the first request, and sleeps while there is none. It holds `lock` during a step, so that other
  users of the model come between two steps. If it ends by an error, all requests end with one, and the next request
  starts another thread. A forked child has no request and no thread until it submits one.

  kept: prefixes on disk; None: there are none. ready: captures steps; None: all are captured, or capture themselves.
  failure: the last error that ended all requests.
  """
  def __init__(self, steps: RowSteps, context: int, chunk: int, lock: AbstractContextManager[Any],
               ready: Ready | None = None):
    self.steps: Any = steps
    self.kept, self.ready = None, ready  # type: KeptBlocks | None, Ready | None
    self.lock, self._context, self.chunk = lock, context, chunk
    self._states = RowStates(steps.states, steps.before_host) if steps.states else None
    self.counters, self.failure = {"requests": 0, "errors": 0}, None  # type: dict[str, int], Exception | None
    self._open()
    self._begin()
    in_children(self, Engine._forked)

  def _open(self) -> None:
    """Without a thread: the next request starts one."""
    self._inbox, self.progress, self._relay = Inbox(), Progress(), Relay()
    self._stop = weakref.finalize(self, Inbox.stop, self._inbox)

  def _begin(self) -> None:
    """An empty pool, and no sequences."""
    states, before = self._states is not None, vars(self).get("pool")
    if self._states is not None: self._states.reset()
    self.pool = PrefixPool(self.steps.blocks, stateful=states, budget=MOST_SNAPSHOTS, window=self.steps.window)
    self.pool.state_of = weakly(self._state_of)
    if before is not None: self.pool.clear_as(before)
    sizes = [n for n in (16, 32, 64, 128, 256) if n < self.chunk]
    self.scheduler = Scheduler(self.pool, self._context, COUNTS[-1], sizes=(*sizes, self.chunk),
                               ends_at=snapshot_at if states else None)
    self._is_whole, self._launched, self._read_at = True, None, 0.0  # type: bool, _Launched | None, float
    self._company: _Company | None = None
    if self.kept is not None: self.kept.attach(self.pool, self._inbox.wake)

  def submit(self, request: Request) -> None:
    """
    Takes in a request, with its forks. InputError after close(). An answer of no tokens is over at once.
    """
    inbox, requests = self._inbox, [request, *request.forks]
    with inbox.lock:
      if inbox.closed: raise InputError("LLM: closed; load the model again")
      if request.ending.is_full(0):
        for r in requests: r.end(r.ending.full)
        return
      self._check_thread()
      if inbox.thread is None:
        thread = threading.Thread(target=_run, args=(weakref.ref(self), inbox), name="tinygrad_llm", daemon=True)
        thread.start()
        inbox.thread = thread
      if not inbox.requests: self.progress.other()
      for r in requests: r.began, r.outbox.relay = time.perf_counter(), self._relay
      inbox.requests |= {r.sequence: r for r in requests}
      inbox.new.append(request)
      self.counters["requests"] += len(requests)
      inbox.changed.notify()

  def keep(self, kept: KeptBlocks) -> None:
    """Prefixes on disk, before the first request."""
    self.kept = kept
    kept.attach(self.pool, self._inbox.wake)

  def wake(self) -> None:
    """Lets the thread go on with a request whose reader has taken a token."""
    self._inbox.wake()

  def check(self, request: Request) -> None:
    """For readers that have waited: ends all requests if the thread died, and this one if the engine lost it."""
    with self._inbox.lock:
      self._check_thread()
      if request.sequence not in self._inbox.requests: request.end("error", _DIED)

  @property
  def is_stateful(self) -> bool:
    """Whether the model has recurrent layers."""
    return self._states is not None

  def is_busy(self) -> bool:
    """Whether there are requests."""
    return bool(self._inbox.requests)

  def health(self) -> Health:
    """The engine's state now. It waits for no lock."""
    inbox, thread = self._inbox, self._inbox.thread
    seconds, late = self.progress.look()
    state = "stuck" if late else "running"
    if all(r.is_paused for r in [*inbox.requests.values()]): state = "idle"
    elif thread is None or not thread.is_alive(): state = "dead"
    if inbox.closed: state = "dead"
    counts = {**self.counters, "steps": self.progress.steps, "open": len(inbox.requests)}
    return Health(state, seconds, counts)

  def memory(self) -> dict[str, int]:
    """Bytes of the pool of blocks, and of recurrent states with their snapshots."""
    states = 0 if self._states is None else self._states.held
    return {"kv_pool": self.steps.nbytes, "row_states": states + self.pool.tree.snapshots.nbytes}

  def close(self) -> bool:
    """
    Ends all requests as cancelled, and the thread. The step under way is finished first, if it takes no longer than
    closed.STEP seconds; False: it takes longer.
    """
    self._stop()
    if ended := (thread := self._inbox.thread) is None or not thread.is_alive():
      if self._launched is not None:
        with suppress(Exception): self._launched.results.keys()  # it uses memory that is freed next
      if self.kept is not None: self.kept.finish()
    self.steps, self._states, self.kept, self._company = CLOSED, None, None, None  # a kept stream keeps no model
    return ended

  def _check_thread(self) -> None:
    """With the inbox's lock held: ends what a dead thread has left."""
    if (thread := self._inbox.thread) is None or thread.is_alive(): return
    self._inbox.thread, self._is_whole = None, False
    self.counters["errors"] += self._inbox.end("error", _DIED)
    self.failure = self.failure or _DIED

  # *** in the thread

  def step(self) -> bool:
    """Does the next step; False: there is nothing to do. An error of the engine ends all requests."""
    try:
      with self.lock:  # others that feed the model by hand have a part of the pool
        new = self._inbox.take() if self._inbox.new or self._inbox.news else ()
        if not self._is_whole: self._begin()
        for request in new:
          if self.kept is None or not self.kept.look_up(request.sequence): self.scheduler.submit(request.sequence)
        if self._launched is not None:
          self._go_on(self._launched)
          self._relay.ring()
          return True
        if self.kept is not None:
          self._relay.ring()
          self._exchange(self.kept)
        action = self.scheduler.next()
        if (company := self._company) is not None and action is company.decode:
          self._step_of(company)
          return True
        self._company = None
        self._relay.ring()
        took_over = self._tell() if self.scheduler.ended else False
        if action is None: return took_over or self.kept is not None and self.kept.has_work()
        self._prepare(action)
        self._begun = time.perf_counter()
        if isinstance(action, Piece): self._read(action)
        elif self.steps.is_ahead:
          self._launched = self._launch(action)
          return True
        else: self._decode(action)
        self._done(action)
      return True
    except BaseException as e:
      self._failed(e)
      return True

  def _prepare(self, action: Piece | Decode) -> None:
    """Captures a step before its first use. This is no time of the prompt's steps, and none of the tokens'."""
    if isinstance(action, Piece):
      self.capture(PIECE)
      return
    requests = [self._inbox.requests[s] for s in action.sequences]
    seconds = self.capture((count_for(len(requests)), self.steps.is_ahead and any(r.samples for r in requests)))
    for r in requests: r.timing.compile += seconds

  def capture(self, kind: Kind) -> float:
    """Captures a kind of steps, unless that is done, with the lock held; the seconds that it took."""
    if self.ready is None or kind in self.ready.done: return 0.0
    if self._launched is not None and kind != PIECE: return 0.0  # its choices would be lost; a step by hand is another
    self.progress.begins("capture")
    if self._states is not None: self._states.park()
    seconds = self.ready.capture(self.steps, kind)
    self.progress.ended()
    return seconds

  def prepare(self, sequences: int) -> None:
    """Captures all steps of up to so many sequences, with the lock held. There are no requests."""
    if self._states is not None: self._states.park()
    self.steps.prepare(sequences)
    if self.ready is not None: self.ready.done |= {PIECE, *_kinds(count_for(sequences), self.steps.samples)}

  def feed(self, s: Sequence, count: int) -> None:
    """Feeds the next `count` tokens of a sequence as a piece of a prompt, with the lock held."""
    self._copy()
    if self._states is not None: self._states.before_piece(s)
    self.steps.piece(s.tokens[s.fed:s.fed + count], s.fed, s.table, s.window)
    end = snapshot_at(s)
    s.read(count)
    if self._states is not None and s.fed == end: self._keep(s)

  def feed_one(self, s: Sequence) -> Any:
    """Feeds the next token of a sequence as a decode step does, with the lock held; the logits after it, (1, 1, n)."""
    placed = self._placed(Decode((s,)))
    turn = 0 if self._states is None else self._states.turn
    logits, _ = self.steps.decode([Row(s.tokens[s.fed], s.fed, s.table, window=s.window)], turn)
    if self._states is not None: self._states.decoded(placed)
    s.fed += 1
    return logits

  def _read(self, piece: Piece) -> None:
    s = piece.sequence
    self.progress.begins("piece", piece.count)
    self.feed(s, piece.count)
    row = self.steps.last_logits(piece.count) if s.fed == len(s.tokens) else None
    request = self._inbox.requests[s]
    if not request.timing.tokens: request.read(piece.first, piece.count, time.perf_counter() - self._begun)
    if row is not None: self._answer(request, None, lambda: row)

  def _decode(self, decode: Decode) -> None:
    self.progress.begins(count_for(len(decode.sequences)))
    placed = self._placed(decode)
    rows = [Row() if s is None else Row(s.tokens[s.fed], s.fed, s.table, window=s.window) for s in placed]
    logits, keys = self.steps.decode(rows, 0 if self._states is None else self._states.turn)
    if self._states is not None: self._states.decoded(placed)
    for row, (s, key) in enumerate(zip(placed, self.steps.keys(keys))):
      if s is not None: self._decoded(s, row, key, logits)
    requests = [self._inbox.requests[s] for s in decode.sequences]
    if self._states is None and _Company.fits(requests): self._company = _Company(decode, requests, self.steps)

  def _step_of(self, company: _Company) -> None:
    """Another decode step of a company. Readers of the last one's tokens are woken right before it lets them run."""
    self._begun = time.perf_counter()
    self.progress.begins(company.rows)
    self._relay.ring()
    if not company.step(): self._company = None
    self._done(company.decode)

  def _done(self, action: Piece | Decode) -> None:
    """A step has ended, which began at _begun."""
    self.progress.ended()
    self.scheduler.done(action, time.perf_counter() - self._begun)

  def _placed(self, decode: Decode) -> list[Sequence | None]:
    """Does what comes before a decode step; the sequence of each row, None: idle."""
    n = count_for(len(decode.sequences))
    if self.pool.has_copies: self._copy()
    if self._states is not None: return self._states.before_decode(decode.sequences, n)
    return [*decode.sequences, *[None] * (n - len(decode.sequences))]

  def _decoded(self, s: Sequence, row: int, key: int, logits: Any, is_chosen: bool = False) -> None:
    request = self._inbox.requests[s]
    if not request.timing.tokens: request.read(s.fed, 1, time.perf_counter() - self._begun)
    s.fed += 1
    if s.fed < len(s.tokens): return  # it reads its answer again
    self._answer(request, key, lambda: self.steps.logits(logits, row), is_chosen)
    if s.finish is not None and s.launched and self._states is not None: s.state = self._states.snapshot(s)

  def _launch(self, decode: Decode) -> _Launched:
    """Launches a decode step. Its rows may feed choices of the launched step before, which are not known."""
    self.progress.begins(count_for(len(decode.sequences)))
    begun, placed = time.perf_counter(), self._placed(decode)
    before = {} if self._launched is None else {s: i for i, s in self._launched.rows}
    def fed(s: Sequence) -> Row:
      at = s.fed + s.launched
      token = s.tokens[at] if at < len(s.tokens) else ~before[s]
      choice = None if at + 1 < len(s.tokens) else self._inbox.requests[s].choice(at)  # it reads its answer again
      return Row(token, at, s.table, choice, s.window)
    rows = [Row() if s is None else fed(s) for s in placed]
    results = self.steps.launch(rows, 0 if self._states is None else self._states.turn)
    if self._states is not None: self._states.decoded(placed)
    for s in decode.sequences: s.launched += 1
    chosen = [row.choice is not None for row in rows]
    return _Launched(decode, [(i, s) for i, s in enumerate(placed) if s is not None], chosen, results, begun)

  def _go_on(self, step: _Launched) -> None:
    """Launches the step behind a launched one, if it is sure already, and passes on the tokens of the latter."""
    decode = self.scheduler.ahead() if self._may_go_ahead(step) else None
    self._tell()
    following = None if decode is None else self._launch(decode)
    if following is None: self.progress.begins(len(step.chosen))
    keys = step.results.keys()
    self._begun, self._launched, self._read_at = max(step.begun, self._read_at), following, time.perf_counter()
    requests = self._inbox.requests
    for i, s in step.rows:
      s.launched -= 1
      if requests[s].is_over:  # it may be one token too far, and nobody looks at it
        s.went_too_far = True
        continue
      self._decoded(s, i, keys[i], step.results.logits, step.chosen[i])
      # its reader does not wait for the step under way
      if s.launched and (s.finish is not None or s.error is not None): requests[s].end(s.finish or "error", s.error)
    seconds = (time.perf_counter() if following is None else self._read_at) - self._begun
    self.progress.ended_behind(len(step.chosen), seconds)
    self.scheduler.done(step.decode, seconds)

  def _may_go_ahead(self, step: _Launched) -> bool:
    """Whether the device has all choices of a step, and nothing else is to be done before the next."""
    requests = self._inbox.requests
    kinds = _kinds(len(step.chosen), {requests[s].samples for _, s in step.rows})
    if self.ready is not None and not self.ready.done.issuperset(kinds): return False
    return all(requests[s].is_on_device for _, s in step.rows) and (self.kept is None or not self.kept.has_work())

  def _answer(self, request: Request, key: int | None, logits: Any, is_chosen: bool = False) -> None:
    """The choice of a sequence's next token, and of its forks' first ones."""
    if request.forks:
      for fork in self._fork(request): self._choose(fork, key, logits)
    self._choose(request, key, logits, is_chosen)

  def _fork(self, request: Request) -> list[Request]:
    """
    Lets a request's forks begin, now that it has read the prompt; returns them, to choose their first tokens.

    A fork shares the blocks. One that finds no block for its copy of the last, partly filled one waits, as a new
    request does.
    """
    (s, forks), state, begun = (request.sequence, self._take_forks(request)), None, list[Request]()
    for fork in forks:
      if self.pool.fork(s, fork.sequence):
        if self._states is not None: fork.sequence.snapshot = state = state or self._states.snapshot(s)
        fork.timing.cached_tokens = fork.timing.prompt_tokens
        begun.append(fork)
      self.scheduler.submit(fork.sequence)
    return begun

  def _take_forks(self, request: Request) -> list[Request]:
    """A request's forks whose readers still want them. The others are gone."""
    forks, request.forks = request.forks, []
    with self._inbox.lock:
      for fork in forks:
        if fork.is_over: del self._inbox.requests[fork.sequence]
    return [fork for fork in forks if fork.sequence in self._inbox.requests]

  def _exchange(self, kept: KeptBlocks) -> None:
    """Copies blocks from disk and to it; sequences that waited for them begin."""
    self._copy()
    for s in kept.exchange(is_alone=not self.scheduler.running): self.scheduler.submit(s)

  def _keep(self, s: Sequence) -> None:
    """Keeps the recurrent layers' states where a later prompt may begin, if there is room for them."""
    assert self._states is not None
    if self._states.nbytes <= MOST_SNAPSHOTS: self.pool.snapshot(s, self._states.snapshot(s), self._states.nbytes)

  def _state_of(self, s: Sequence) -> tuple[Any, int] | None:
    """A copy of the recurrent layers' states of a sequence that gives its blocks back, and its bytes."""
    states = self._states
    if states is None or states.nbytes > MOST_SNAPSHOTS or s.snapshot is not None: return None  # it was not loaded yet
    if s.state is not None: return s.state, states.nbytes
    if not states.holds(s) or s.went_too_far: return None
    try: return states.snapshot(s), states.nbytes
    except Exception: return None  # without memory for a copy, the blocks are given back all the same

  @staticmethod
  def _choose(request: Request, key: int | None, logits: Any, is_chosen: bool = False) -> None:
    """A choice that fails ends its own request."""
    try: request.chose(key, logits, is_chosen)
    except Exception as e: request.sequence.error = _told(e)

  def _copy(self) -> None:
    """Does what the pool asks for before a step."""
    for copies, window in self.pool.all_copies():
      while copies:
        source, target = copies[0]
        if source is None: self.steps.clear(target, window)
        else: self.steps.copy(source, target, window)
        del copies[0]  # after an error, those before it are not done again: their sources may be others by now

  def _tell(self) -> bool:
    """
    Tells the readers of answers that ended. Where one was cancelled before its forks began, the first goes on: True.
    """
    took_over = False
    for s in self.scheduler.ended:
      request = self._inbox.requests[s]
      if self._states is not None: self._states.forget(s)
      forks = self._take_forks(request)
      for r in (request, *(forks if s.error is not None else ())):
        if s.error is not None: self.counters["errors"] += 1
        r.end(s.finish or "error", s.error)
        with self._inbox.lock: del self._inbox.requests[r.sequence]
      if forks and s.error is None:
        forks[0].forks = forks[1:]
        self.scheduler.submit(forks[0].sequence)
        took_over = True
    self.scheduler.ended.clear()
    return took_over

  def _failed(self, e: BaseException) -> None:
    """All requests that the thread had taken end with an error. The next step begins with an empty pool."""
    self._is_whole, self.failure = False, _told(e)
    self.progress.other()
    self.counters["errors"] += self._inbox.end("error", self.failure, taken=True)

  def _forked(self) -> None:
    for request in self._inbox.requests.values(): request.leave()
    was_closed = self._stop.detach() is None
    self._open()
    if was_closed: self._stop()
    else: self._begin()

def _kinds(rows: int, samples: Iterable[bool]) -> set[Kind]:
  """The kinds of steps of at most so many rows."""
  return {(n, is_sampled) for n in COUNTS if n <= rows for is_sampled in samples}

_DIED = InputError("engine: its thread has ended; ask again, or load the model again")

def _told(e: BaseException) -> Exception:
  """An error as its readers get it."""
  return device_error(e) or (e if isinstance(e, InputError) else InputError(f"engine: {type(e).__name__}: {e}"))

class _Launched(NamedTuple):
  """
  A decode step under way. rows: (row, sequence). chosen: of each row, whether the device makes a request's choice().

  begun: when it was launched.
  """
  decode: Decode
  rows: list[tuple[int, Sequence]]
  chosen: list[bool]
  results: Results
  begun: float

class _Company:
  """
  The answers of a decode step whose next steps feed their next tokens again, each the likeliest one.

  Where a step's weights have emptied the caches, each function and object that is used is time. So what the steps of a
  company have in common is found once. It lasts until a sequence comes to the end of a block.
  """
  def __init__(self, decode: Decode, requests: list[Request], steps: RowSteps):
    self.decode, self.rows, self._keys = decode, count_for(len(requests)), steps.keys
    self._members = [*zip(requests, decode.sequences)]
    self._feed = steps.repeat([Row(s.tokens[s.fed], s.fed, s.table, window=s.window) for s in decode.sequences])

  @staticmethod
  def fits(requests: list[Request]) -> bool:
    """Whether requests, whose sequences decode, can step so."""
    return all(r.is_plain and r.timing.tokens and r.sequence.fed % BLOCK and
               r.sequence.fed == len(r.sequence.tokens) - 1 for r in requests)

  def step(self) -> bool:
    """Feeds a token of each, and passes the next ones on; False: another step is not sure to be like this one."""
    goes_on, members = True, self._members
    _, keys = self._feed([s.tokens[-1] for _, s in members], [s.fed for _, s in members])
    for (request, s), key in zip(members, self._keys(keys)):
      s.fed += 1
      if not s.fed % BLOCK: goes_on = False
      try: request.chose_likeliest(key)
      except Exception as e: s.error = _told(e)
    return goes_on

def _run(engine: weakref.ref[Engine], inbox: Inbox) -> None:
  """The thread. It keeps no engine alive while it waits. However it ends, no request is left."""
  try:
    while not inbox.closed:
      if (found := engine()) is None: return
      busy = found.step()
      del found
      if busy: continue
      with inbox.lock:
        if not inbox.new and not inbox.closed and not inbox.news: inbox.changed.wait(LOOK if inbox.requests else None)
  finally:
    with inbox.lock:
      inbox.thread = None
      errors = inbox.end("cancelled") and 0 if inbox.closed else inbox.end("error", _DIED)
      if (found := engine()) is not None:
        found._is_whole = False
        found.counters["errors"] += errors
        if not inbox.closed: found.failure = found.failure or _DIED
