"""Answers that arrive while others do: iterators of token ids or of text, for threads and for asyncio."""
from __future__ import annotations
import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, NoReturn, TypeVar
from weakref import WeakKeyDictionary
from tinygrad_llm.engine.batch.engine import Engine
from tinygrad_llm.engine.batch.outbox import Bell
from tinygrad_llm.engine.batch.request import Request
from tinygrad_llm.engine.choice.logprobs import Logprobs
from tinygrad_llm.engine.timing import Timing
from tinygrad_llm.text.answer_text import AnswerText
from tinygrad_llm.text.thinking import Part

T = TypeVar("T")
Pieces = Literal["ids", "text", "parts"]
PATIENCE = 1.0  # seconds between two looks whether the engine still lives

class Asked(NamedTuple):
  """Streams that have not begun. text: makes a reader of an answer's text, if one is needed."""
  requests: list[Request]
  text: Callable[[], AnswerText] | None
  pieces: Pieces

class Stream(Generic[T]):
  """
  An answer's pieces, in order: token ids, texts, or lists of parts as LLM.parts() has them.

  - timing: of this answer, as from generate()
  - finish: why it ended, see Timing; "" while it goes on
  - logprobs: of each token so far, if they were asked for; `taken` of them belong to the pieces that were read
  - end_logprobs: of the end token, if one ended the answer

  cancel(), close(), or dropping the stream ends it within one step.
  """
  def __init__(self, llm: Any, engine: Engine, request: Request, text: AnswerText | None = None,
               pieces: Pieces = "ids"):
    """text: reads the tokens for stop strings, and makes texts and parts. llm: is kept alive."""
    self._llm, self._engine, self._request, self._text, self._pieces = llm, engine, request, text, pieces
    self._finished, self.taken = False, 0  # tokens that were read so far

  @property
  def tokens(self) -> list[int]:
    """The token ids of the prompt and of the answer so far."""
    return list(self._request.sequence.tokens)
  @property
  def timing(self) -> Timing: return self._request.timing
  @property
  def finish(self) -> str:
    stopped = self._text is not None and self._text.stopped
    return self.timing.finish if stopped or self._request.is_over else ""
  @property
  def read(self) -> tuple[int, int]:
    """Positions of the prompt that were found in the pool, and those that are read by now, the former included."""
    return self._request.sequence.reused, self._request.sequence.fed
  @property
  def logprobs(self) -> list[Logprobs]: return self._request.logprobs
  @property
  def end_logprobs(self) -> Logprobs | None: return self._request.end_logprobs

  def cancel(self) -> None:
    """
    Ends the answer at once, also while a step takes for ever. Tokens that are there already can still be read.
    """
    self._request.cancel()

  close = cancel

  def __reduce__(self) -> NoReturn:
    """TypeError: a copy that is dropped would cancel the answer."""
    raise TypeError("stream: it cannot be copied or pickled; pass on what it gives")

  def __del__(self) -> None:
    if "_request" in vars(self) and not self._request.is_over: self.cancel()

  def _take(self, wait: float) -> Any:
    """The next piece, or None once all tokens that came are read and have none. StopIteration at the end."""
    while True:
      if self._text is not None and self._text.stopped: raise StopIteration
      try: token = self._request.outbox.take(wait)
      except StopIteration:
        if self._text is None or self._finished or not (piece := self._last(self._text)): raise
        return piece
      if token is None: return None
      self.taken += 1
      if self._text is None: return token
      parts = self._text.push(token)
      if self._text.stopped:
        self._request.stopped()
        self.cancel()
      if self._pieces == "ids": return token
      if piece := self._shown(self._text, parts): return piece

  def _shown(self, text: AnswerText, parts: list[Part]) -> Any: return parts if self._pieces == "parts" else text.raw()

  def _last(self, text: AnswerText) -> Any:
    """The text that was held back until the answer's last token, if any."""
    self._finished, parts = True, text.finish()
    if text.stopped: self._request.stopped()
    return None if self._pieces == "ids" else self._shown(text, parts)

  def _check(self) -> None:
    if not self._request.is_over: self._engine.check(self._request)

class TokenStream(Stream[T], Iterator[T]):
  """A Stream for threads: next() waits for the next piece."""
  def __next__(self) -> T:
    while True:
      found: T | None = self._take(PATIENCE)
      if found is not None: return found
      self._check()

class AsyncStream(Stream[T], AsyncIterator[T]):
  """A Stream for asyncio: `async for` waits without a thread. It belongs to the event loop that made it."""
  def __init__(self, llm: Any, engine: Engine, request: Request, text: AnswerText | None = None,
               pieces: Pieces = "ids"):
    loop, self._came = asyncio.get_running_loop(), asyncio.Event()
    self._bell = _bells.setdefault(loop, Bell())
    request.outbox.wake = partial(self._bell.ring, loop, self._came)
    super().__init__(llm, engine, request, text, pieces)

  async def __anext__(self) -> T:
    while True:
      self._came.clear()
      try: found: T | None = self._take(0)
      except StopIteration: raise StopAsyncIteration from None
      if found is not None: return found
      try: await asyncio.wait_for(self._came.wait(), PATIENCE)
      except TimeoutError:
        self._bell.answer()
        self._check()

  async def aclose(self) -> None:
    """As cancel()."""
    self.cancel()

_bells = WeakKeyDictionary[asyncio.AbstractEventLoop, Bell]()
