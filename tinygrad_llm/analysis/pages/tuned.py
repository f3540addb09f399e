"""The plot of a tuning: the bandwidth that each kernel reaches before and after, beside the machine's."""
from __future__ import annotations
import pathlib
from typing import TYPE_CHECKING
from tinygrad_llm.errors import InputError
if TYPE_CHECKING: from tinygrad_llm.analysis.tuning import Tuning

SHOWN = 12  # kernels, the most expensive ones

def check(path: pathlib.Path) -> None:
  """Checks the file's type and matplotlib before the tuning, not minutes later. InputError if draw() would fail."""
  if path.suffix not in (".png", ".svg"): raise InputError(f"--plot {path}: give a file that ends in .png or .svg")
  try: import matplotlib  # noqa: F401
  except ImportError: raise InputError("--plot: matplotlib is not installed; run: pip install matplotlib") from None

def draw(tuning: Tuning, path: pathlib.Path) -> None:
  """Writes the plot to a file, PNG or SVG by its suffix."""
  import matplotlib
  matplotlib.use("Agg")
  from matplotlib import pyplot as plt
  rows = [row for row in tuning.rows if row.before and row.after][:SHOWN][::-1]
  figure, axes = plt.subplots(figsize=(8, 1.1 + 0.42 * len(rows)), dpi=150, layout="constrained")
  def share(us: list[float]) -> list[float]: return [row.nbytes / t / 1e3 for row, t in zip(rows, us)]
  places = range(len(rows))
  axes.barh([y + 0.2 for y in places], share([row.before for row in rows]), 0.38, color="#8b949e", label="untuned")
  axes.barh([y - 0.2 for y in places], share([row.after for row in rows]), 0.38, color="#1f6feb", label="tuned")
  axes.axvline(tuning.bandwidth, color="#d29922", linestyle="--", label="measured bandwidth")
  axes.set_yticks(list(places), [f"{row.count} x {row.kernel.name} {row.types}" for row in rows], fontsize=8)
  axes.set_xlabel("GB/s of the bytes that it has to move, data cold")
  axes.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.4, 1 + 0.5 / max(1, len(rows))), ncols=3)
  for side in ("top", "right"): axes.spines[side].set_visible(False)
  figure.savefig(path)
  plt.close(figure)
