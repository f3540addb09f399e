"""One request, as the scheduler and the pool of KV blocks see it: its tokens, and where their KV lies."""
from __future__ import annotations
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

# slots: with caches emptied by a step, memory that is not touched is time
@dataclass(eq=False, slots=True, weakref_slot=True)
class Sequence:
  """
  A prompt and the answer so far. Two sequences are never equal, so that they are keys of dicts.

  KV of positions [0, fed) is in the pool. With fed == len(tokens) - 1 the next step is a decode step. Steps that are
  launched write `launched` positions more; until they are done, the sequence keeps its blocks. Positions below
  `written` were written by prompt pieces, and so was all that they attend to. Their KV is equal, to the bit, to a fresh
  read of the prompt. Decode rounds otherwise, so it leaves `written` where it is.
  """
  tokens: list[int]            # the prompt, then the answer
  prompt: int                  # how many of them are the prompt
  fed: int = 0
  launched: int = 0            # decode steps whose results are not known yet
  written: int = 0
  table: list[int] = field(default_factory=list)  # block i holds positions 64 i to 64 i + 63
  window: list[int] = field(default_factory=list)  # the same in layers with a window, see prefixes.windows; 0: none
  max_tokens: int | None = None
  cancelled: bool = False
  finish: str | None = None    # why the answer ended, as in Timing
  error: Exception | None = None
  root: str = ""               # prefixes are shared only under the same root, such as the name of an adapter
  exact_prefix: bool = False   # reuses only KV that prompt pieces wrote
  reused: int = 0              # positions that the pool's begin() found since the request came
  snapshot: Any = None         # recurrent layers' states at position `fed`, to be loaded before the next step
  state: Any = None            # recurrent layers' states at the end, taken before a launched step went too far
  went_too_far: bool = False   # a launched step has fed a token that is none of the sequence
  alone: bool = False          # its decode steps have one row, so that its numbers depend on no company
  room: Callable[[], int] | None = None  # how many tokens its reader has room for; None: for all

  @property
  def is_paused(self) -> bool:
    """Whether the reader has no room for another token, launched ones included."""
    return self.room is not None and self.room() <= self.launched

  def read(self, count: int) -> None:
    """Notes that a prompt piece has written `count` positions from `fed` on."""
    if self.written == self.fed: self.written += count
    self.fed += count
