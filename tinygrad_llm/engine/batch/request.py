"""One request of many: its sequence, the choice of its tokens, and its end."""
from __future__ import annotations
import threading, time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
import numpy as np
from tinygrad_llm.engine.batch.outbox import Outbox
from tinygrad_llm.engine.batch.row_steps import Choice
from tinygrad_llm.engine.batch.sequence import Sequence
from tinygrad_llm.engine.choice.draws import Draws
from tinygrad_llm.engine.choice.ending import Ending
from tinygrad_llm.engine.choice.grammar import Grammar
from tinygrad_llm.engine.choice.logprobs import Logprobs, logprobs, sampled_logprobs
from tinygrad_llm.engine.sampling import Sampler, greedy_token
from tinygrad_llm.engine.timing import Timing
from tinygrad_llm.text.tokenizer import Tokenizer

STOP_STRING = "stop_string"

class Request:
  """
  One answer, as the engine knows it.

  - top: how many alternatives to a token are listed with its log-probability; None: no log-probabilities are computed
  - end_logprobs: of the end token, which is no token of the answer
  - sampled: these are of the tokens that the sampler picked from, by its chances, not of all by the model's
  - stamps: seconds at which tokens came that the reader did not count yet, without compiling after the first token
  - forks: further answers to the same prompt, which wait until this request has read it
  """
  def __init__(self, sequence: Sequence, sampler: Sampler, ending: Ending, tokenizer: Tokenizer,
               grammar: Grammar | None = None, top: int | None = None, sampled: bool = False):
    # first, and so side by side in memory, what a greedy token needs
    self.sequence, self.ending, self.grammar, self.began = sequence, ending, grammar, time.perf_counter()
    self.outbox, self.timing = Outbox(), Timing(prompt_tokens=sequence.prompt)
    self._greedy, self._top = sampler.greedy, top
    self.sampler, self.logprobs = sampler, list[Logprobs]()
    self.end_logprobs: Logprobs | None = None
    self.forks = list[Request]()
    self.stamps: deque[float] | None = None
    self._draws = Draws(sampler)
    self._fed = self._own = 0  # where the prompt's steps have come to; how many of its tokens they fed, each once
    self._tokenizer, self._sampled = tokenizer, sampled
    self._ends = threading.RLock()  # a stream that the garbage collector drops may end its request inside end()

  @property
  def is_over(self) -> bool:
    """Whether the answer has ended for its reader."""
    return self.outbox.ended

  @property
  def is_on_device(self) -> bool:
    """Whether the device can make the choice that this request will make of its next token."""
    return self.sampler.on_device and self.grammar is None and self._top is None and not self.forks

  @property
  def is_plain(self) -> bool:
    """Whether it takes the likeliest token, and nobody asks for more."""
    return self._greedy and self.grammar is None and self._top is None and not self.forks

  @property
  def samples(self) -> bool:
    """Whether the device can draw this request's next token."""
    return not self._greedy and self.is_on_device

  def choice(self, position: int) -> Choice | None:
    """The choice that a device is to make after the token at `position`; None: the likeliest token."""
    if not self.samples: return None
    return Choice(self.sampler, self.sequence.tokens, self._draws.random32(position))

  @property
  def is_paused(self) -> bool:
    """Whether the engine waits for the answer's reader."""
    return self.sequence.is_paused

  def read(self, first: int, count: int, seconds: float) -> None:
    """Notes a step before the first token, which fed tokens from position `first` on; it is the prompt's time."""
    self.timing.prefill += seconds
    self._own += max(0, first + count - max(first, self._fed))
    self._fed = max(self._fed, first + count)
    self.timing.cached_tokens = self.timing.prompt_tokens - self._own

  def chose(self, key: int | None, logits: Callable[[], np.ndarray], is_chosen: bool = False) -> None:
    """
    Chooses the next token, by the row of logits that its last token gave, and passes it on.

    key: the likeliest token's, or of the token that choice() asked for (is_chosen). An InputError ends this request
    alone. A request that its reader has ended chooses nothing.
    """
    if self.outbox.ended: return
    s = self.sequence
    n = len(s.tokens) - s.prompt
    allowed, ruled_out = None, ()  # type: np.ndarray | None, tuple[int, ...]
    if key is not None and (is_chosen or self._greedy): token = greedy_token(key)
    else:
      ruled_out, random = self.ending.ruled_out(n), self._draws.known(len(s.tokens) - 1)
      allowed = None if self.grammar is None else self.grammar.mask()
      token = self.sampler(logits(), s.tokens, allowed=allowed, ruled_out=ruled_out, random=random)
    finish = self.ending.finish(token, n)
    if finish == "stop":
      if self._top is not None: self.end_logprobs = logprobs(logits(), token, self._top, self._tokenizer)
      s.finish = finish
      return
    if self.grammar is not None:
      self.grammar.accept(token)
      if self.grammar.is_over: finish = "stop"
    if self._top is not None:
      if self._sampled:
        candidates = self.sampler.candidates(logits(), s.tokens, allowed, ruled_out)
        self.logprobs.append(sampled_logprobs(*candidates, token, self._top, self._tokenizer))
      else: self.logprobs.append(logprobs(logits(), token, self._top, self._tokenizer))
    self._pass_on(token)
    s.finish = finish

  def chose_likeliest(self, key: int) -> None:
    """chose() of a request that is_plain, by the likeliest token's key."""
    if self.outbox.ended: return
    s = self.sequence
    token = greedy_token(key)
    if (finish := self.ending.finish(token, len(s.tokens) - s.prompt)) != "stop": self._pass_on(token)
    s.finish = finish

  def _pass_on(self, token: int) -> None:
    self.sequence.tokens.append(token)
    timing, seconds = self.timing, time.perf_counter() - self.began - self.timing.compile
    if timing.tokens: timing.decode = seconds - timing.first_token
    else: timing.first_token = seconds
    timing.tokens += 1
    if self.stamps is not None: self.stamps.append(seconds)
    self.outbox.put(token)

  def end(self, finish: str, error: Exception | None = None) -> None:
    """The answer is over; the first reason counts. A stop string that its reader has found stays the reason."""
    with self._ends:
      if self.is_over: return
      if self.timing.finish != STOP_STRING: self.timing.finish = finish
      self.outbox.end(error)

  def cancel(self) -> None:
    """
    Ends the answer for its reader at once, and its sequence before the engine's next step.

    An engine that waits for slow readers looks each second. So no lock of the engine is needed, which a dropped stream
    might not get.
    """
    self.sequence.cancelled = True
    self.end("cancelled")

  def stopped(self) -> None:
    """The reader has found a stop string."""
    with self._ends: self.timing.finish = STOP_STRING

  def again(self, taken: int) -> Request:
    """
    In a forked child: a request that goes on where this one stands, after the tokens that its reader has taken.
    """
    old, timing = self.sequence, self.timing
    new = Sequence([*old.tokens], old.prompt, max_tokens=old.max_tokens, exact_prefix=old.exact_prefix)
    request = Request(new, self.sampler, self.ending, self._tokenizer)
    request.timing, request._draws = replace(timing), self._draws
    for token in old.tokens[old.prompt + taken:]: request.outbox.put(token)
    if (finish := old.finish) or self.ending.is_full(len(old.tokens) - old.prompt):
      request.end(finish or self.ending.full)
    return request

  def leave(self) -> None:
    """In a forked child: the answer stays the parent's."""
    self._ends = threading.RLock()
    self.outbox.leave()
