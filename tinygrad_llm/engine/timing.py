"""How long an answer took, and why it ended."""
from __future__ import annotations
from dataclasses import dataclass

@dataclass
class Timing:
  """
  An answer's wall times in seconds. What the prompt needs is compiled in `first_token`, what the tokens after
  it need in `compile`, nothing in `prefill` and `decode`.

  finish: why it ended. "stop": an end-of-turn token; "length": max_tokens; "stop_string"; "context": there is no room
  for more; "cancelled": it was interrupted, closed, or is not over.
  """
  prompt_tokens: int = 0
  cached_tokens: int = 0  # of the prompt, those whose keys and values were still there
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
