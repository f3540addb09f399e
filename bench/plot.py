"""
The README's plot, from a JSON file of peers.py: tokens a second of each peer, and the limit by read bandwidth.

  python bench/plot.py [results/peers-DATE.json] [--out bench/results/decode.png]      (default: the latest)
"""
from __future__ import annotations
import pathlib
import sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import json
from typing import Any
from bench.machine import RESULTS
from tinygrad_llm.command import Parser, guarded
from tinygrad_llm.errors import InputError

COLORS = {"tinygrad_llm": "#1f6feb", "llama.cpp": "#d29922", "mlx": "#8250df", "stock": "#8b949e"}

def bars(report: dict[str, Any]) -> tuple[list[str], list[str], dict[tuple[int, str], tuple[float, float, float]]]:
  """
  Returns models, peers, and {(number of the model, peer): (median, min, max)} of the first generation test.

  Speeds are in tokens a second.
  """
  models, speeds = list[str](), dict[tuple[int, str], tuple[float, float, float]]()
  for model in report["models"]:
    tests = [r["test"] for r in model["rows"] if r["test"].startswith("tg")]
    rows = {r["peer"]: r for r in model["rows"] if tests and r["test"] == tests[0] and r["peer"] in COLORS}
    speeds |= {(len(models), name): (r["median_ts"], r["min_ts"], r["max_ts"]) for name, r in rows.items()}
    models.append(model["model"])
  return models, [name for name in COLORS if any(key[1] == name for key in speeds)], speeds

def draw(report: dict[str, Any], out: pathlib.Path) -> None:
  try: import matplotlib
  except ImportError: raise InputError("matplotlib: not installed; run: pip install matplotlib") from None
  matplotlib.use("Agg")
  from matplotlib import pyplot as plt
  models, peers, speeds = bars(report)
  if not speeds: raise InputError("plot: the file has no generation tests; run peers.py with -n above 0")
  figure, axes = plt.subplots(figsize=(1.6 + 1.5 * len(models), 3.6), dpi=150, layout="constrained")
  width, labelled = 0.8 / len(peers), set[str]()
  def label(name: str) -> str:
    """Labels a name once: a legend leaves out labels that begin with an underscore."""
    seen = name in labelled
    labelled.add(name)
    return f"_{name}" if seen else name
  for (j, peer), (median, low, high) in speeds.items():
    x = j - 0.4 + width * (peers.index(peer) + 0.5)
    axes.bar(x, median, width * 0.92, color=COLORS[peer], label=label(peer), yerr=[[median - low], [high - median]],
             error_kw={"elinewidth": 0.8, "capsize": 2})
    text = f"{median:.0f}" if median >= 100 else f"{median:.3g}"
    axes.annotate(text, (x, high), ha="center", va="bottom", fontsize=7)
  for j, model in enumerate(report["models"]):
    if model["bandwidth_gbs"]:
      limit = model["bandwidth_gbs"][1] * 1e9 / model["bytes_per_token"]
      axes.hlines(limit, j - 0.45, j + 0.45, colors="#cf222e", linestyles="--", linewidth=1,
                  label=label("read bandwidth"))
  axes.set_xticks(range(len(models)), [name.replace(" ", "\n", 1) for name in models], fontsize=8)
  axes.set_ylabel("tokens / s")
  axes.spines[["top", "right"]].set_visible(False)
  axes.margins(y=0.12)
  figure.legend(loc="outside lower center", fontsize=7, frameon=False, ncols=len(peers) + 1)
  axes.set_title(f"decode, {report['machine']['cpu']}, {report['threads']} threads, {report['date'][:10]}", fontsize=8)
  out.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(out)
  plt.close(figure)

def _main() -> None:
  parser = Parser(prog="python bench/plot.py", description="Plot a result of peers.py.")
  parser.add_argument("json", nargs="?", type=pathlib.Path, help="default: the latest in bench/results/")
  parser.add_argument("--out", type=pathlib.Path, default=RESULTS / "decode.png")
  args = parser.parse_args()
  files = [args.json] if args.json else sorted(RESULTS.glob("peers-*.json"))
  if not files: raise InputError(f"{RESULTS}: no peers-*.json; run peers.py first")
  try: report = json.loads(files[-1].read_text())
  except ValueError as e: raise InputError(f"{files[-1]}: not JSON ({e}); run peers.py again") from e
  draw(report, args.out)
  print(args.out)

def main() -> None: guarded(_main)

if __name__ == "__main__": main()
