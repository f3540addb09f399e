"""The rule that ends an answer: by a token, or by its length."""
from __future__ import annotations
from collections.abc import Iterable
from tinygrad_llm.errors import InputError

class Ending:
  """
  When one answer ends.

  ends: end-of-turn ids. stop_ids: the request's own. A token of either ends the answer and is not part of it.
  min_tokens: before the answer has so many, both are ruled out. Stop strings and other turns end it all the same.
  max_tokens: the answer has at most so many; None: `room`. room: how many fit the context.
  InputError if min_tokens is above max_tokens.

  most: how many tokens the answer may have, or None; full: why it ends with so many, "length" or "context".
  """
  def __init__(self, ends: Iterable[int], stop_ids: Iterable[int] = (), min_tokens: int = 0,
               max_tokens: int | None = None, room: int | None = None):
    if max_tokens is not None and min_tokens > max_tokens:
      raise InputError(f"min_tokens: {min_tokens} is more than max_tokens, {max_tokens}; lower it")
    own = frozenset(stop_ids)
    self._ends = frozenset(ends) | own if own else frozenset(ends)  # a frozenset stays one object for all answers
    self.min_tokens = min_tokens
    self._order = tuple(sorted(self._ends))
    limits = [(n, why) for n, why in ((max_tokens, "length"), (room, "context")) if n is not None]
    self.most: int | None = None
    self.full = ""
    if limits: self.most, self.full = min(limits, key=lambda limit: limit[0])

  def ruled_out(self, n_tokens: int) -> tuple[int, ...]:
    """The ids that must not follow the first `n_tokens` tokens of the answer, ascending."""
    return self._order if n_tokens < self.min_tokens else ()

  def is_full(self, n_tokens: int) -> bool:
    """Whether an answer of so many tokens gets no more."""
    return self.most is not None and n_tokens >= self.most

  def finish(self, token: int, n_tokens: int) -> str | None:
    """
    Why the answer ends with `token`, the choice after its first `n_tokens` tokens; None: it goes on.

    "stop": the token is not part of the answer. "length" (max_tokens), "context" (room): it is the answer's last.
    """
    if token in self._ends: return "stop"
    return self.full if self.most is not None and n_tokens + 1 >= self.most else None
