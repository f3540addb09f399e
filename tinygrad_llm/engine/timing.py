"""An answer's wall times, and why it ended."""
from __future__ import annotations
from dataclasses import dataclass

@dataclass(slots=True)
class Timing:
  """
  An answer's wall times in seconds, and why it ended.

  Compiling for the prompt counts in `first_token`, compiling for the tokens after it in `compile`. `prefill` and
  `decode` contain no compiling.
  finish: why the answer ended. "stop": an end-of-turn token; "length": max_tokens; "stop_string"; "context": there is
  no room for more; "cancelled": it was interrupted, closed, or is not over.
  """
  prompt_tokens: int = 0
  cached_tokens: int = 0  # prompt tokens that were not fed again: the cache and recurrent states held them
  tokens: int = 0
  prefill: float = 0.0
  first_token: float = 0.0
  compile: float = 0.0  # after the first token
  decode: float = 0.0   # the tokens after the first
  finish: str = "cancelled"

  @property
  def decode_tok_s(self) -> float | None: return (self.tokens - 1) / self.decode if self.decode else None
  @property
  def prefill_tok_s(self) -> float | None:
    return (self.prompt_tokens - self.cached_tokens) / self.prefill if self.prefill else None
