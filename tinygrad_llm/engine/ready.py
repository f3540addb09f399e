"""Captures of a model's steps before their first use, with a bar for their progress."""
from __future__ import annotations
import time
from typing import Any
from tinygrad_llm.engine.precompile import DECODE, PROMPT, Ahead
from tinygrad_llm.progress import compiling

Kind = tuple[int, bool]  # rows, and whether they may sample on the device
PIECE, ROW = (0, False), (1, False)

class Ready:
  """
  Knows which kinds of steps are captured.

  ahead: forks that capture the first ones, if there are any. progress: whether a bar is shown.
  """
  def __init__(self, ahead: Ahead | None, progress: bool):
    self.done, self._ahead, self._progress = set[Kind](), ahead, progress

  def capture(self, steps: Any, kind: Kind) -> float:
    """
    Captures a step, or reads its capture from disk; how many seconds that took. steps: RowSteps.

    Block 0 and all states of rows are written.
    """
    start = time.perf_counter()
    with compiling(self._progress, midline=kind != PIECE):
      if self._ahead is not None and kind in (PIECE, ROW): self._ahead.wait(PROMPT if kind == PIECE else DECODE)
      if kind != PIECE:
        if not steps.restore_decode(*kind): steps.capture_decode(*kind)
      elif not steps.restore_piece(): steps.capture_piece()
      elif steps.restore_decode(*ROW): self.done.add(ROW)  # read now, it is no wait after the first token
    self.done.add(kind)
    return time.perf_counter() - start
