"""How far the compiling of kernels is, on stderr."""
from __future__ import annotations
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from tqdm import tqdm
from tinygrad_llm.patches.cache import programs

@contextmanager
def compiling(show: bool) -> Iterator[None]:
  """Shows the kernels that are compiled in this block, as "compiling 37/61"; on a terminal only."""
  if not show or not sys.stderr.isatty():
    yield
    return
  bar: tqdm | None = None
  before = 0  # kernels of the batches that are done
  def update(done: int, total: int) -> None:
    nonlocal bar, before
    if bar is None: bar = tqdm(desc="compiling", file=sys.stderr, leave=False)
    bar.total, bar.n = before + total, before + done
    bar.refresh()
    if done == total: before += total
  programs.progress = update
  try: yield
  finally:
    programs.progress = None
    if bar is not None: bar.close()
