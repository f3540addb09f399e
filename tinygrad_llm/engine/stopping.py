"""Stops an answer by its text: at a stop string, or where another turn begins."""
from __future__ import annotations
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from tinygrad_llm.engine.timing import Timing
from tinygrad_llm.text.answer_text import AnswerText

def answer_text(llm: Any, tokens: Iterable[int], stop: Sequence[str], prompt: Sequence[int] = ()) -> AnswerText:
  """The AnswerText that reads `tokens`. The tokens of generate() know the prompt that they continue."""
  before = prompt or getattr(tokens, "tokens", ())
  return AnswerText(llm.tokenizer, stop, [*before], getattr(llm, "turns", None))

def stopped_by_text(llm: Any, tokens: Iterable[int]) -> None:
  """Notes in an answer's own timing why it ended; other tokens use the timing of the model's last answer."""
  timing: Timing | None = getattr(tokens, "timing", getattr(llm, "timing", None))
  if timing is not None: timing.finish = "stop_string"

class UntilStop(Iterator[int]):
  """The tokens of an answer, up to and with the one that completes a stop string or begins another turn."""
  def __init__(self, llm: Any, tokens: Iterable[int], stop: Sequence[str]):
    self.answer, self._llm, self._text = tokens, llm, answer_text(llm, tokens, stop)
    self._run = iter(tokens)

  def __next__(self) -> int:
    if self._text.stopped: raise StopIteration
    self._text.push(token := next(self._run))
    if self._text.stopped:
      if (close := getattr(self.answer, "close", None)) is not None: close()
      stopped_by_text(self._llm, self.answer)
    return token

  def __getattr__(self, name: str) -> Any:
    """Everything else is the answer's: its timing, tokens, close()."""
    if name == "answer": raise AttributeError(name)  # not yet there
    return getattr(self.answer, name)
