"""
The traffic of several answers at once, for any server: each answer has a thread that reads it and notes the times.

It needs the standard library only, because it also runs under a peer's interpreter.
"""
from __future__ import annotations
import random, threading, time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

class Answer(Protocol):
  """The number of new tokens at each step of its iterator. cancel() may be called by another thread."""
  def __iter__(self) -> Iterator[int]: ...
  def cancel(self) -> None: ...

Begin = Callable[[Sequence[int], int], Answer]  # (prompt, number of tokens): a greedy answer that no token ends

class Prompts:
  """Random prompts of ordinary tokens, the same for every server of a vocabulary of `vocab_size`."""
  def __init__(self, vocab_size: int, seed: int = 0):
    self._random, self._range = random.Random(seed), (vocab_size // 8, vocab_size * 7 // 8)

  def next(self, tokens: int) -> list[int]: return [self._random.randrange(*self._range) for _ in range(tokens)]

class Reader:
  """Reads one answer in a thread of its own. times: of each token, in seconds of time.perf_counter()."""
  def __init__(self, answer: Answer):
    self.times: list[float] = []
    self._answer, self._error = answer, None  # type: Answer, BaseException | None
    self._thread = threading.Thread(target=self._run, daemon=True)
    self._thread.start()

  def _run(self) -> None:
    try:
      for n in self._answer: self.times += [time.perf_counter()] * n
    except BaseException as e: self._error = e

  def cancel(self) -> None:
    self._answer.cancel()
    self._thread.join()

  def join(self) -> None:
    """Waits for the end; an error of the answer is raised here."""
    self._thread.join()
    if self._error is not None: raise self._error

  def wait(self, tokens: int) -> None:
    """Waits until so many tokens are there."""
    while len(self.times) < tokens and self._thread.is_alive(): time.sleep(0.005)
    if len(self.times) < tokens: self.join()

class Window(NamedTuple):
  """
  The time in which all of several answers were under way: from the last first token to the first last token.

  tokens: of all answers, within it.
  """
  begin: float
  end: float
  tokens: int

  @property
  def rate(self) -> float:
    """Tokens a second, of all answers together."""
    return self.tokens / max(1e-9, self.end - self.begin)

def window(times: Sequence[Sequence[float]]) -> Window:
  """See Window."""
  begin, end = max(t[0] for t in times), min(t[-1] for t in times)
  return Window(begin, end, sum(begin < x <= end for t in times for x in t))

def decode(begin: Begin, prompts: Sequence[Sequence[int]], tokens: int) -> Window:
  """Answers of so many tokens to all prompts at once."""
  readers = [Reader(begin(prompt, tokens)) for prompt in prompts]
  for reader in readers: reader.join()
  return window([reader.times for reader in readers])

def first_token(begin: Begin, prompt: Sequence[int]) -> float:
  """Seconds until the first token of an answer."""
  start = time.perf_counter()
  (reader := Reader(begin(prompt, 1))).join()
  return reader.times[0] - start

def beside_prompt(begin: Begin, prompts: Sequence[Sequence[int]], long: Sequence[int], tokens: int) -> dict[str, Any]:
  """
  Answers to `prompts`; a long prompt is read after `tokens` tokens of each, and then they go on for as many.

  - before, while, after: their tokens a second together
  - share: of the speed that the same tokens would have alone. A step takes longer with each token by itself, in a
    line, so they would take the mean of a step's times before and after.
  - gap_ms: the longest wait of one of them for a token while the long prompt was read
  - step_ms: the median wait before
  - first_token_s: of the long prompt
  """
  readers = [Reader(begin(prompt, 1 << 20)) for prompt in prompts]
  try:
    for reader in readers: reader.wait(tokens)
    all_run, start = max(reader.times[0] for reader in readers), time.perf_counter()
    (other := Reader(begin(long, 1))).join()
    for reader in readers: reader.wait(len(reader.times) + tokens)
    last = time.perf_counter()
  finally:
    for reader in readers: reader.cancel()
  end, gaps, steps = other.times[0], list[float](), list[float]()
  for reader in readers:
    for a, b in zip(reader.times, reader.times[1:]):
      if b > start and a < end: gaps.append(min(b, end) - a)
      elif b <= start and a >= all_run: steps.append(b - a)
  before, meanwhile, after = (
    Window(a, b, sum(a < t <= b for reader in readers for t in reader.times)).rate
    for a, b in ((all_run, start), (start, end), (end, last)))
  return {"before": round(before, 2), "while": round(meanwhile, 2), "after": round(after, 2),
          "share": round(meanwhile * (1 / before + 1 / after) / 2, 4), "gap_ms": round(max(gaps) * 1e3, 1),
          "step_ms": round(sorted(steps)[len(steps) // 2] * 1e3, 2), "first_token_s": round(end - start, 3)}
