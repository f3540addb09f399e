"""Which turns of a long conversation are left out, so that the rest fits a context."""
from __future__ import annotations
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

M = TypeVar("M", bound=Mapping[str, Any])

def fitted(messages: Sequence[M], context: int, length: Callable[[list[M]], int],
           too_long: Callable[[int, str], Exception]) -> list[M]:
  """
  `messages` without the oldest turns, so that a quarter of `context` is left for the answer.

  A system message stays. The last message may take more than that. If it or the system message is too long by itself,
  too_long(tokens, its name) is raised. length: the tokens of a conversation.
  """
  first, most = 1 if messages and messages[0]["role"] == "system" else 0, context * 3 // 4
  cuts = range(first, len(messages), 2)
  def kept(cut: int) -> list[M]: return [*messages[:first], *messages[cut:]]
  if not cuts or length(kept(first)) <= most: return [*messages]
  last = len(cuts) - 1  # bisection: some hundred turns take a second, one by one half a minute
  cut = cuts[bisect_left(cuts, True, min(1, last), last, key=lambda cut: length(kept(cut)) <= most)]
  if (count := length(kept(cut))) <= context: return kept(cut)
  alone = length([*messages[cut:]]) if first else count
  raise too_long(count, "the message" if alone > context else "the system message with this one")
