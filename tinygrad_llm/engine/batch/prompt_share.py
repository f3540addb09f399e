"""Which part of the time prompts get while others decode, and how long a prompt piece may make them wait."""
from __future__ import annotations
from collections.abc import Callable
from tinygrad_llm.engine.batch.step_times import DecodeTimes, PieceTimes
from tinygrad_llm.errors import InputError

SHORT = 0.1   # seconds that prompt pieces may always take between two turns
TURNS = 2.75  # turns that they may take if these are longer: with the turn itself 3.75, a margin to 4
HELD = 0.99   # part of the prompts' share that is given out: the rest repays the piece that is ahead

class PromptShare:
  """
  A deficit counter over measured times: a decode step earns time for prompts, a piece beside decoders spends it.

  share: prompts' part of the time, between 0 and 1. The counter stays within one stall, both ways, and saves
  nothing while there are no prompts. A piece runs once the counter is above 0, so prompts are ahead by a piece at most.
  """
  def __init__(self, share: float):
    if not 0 < share < 1: raise InputError(f"prompt_share: {share} is not between 0 and 1; use 0.35")
    self._earned = HELD * share / (1 - HELD * share)  # seconds for prompts, for each second of decoding
    self._credit = self._stalled = 0.0
    self.pieces, self.decodes = PieceTimes(), DecodeTimes()

  def stall(self, decoding: int, rows: int) -> float:
    """Seconds that pieces may take between two turns of `decoding` sequences, in steps of at most `rows`."""
    full, rest = divmod(decoding, rows)
    turn = full * self.decodes.seconds(rows) + (self.decodes.seconds(rest) if rest else 0.0)
    return max(SHORT, TURNS * turn)

  def look(self) -> None:
    """Comes before pieces' times are asked for: a short one is expected to take a decode step's time."""
    self.pieces.step = self.decodes.least

  def room(self, stall: float) -> float:
    """Seconds that the next piece may take now; 0 or less: a turn comes first, as it does before two measured ones."""
    return stall - self._stalled if self._credit > 0 and self.pieces.step else 0.0

  @property
  def stalled(self) -> bool:
    """Whether a piece ran since the last turn began."""
    return self._stalled > 0

  def turn(self, prompts: bool) -> None:
    """A turn begins: each decoding sequence gets a token. prompts: whether any prompt waits or is read."""
    self._stalled = 0.0
    if not prompts: self._credit = min(self._credit, 0.0)

  def repay(self, seconds: float) -> None:
    """Turns without prompts took so long."""
    self._credit = min(self._credit + self._earned * seconds, 0.0)

  def decoded(self, rows: int, seconds: float, stall: Callable[[], float]) -> None:
    """A decode step took so long. stall: as from stall()."""
    self.decodes.add(rows, seconds)
    self._credit += self._earned * seconds
    if self._credit > SHORT: self._credit = min(stall(), self._credit)  # no stall is shorter

  def read(self, tokens: int, seconds: float, stall: float | None, first: int = 0) -> None:
    """
    A piece from position `first` on took so long; stall: None when nobody decoded, then it costs nothing.
    """
    self.pieces.add(tokens, seconds, first)
    self._stalled += seconds
    if stall is not None: self._credit = max(-stall, self._credit - seconds)
