"""Stops an answer by its text: at a stop string, or where another turn begins."""
from __future__ import annotations
from collections.abc import Iterable, Sequence
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
