"""Answers that arrive while others do: iterators of token ids or of text, for threads and for asyncio."""
from __future__ import annotations
import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any, Generic, TypeVar
from tinygrad_llm.engine.batch.engine import Engine
from tinygrad_llm.engine.batch.request import Request
from tinygrad_llm.engine.choice.logprobs import Logprobs
from tinygrad_llm.engine.timing import Timing
from tinygrad_llm.errors import InputError
from tinygrad_llm.text.answer_text import AnswerText

T = TypeVar("T")
PATIENCE = 1.0  # seconds between two looks whether the engine still lives

class Stream(Generic[T]):
  """
  An answer's pieces, in order: token ids, or texts.

  - timing: of this answer, as from generate()
  - finish: why it ended, see Timing; "" while it goes on
  - logprobs: of each token so far, if they were asked for

  cancel(), close(), or dropping the stream ends it within one step.
  """
  def __init__(self, llm: Any, engine: Engine, request: Request, text: AnswerText | None = None, as_text: bool = False):
    """text: reads the tokens for stop strings; as_text: the pieces are its texts. llm: is kept alive."""
    self._llm, self._engine, self._request, self._text, self._as_text = llm, engine, request, text, as_text
    engine.submit(request)

  @property
  def tokens(self) -> list[int]:
    """The token ids of the prompt and of the answer so far."""
    return list(self._request.sequence.tokens)
  @property
  def timing(self) -> Timing: return self._request.timing
  @property
  def finish(self) -> str:
    stopped = self._text is not None and self._text.stopped
    return self.timing.finish if stopped or self._request.outbox.ended else ""
  @property
  def logprobs(self) -> list[Logprobs]: return self._request.logprobs

  def cancel(self) -> None:
    """Ends the answer before its next step. Tokens that are there already can still be read."""
    self._engine.cancel(self._request)

  close = cancel

  def __del__(self) -> None:
    if "_request" in vars(self) and not self._request.outbox.ended: self.cancel()

  def _take(self, wait: float) -> Any:
    """The next piece, or None if none has come. StopIteration at the end."""
    text = self._text
    if text is None: return self._request.outbox.take(wait)
    if text.stopped: raise StopIteration
    try: token = self._request.outbox.take(wait)
    except StopIteration:
      text.finish()
      if text.stopped: self._request.stopped()
      if self._as_text and (piece := text.raw()): return piece
      raise
    if token is None: return None
    text.push(token)
    if text.stopped:
      self._request.stopped()
      self.cancel()
    return (text.raw() or None) if self._as_text else token

  def _check(self) -> None:
    if not self._engine.is_alive() and not self._request.outbox.ended:
      self.cancel()
      self._request.end("error", InputError("engine: its thread has ended; ask again, or load the model again"))

class TokenStream(Stream[T], Iterator[T]):
  """A Stream for threads: next() waits for the next piece."""
  def __next__(self) -> T:
    while True:
      found: T | None = self._take(PATIENCE)
      if found is not None: return found
      self._check()

class AsyncStream(Stream[T], AsyncIterator[T]):
  """A Stream for asyncio: `async for` waits without a thread. It belongs to the event loop that made it."""
  def __init__(self, llm: Any, engine: Engine, request: Request, text: AnswerText | None = None, as_text: bool = False):
    loop, self._came = asyncio.get_running_loop(), asyncio.Event()
    request.outbox.wake = _waking(loop, self._came)
    super().__init__(llm, engine, request, text, as_text)

  async def __anext__(self) -> T:
    while True:
      self._came.clear()
      try: found: T | None = self._take(0)
      except StopIteration: raise StopAsyncIteration from None
      if found is not None: return found
      try: await asyncio.wait_for(self._came.wait(), PATIENCE)
      except TimeoutError: self._check()

  async def aclose(self) -> None:
    """As cancel()."""
    self.cancel()

def _waking(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> Callable[[], None]:
  def wake() -> None:
    with suppress(RuntimeError): loop.call_soon_threadsafe(event.set)  # the loop may be closed
  return wake
