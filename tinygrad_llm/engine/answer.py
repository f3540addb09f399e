"""One answer: the tokens that continue a prompt, one after another."""
from __future__ import annotations
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol
from tinygrad_llm.device.device_errors import raise_device_error
from tinygrad_llm.engine.choice.ending import Ending
from tinygrad_llm.engine.context import Feed
from tinygrad_llm.engine.lookahead import Draws
from tinygrad_llm.engine.sampling import Sampler
from tinygrad_llm.engine.timing import Timing

class SlotModel(Protocol):
  """A model with one slot of keys and values, which answers feed in turns, see llm.LLM."""
  @property
  def lock(self) -> Any: ...
  @property
  def max_context(self) -> int: ...
  @property
  def _lookahead(self) -> Any: ...
  def compile_prompt(self) -> None: ...
  def compile_decode(self, token: int, position: int, sampler: Sampler) -> None: ...
  def is_fed_by(self, feed: Feed) -> bool: ...
  def feed_prompt(self, feed: Feed) -> tuple[Any, int]: ...
  def feed_again(self, feed: Feed) -> None: ...
  def feed(self, token: int, position: int) -> tuple[Any, Any]: ...
  def choose(self, logits: Any, key: Any, sampler: Sampler, history: list[int], ruled_out: tuple[int, ...]) -> int: ...
  def start_ahead(self, token: int, history: list[int], sampler: Sampler, draws: Draws) -> None: ...
  def launch(self, position: int) -> Callable[[], int]: ...
  def was_fed(self, token: int) -> None: ...
  def keep_prefix(self, feed: Feed) -> None: ...

class Answer(Feed, Iterator[int]):
  """
  An iterator of token ids. Several answers of one model may be read in turns, also by several threads: each finds the
  KV cache as it left it, or feeds its own tokens again.

  timing: for this answer alone; timing.finish says why it ended.
  """
  def __init__(self, llm: SlotModel, ids: list[int], sampler: Sampler, ending: Ending):
    super().__init__()
    self.tokens, self.prompt, self.timing = ids, len(ids), Timing(prompt_tokens=len(ids))
    self._llm, self._sampler, self._ending = llm, sampler, ending
    self._run = self._tokens()

  def __next__(self) -> int:
    with self._llm.lock:
      try: return next(self._run)
      except BaseException as e:
        self.ended = True
        if isinstance(e, StopIteration): self._llm.keep_prefix(self)
        raise_device_error(e)
        raise

  def close(self) -> None:
    """Ends the answer: it gives no more tokens and feeds nothing."""
    with self._llm.lock:
      self._run.close()
      self.ended, self.saved = True, None
      self._llm.keep_prefix(self)

  def _tokens(self) -> Generator[int, None, None]:
    llm, timing, start = self._llm, self.timing, time.perf_counter()
    llm.compile_prompt()
    compiled = time.perf_counter()
    logits, timing.cached_tokens = llm.feed_prompt(self)
    token = self._sampler(logits, self.tokens, ruled_out=self._ending.ruled_out(0))
    timing.prefill = time.perf_counter() - compiled
    is_ahead = llm._lookahead is not None and self._sampler.on_device
    following = (self._next_ahead if is_ahead else self._next)(token)
    while not self._ending.is_full(timing.tokens):
      if (finish := self._ending.finish(token, timing.tokens)) == "stop":
        timing.finish = finish
        return
      timing.tokens += 1
      if timing.tokens == 1: timing.first_token = time.perf_counter() - start
      else: timing.decode = time.perf_counter() - start - timing.first_token - timing.compile
      if finish: self._end()
      yield token
      if self.ended: return
      if timing.tokens == 1:
        told = time.perf_counter()
        llm.feed_again(self)
        llm.compile_decode(token, len(self.tokens), self._sampler)
        timing.compile = time.perf_counter() - told
      token = next(following)
    self._end()

  def _end(self) -> None: self.ended, self.timing.finish = True, self._ending.full

  def _next(self, token: int) -> Iterator[int]:
    """The tokens after `token`, which is fed first."""
    while True:
      self._llm.feed_again(self)
      logits, key = self._llm.feed(token, len(self.tokens))
      self.tokens.append(token)
      ruled_out = self._ending.ruled_out(len(self.tokens) - self.prompt)
      yield (token := self._llm.choose(logits, key, self._sampler, self.tokens, ruled_out))

  def _next_ahead(self, token: int) -> Iterator[int]:
    """The same, but each step is launched before the token of the step before is read."""
    draws, reading, first = Draws(self._sampler), None, len(self.tokens)
    while True:
      if reading is None or not self._llm.is_fed_by(self):  # a pending read is dropped if somebody else fed
        self._llm.feed_again(self)
        self._llm.start_ahead(token, self.tokens, self._sampler, draws)
        reading = self._llm.launch(len(self.tokens))
      self.tokens.append(token)
      self._llm.was_fed(token)
      following: Callable[[], int] | None = None
      if not self._ending.is_full(len(self.tokens) + 1 - first): following = self._llm.launch(len(self.tokens))
      token = reading()
      yield token
      reading = following
