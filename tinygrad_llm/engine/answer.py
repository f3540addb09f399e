"""The answer of generate(): a stream that keeps pace with its reader."""
from __future__ import annotations
from collections import deque
from dataclasses import replace
from typing import Any
from tinygrad_llm.engine.batch.request import STOP_STRING, Request
from tinygrad_llm.engine.batch.stream import Asked, TokenStream

AHEAD = 4  # tokens, at most, that are computed before they are asked for

class Answer(TokenStream[int]):
  """
  An iterator of token ids, whose first next() begins it.

  The engine computes AHEAD tokens more than were read, and then waits for the reader. The answer's decode steps have
  one row, so that its tokens do not depend on other answers, and need no step but the model's first ones.

  timing: for the tokens that were read; timing.finish says why it ended.
  """
  def __init__(self, llm: Any, asked: Asked):
    request, = asked.requests
    super().__init__(llm, llm.engine, request, asked.text and asked.text(), "ids")
    self._timing, self._begun, self._ended = replace(request.timing), False, False
    self._stamps = deque[float]()
    self._pace(request)

  @property
  def timing(self) -> Any: return self._timing

  @property
  def tokens(self) -> list[int]:
    """The token ids of the prompt and of the answer, as far as it was read."""
    s = self._request.sequence
    return s.tokens[:s.prompt + self.taken]

  def __next__(self) -> int:
    if not self._ended: self._llm.check_open()
    if not self._begun: self._begin()
    elif self._request.outbox.was_left and not self._ended: self._begin_again()
    try: token = super().__next__()
    except StopIteration:
      if not self._ended and (finish := self._request.timing.finish) == "cancelled": self._llm.check_open()
      if not self._ended and self._timing.finish != STOP_STRING: self._timing.finish = finish
      self._ended = True
      raise
    self._count()
    if self._text is not None and self._text.stopped: self._timing.finish = STOP_STRING
    if self._request.outbox.unread == AHEAD - 1: self._engine.wake()
    return token

  def cancel(self) -> None:
    """Ends the answer: it gives no more tokens."""
    self._ended = True
    super().cancel()

  close = cancel

  def _count(self) -> None:
    mine, of = self._timing, self._request.timing
    at = self._stamps.popleft() if self._stamps else of.first_token + of.decode  # came before a fork
    mine.tokens += 1
    mine.prefill, mine.cached_tokens, mine.compile = of.prefill, of.cached_tokens, of.compile
    if mine.tokens == 1: mine.first_token = at
    else: mine.decode = at - mine.first_token

  def _pace(self, request: Request) -> None:
    """Makes a request keep pace with this reader."""
    sequence, outbox = request.sequence, request.outbox
    sequence.alone, sequence.room, request.stamps = True, lambda: AHEAD - outbox.unread, self._stamps

  def _begin(self) -> None:
    self._begun = True
    self._engine.submit(self._request)

  def _begin_again(self) -> None:
    """In a forked child, which has the model, but no thread that computes this answer."""
    self._stamps.clear()
    self._request = self._request.again(self.taken)
    self._pace(self._request)
    if not self._request.is_over: self._engine.submit(self._request)
