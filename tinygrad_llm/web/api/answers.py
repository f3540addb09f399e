"""The answers that a request asks for, as they arrive: several of one prompt, each in a slot of the service."""
from __future__ import annotations
import asyncio, time, uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from tinygrad_llm.engine.choice.logprobs import Logprobs
from tinygrad_llm.engine.timing import Timing
from tinygrad_llm.text.thinking import ANSWER
from tinygrad_llm.web.api.progress import Progress, with_progress
from tinygrad_llm.web.service import Service, Slot

FINISH = {"stop": "stop", "stop_string": "stop", "length": "length", "context": "length", "cancelled": "stop"}

class Delta(NamedTuple):
  """
  New text of an answer, or how far its prompt is read.

  parts: its kinds, see LLM.parts(). over: nothing follows; end: log-probabilities in the end token's place.
  """
  choice: int
  parts: list[tuple[str, str]]
  logprobs: list[Logprobs]
  tokens: list[int]
  over: bool
  end: list[Logprobs]
  progress: Progress | None = None

@dataclass
class Whole:
  """All of an answer's deltas together. text: all kinds of its parts. end: the end token's place, if one ended it."""
  parts: list[tuple[str, str]] = field(default_factory=list)
  logprobs: list[Logprobs] = field(default_factory=list)
  tokens: list[int] = field(default_factory=list)
  end: list[Logprobs] = field(default_factory=list)

  @property
  def text(self) -> str: return "".join(text for _, text in self.parts)

def head(service: Service, name: str, kind: str) -> dict[str, Any]:
  """The fields with which OpenAI's answers begin. name: of the id; kind: of the object."""
  return {"id": f"{name}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": service.name,
          "system_fingerprint": f"build-{service.version}"}

@dataclass
class Result:
  """
  An answer so far, or the whole of it. finish: as OpenAI says it. reasoning: tokens of the thinking.

  tokens: without those that the engine made beyond a stop string, before it knew of it.
  """
  timing: Timing = field(default_factory=Timing)
  tokens: int = 0
  finish: str | None = None
  reasoning: int = 0

class _Open(NamedTuple):
  """An answer that runs. queued: seconds until it began."""
  slot: Slot
  stream: Any
  queued: float

class Answers:
  """
  `count` answers to a prompt, by seeds that follow each other. Those that find slots together read the prompt once.

  as_parts: thinking is told apart from the answer; otherwise all is the answer. progress: deltas tell it, too.
  results: of each, once it is over.
  """
  def __init__(self, service: Service, prompt: list[int], settings: dict[str, Any], count: int = 1,
               as_parts: bool = False, progress: bool = False):
    self._progress = progress
    self._service, self._settings, self._as_parts = service, settings, as_parts
    self.prompt, self.results, self.began = prompt, [Result() for _ in range(count)], time.perf_counter()
    self._asked: Any = None
    self._open = dict[int, _Open]()

  async def check(self) -> None:
    """Makes the requests, in a thread. InputError for bad settings."""
    settings = self._settings | {"pieces": "parts" if self._as_parts else "text"}
    self._asked = await asyncio.to_thread(self._service.llm.ask, self.prompt, len(self.results), **settings)

  async def deltas(self) -> AsyncGenerator[Delta, None]:
    """The deltas of all answers, mixed. Closing the generator cancels what still runs."""
    if len(self.results) == 1: self._begin(0, await self._service.take())
    found = self._one(0) if self._open else self._mixed()
    try:
      async for delta in found: yield delta
    finally:
      await found.aclose()
      for i in [*self._open]: self._over(i)

  async def whole(self) -> list[Whole]:
    """All answers, once they are over."""
    found = [Whole() for _ in self.results]
    async with aclosing(self.deltas()) as deltas:
      async for delta in deltas:
        whole = found[delta.choice]
        whole.parts += delta.parts
        whole.logprobs += delta.logprobs
        whole.tokens += delta.tokens
        whole.end += delta.end
    return found

  async def _mixed(self) -> AsyncGenerator[Delta, None]:
    queue, tasks = asyncio.Queue[Delta | Exception](), list[asyncio.Future[None]]()
    tasks.append(asyncio.ensure_future(self._begin_all(queue, tasks)))
    left = len(self.results)
    try:
      while left:
        found = await queue.get()
        if isinstance(found, Exception): raise found
        left -= found.over
        yield found
    finally:
      for task in tasks: task.cancel()
      for task in tasks:
        with suppress(asyncio.CancelledError): await task

  async def _begin_all(self, queue: asyncio.Queue[Delta | Exception], tasks: list[asyncio.Future[None]]) -> None:
    """Begins the answers as slots become free."""
    first, count = 0, len(self.results)
    async def put(index: int) -> None:
      try:
        async with aclosing(self._one(index)) as deltas:
          async for delta in deltas: queue.put_nowait(delta)
      except Exception as e: queue.put_nowait(e)
      finally: self._over(index)
    try:
      while first < count:
        slots = await self._service.take(count - first)
        self._begin(first, slots)
        tasks += [asyncio.ensure_future(put(i)) for i in range(first, first + len(slots))]
        first += len(slots)
    except Exception as e: queue.put_nowait(e)

  def _begin(self, first: int, slots: list[Slot]) -> None:
    """Begins answers from number `first` on, one for each slot: the first one reads the prompt for all of them."""
    asked, queued = self._asked, time.perf_counter() - self.began
    try: streams = self._service.llm.begin(asked._replace(requests=asked.requests[first:first + len(slots)]))
    except BaseException:
      for slot in slots: self._service.give(slot)
      raise
    for i, (slot, stream) in enumerate(zip(slots, streams), first):
      slot.stream, slot.settings = stream, self._settings
      self.results[i].timing, self._open[i] = stream.timing, _Open(slot, stream, queued)

  def _over(self, index: int) -> None:
    """An answer that runs does so no more; its slot is free."""
    if (found := self._open.pop(index, None)) is None: return
    slot, stream, queued = found
    stream.cancel()
    reason = self.results[index].finish or ("error" if stream.timing.finish == "error" else "abort")
    self._service.metrics.ended(stream.timing, queued, time.perf_counter() - self.began, reason)
    self._service.give(slot)

  async def _one(self, index: int) -> AsyncGenerator[Delta, None]:
    """The deltas of an answer that runs."""
    stream, result, told, last = self._open[index].stream, self.results[index], 0, 0.0
    async for piece in with_progress(stream) if self._progress and not index else stream:
      if isinstance(piece, Progress):
        yield Delta(index, [], [], [], False, [], piece)
        continue
      now = time.perf_counter()
      if last: self._service.metrics.seconds["inter_token_latency_seconds"].observe(now - last)
      last, (first, told) = now, (told, stream.taken)
      result.tokens = told
      parts = piece if self._as_parts else [(ANSWER, piece)]
      if parts[0][0] != ANSWER: result.reasoning = told
      yield self._delta(index, stream, parts, first, told)
    if self._service.ending and stream.timing.finish == "cancelled": self._service.check()
    result.tokens = stream.taken
    result.finish = FINISH.get(stream.timing.finish, "stop")
    yield self._delta(index, stream, [], told, stream.taken, over=True)

  def _delta(self, index: int, stream: Any, parts: list[tuple[str, str]], first: int, last: int,
             over: bool = False) -> Delta:
    n, end = len(self.prompt), [stream.end_logprobs] if over and stream.end_logprobs is not None else []
    return Delta(index, parts, stream.logprobs[first:last], stream.tokens[n + first:n + last], over, end)

  def prompt_text(self) -> str:
    """The prompt as the model reads it, control tokens written out."""
    return b"".join(map(self._service.llm.tokenizer.shown_bytes, self.prompt)).decode("utf-8", "replace")

  def usage(self) -> dict[str, Any]:
    """Tokens, as OpenAI counts them."""
    prompt, answer = len(self.prompt), sum(r.tokens for r in self.results)
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer,
            "prompt_tokens_details": {"cached_tokens": self.results[0].timing.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": sum(r.reasoning for r in self.results)}}

  def timings(self, progress: Progress | None = None) -> dict[str, Any]:
    """The first answer's times, as llama-server tells them. progress: while its prompt is read."""
    t, tokens = self.results[0].timing, self.results[0].tokens
    def told(name: str, count: int, steps: int, seconds: float) -> dict[str, Any]:
      return {f"{name}_n": count, f"{name}_ms": seconds * 1e3, f"{name}_per_token_ms": seconds * 1e3 / max(1, steps),
              f"{name}_per_second": steps / seconds if seconds else 0.0}
    if progress is not None:
      fed = progress.processed - progress.cached
      return {"cache_n": progress.cached, **told("prompt", fed, fed, progress.seconds), **told("predicted", 0, 0, 0.0)}
    fed = t.prompt_tokens - t.cached_tokens
    return {"cache_n": t.cached_tokens, **told("prompt", fed, fed, t.prefill),
            **told("predicted", tokens, t.tokens - 1, t.decode)}
