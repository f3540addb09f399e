"""One request of many: its sequence, the choice of its tokens, and its end."""
from __future__ import annotations
import threading, time
from collections.abc import Callable
import numpy as np
from tinygrad_llm.engine.batch.outbox import Outbox
from tinygrad_llm.engine.batch.sequence import Sequence
from tinygrad_llm.engine.choice.ending import Ending
from tinygrad_llm.engine.choice.grammar import Grammar
from tinygrad_llm.engine.choice.logprobs import Logprobs, logprobs
from tinygrad_llm.engine.sampling import Sampler, greedy_token
from tinygrad_llm.engine.timing import Timing
from tinygrad_llm.text.tokenizer import Tokenizer

STOP_STRING = "stop_string"

class Request:
  """
  One answer, as the engine knows it.

  top: how many alternatives to a token are listed with its log-probability; None: log-probabilities are not computed.
  """
  def __init__(self, sequence: Sequence, sampler: Sampler, ending: Ending, tokenizer: Tokenizer,
               grammar: Grammar | None = None, top: int | None = None):
    self.sequence, self.sampler, self.ending, self.grammar = sequence, sampler, ending, grammar
    self.outbox, self.timing = Outbox(), Timing(prompt_tokens=sequence.prompt)
    self.logprobs: list[Logprobs] = []
    self.read = 0  # prompt tokens that pieces fed, again after a preemption
    self._tokenizer, self._top, self.began, self._reason = tokenizer, top, time.perf_counter(), threading.Lock()

  def chose(self, key: int | None, logits: Callable[[], np.ndarray]) -> None:
    """
    Chooses the next token, by the greedy key or the row of logits that its last token gave, and passes it on.

    An InputError ends this request alone.
    """
    s, n = self.sequence, len(self.sequence.tokens) - self.sequence.prompt
    if self.sampler.greedy and key is not None: token = greedy_token(key)
    else:
      allowed = None if self.grammar is None else self.grammar.mask()
      token = self.sampler(logits(), s.tokens, allowed=allowed, ruled_out=self.ending.ruled_out(n))
    finish = self.ending.finish(token, n)
    if finish == "stop":
      s.finish = finish
      return
    if self.grammar is not None:
      self.grammar.accept(token)
      if self.grammar.is_over: finish = "stop"
    if self._top is not None: self.logprobs.append(logprobs(logits(), token, self._top, self._tokenizer))
    s.tokens.append(token)
    self._count()
    self.outbox.put(token)
    s.finish = finish

  def end(self, finish: str, error: Exception | None = None) -> None:
    """The answer is over. A stop string that its reader has found stays the reason."""
    with self._reason:
      if self.timing.finish != STOP_STRING: self.timing.finish = finish
    self.outbox.end(error)

  def stopped(self) -> None:
    """The reader has found a stop string."""
    with self._reason: self.timing.finish = STOP_STRING

  def _count(self) -> None:
    timing, now = self.timing, time.perf_counter() - self.began
    timing.tokens += 1
    if timing.tokens == 1: timing.first_token, timing.cached_tokens = now, max(0, timing.prompt_tokens - self.read)
    else: timing.decode = now - timing.first_token
