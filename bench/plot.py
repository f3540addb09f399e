"""
The pictures of README.md and docs/, drawn from the results files that the README's tables show.

  python bench/plot.py          writes docs/pictures/NAME-light.svg and NAME-dark.svg, needs matplotlib        make plot

Pictures: ratio (speed per weight type), trained (two trained models), tuning (schedule searches), starts (whole
processes), serve (the server). tests/tools/readme_figures.py names the files. Each SVG names its files and their dates
in its metadata, and tests/bench/test_plot.py compares them with that list.
"""
from __future__ import annotations
import pathlib
import sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from tests.tools.readme_figures import BEAM, DECODE, LLAMA, PROMPTS, SERVE, STARTS, TRAINED, load, pairs
from tinygrad_llm.command import Parser, guarded
from tinygrad_llm.errors import InputError

PICTURES = pathlib.Path(__file__).resolve().parent.parent / "docs" / "pictures"
SHAPE, PROMPT = "llama-1b-", "pp512"  # of the picture "ratio"
WIDTH = 700 / 96  # inches: an SVG of 700 pixels
PLAIN, SMALL = 9, 7  # points
SPEED = "speed relative to llama.cpp"

@dataclass(frozen=True)
class Look:
  """Colours of Okabe and Ito, which colour-blind readers can tell apart, on GitHub's two backgrounds."""
  name: str
  paper: str
  ink: str
  quiet: str  # captions and marks
  grid: str
  good: str
  bad: str
  parts: tuple[str, ...]

LOOKS = (Look("light", "#ffffff", "#1f2328", "#59636e", "#d8dee4", "#0072b2", "#d55e00",
              ("#0072b2", "#56b4e9", "#e69f00", "#b1bac4")),
         Look("dark", "#0d1117", "#e6edf3", "#9198a1", "#2a313c", "#56b4e9", "#e69f00",
              ("#0072b2", "#56b4e9", "#e69f00", "#6e7681")))

@dataclass(frozen=True)
class Row:
  label: str
  ratio: float
  columns: tuple[str, ...] = ()  # texts at the right
  limit: float | None = None  # the highest ratio that the memory allows

# *** what is drawn

def of_shape(file: str, test: str) -> dict[str, tuple[Any, Any]]:
  """{type of the weights: (our row, llama.cpp's)} of a test of the 1B shape."""
  models = [model for model in load(file)["models"] if model["file"].startswith(SHAPE)]
  return {kind: (ours, llama) for kind, name, ours, llama in pairs({"models": models}) if name == test}

def sources(name: str) -> list[str]:
  """The results files of a picture."""
  if name == "ratio": return [DECODE, *(file for file in PROMPTS if of_shape(file, PROMPT))]
  return {"trained": [TRAINED], "tuning": [*BEAM], "starts": [STARTS], "serve": [SERVE]}[name]

def stamp(name: str) -> str:
  """The files of a picture with their dates, as its metadata has them."""
  return "; ".join(f"{file} {load(file)['date']}" for file in sources(name))

def cpu(report: dict[str, Any]) -> str:
  """The processor's name without what all of its maker's names hold."""
  return re.sub(r"\(R\)| Processor", "", report["machine"]["cpu"])

def caption(name: str) -> str:
  """Machines, days and files."""
  reports = [load(file) for file in sources(name)]
  machines = dict.fromkeys(f"{cpu(report)}, {report['machine']['cores']} cores" for report in reports)
  days = dict.fromkeys(report["date"][:10] for report in reports)
  files = ", ".join(pathlib.Path(file).stem for file in sources(name))
  return f"{note(name)}{' and '.join(machines)}, {', '.join(days)}\nbench/results: {files}"

def note(name: str) -> str:
  """The model of a picture, where its labels do not name it."""
  if name == "starts": return f"run, {load(STARTS)['tokens']} tokens; "
  if name == "serve":
    found = load(SERVE)
    return f"{model_name(found['file'])}, {found['depth']} new tokens read, {found['tokens']} written; "
  if name != "ratio": return ""
  decode, *prompts = ({int(re.findall(r"-(\d+)L-", model["file"])[0]) for model in load(file)["models"]
                       if model["file"].startswith(SHAPE)} for file in sources(name))
  def layers(found: set[int]) -> str: return f"{' or '.join(map(str, sorted(found)))} layers"
  return f"1B Llama, random weights (decode: {layers(decode)}, prompt: {layers(set[int]().union(*prompts))}); "

def decode_rows() -> list[Row]:
  """One row per weight type, fastest first. The limit is read bandwidth over the bytes of a token."""
  report, rows = load(DECODE), list[Row]()
  for model in report["models"]:
    for kind, _, ours, llama in pairs({"models": [model]}):
      limit = model["bandwidth_gbs"][1] * 1e9 / model["bytes_per_token"] / llama["median_ts"]
      rows.append(Row(kind, ours["vs"][LLAMA], (f"{ours['vs'][LLAMA]:.2f}",), limit))
  return sorted(rows, key=lambda row: -row.ratio)

def prompt_rows() -> dict[str, Row]:
  found = {kind: row for file in PROMPTS for kind, row in of_shape(file, PROMPT).items()}
  return {kind: Row(kind, ours["vs"][LLAMA], (f"{ours['vs'][LLAMA]:.2f}",)) for kind, (ours, _) in found.items()}

def model_name(file: str) -> str:
  """A file's name up to the number of parameters."""
  return re.match(r".*?-\d+[mMbB]|.*", pathlib.Path(file).stem)[0]  # type: ignore[index]

def trained_rows() -> list[Row]:
  rows = list[Row]()
  for test, label in (("tg128", "decode"), ("pp256", "prompt of 256")):
    for name, model in load(TRAINED)["models"].items():
      speed = model["speed"][test]
      rows.append(Row(f"{name}, {label}", speed["ratio"],
                      (f"{speed['ratio']:.2f}", f"{speed['here']:,.0f}", f"{speed[LLAMA]:,.0f}")))
  return rows

# *** how

def clean(axes: Any, look: Look) -> None:
  axes.spines[["top", "right", "left"]].set_visible(False)
  axes.tick_params(length=0)
  axes.grid(axis="x", color=look.grid, linewidth=0.7)
  axes.set_axisbelow(True)

def lollipops(axes: Any, look: Look, rows: list[Row | None], labels: list[str], heads: tuple[str, ...]) -> None:
  """A dot per row, with a stem from 1, the memory's limit as a mark, and columns of text at the right."""
  clean(axes, look)
  axes.axvline(1, color=look.ink, linewidth=1)
  right = axes.get_yaxis_transform()  # x as a part of the width, y in rows
  def column(text: str, i: int, y: float, color: str, up: int = 0) -> None:
    axes.annotate(text, (1, y), xycoords=right, xytext=(34 + 56 * i, up), textcoords="offset points", ha="right",
                  va="center", color=color, annotation_clip=False)
  for y, row in enumerate(rows):
    if row is None:
      column("n/a", 0, y, look.quiet)
      continue
    color = look.good if round(row.ratio, 2) >= 1 else look.bad
    axes.plot((1, row.ratio), (y, y), color=color, linewidth=3, solid_capstyle="butt")
    axes.plot(row.ratio, y, "o", color=color, markersize=7)
    if row.limit: axes.plot(row.limit, y, "|", color=look.quiet, markersize=11, markeredgewidth=1.8)
    for i, text in enumerate(row.columns): column(text, i, y, look.ink)
  for i, head in enumerate(heads):  # each line by itself: other fonts would not keep lines of one text aligned
    for up, line in zip((19, 31), reversed(head.split("\n"))): column(line, i, 0, look.quiet, up)
  axes.set_yticks(range(len(rows)), labels)
  axes.set_ylim(len(rows) - 0.4, -0.6)

def box(look: Look) -> dict[str, Any]:
  """The background of a text, so that no line of the grid crosses it."""
  return {"facecolor": look.paper, "edgecolor": "none", "pad": 1}

def key(figure: Any, look: Look) -> None:
  """The legend of lollipops()."""
  from matplotlib.lines import Line2D
  marks = [("o", look.good, "as fast or faster"), ("o", look.bad, "slower"), ("|", look.quiet, "memory's limit")]
  figure.legend([Line2D([], [], marker=m, color=c, linestyle="", markersize=8, markeredgewidth=1.8)
                 for m, c, _ in marks],
                [text for _, _, text in marks], loc="outside upper center", ncols=3, frameon=False)

def ratio(pyplot: Any, look: Look) -> Any:
  decode, prompts = decode_rows(), prompt_rows()
  figure, (left, right) = pyplot.subplots(1, 2, figsize=(WIDTH, 4), layout="constrained", sharey=True,
                                          width_ratios=(3.4, 1.9))
  labels = [row.label for row in decode]
  lollipops(left, look, [*decode], labels, ())
  lollipops(right, look, [prompts.get(kind) for kind in labels], labels, ())
  for axes, title, end in ((left, "decode", 4), (right, "prompt of 512 tokens", 2.5)):
    axes.set_title(title)
    axes.set_xlim(0.6, end)
    axes.set_xticks(range(1, int(end) + 1), [f"{n}×" for n in range(1, int(end) + 1)])
    axes.set_xlabel(SPEED)
  key(figure, look)
  return figure

def trained(pyplot: Any, look: Look) -> Any:
  rows = trained_rows()
  figure, axes = pyplot.subplots(figsize=(WIDTH, 2.3), layout="constrained")
  lollipops(axes, look, [*rows], [row.label for row in rows], ("ratio", "here,\ntokens/s", "llama.cpp,\ntokens/s"))
  axes.set_xlim(0.6, 5.4)
  axes.set_xticks(range(1, 6), [f"{n}×" for n in range(1, 6)])
  axes.set_xlabel(SPEED)
  return figure

def tuning(pyplot: Any, look: Look) -> Any:
  """A panel per kernel: the winners of the searches, and all schedules near the heuristic's that were timed."""
  kernels = [(load(file), kernel) for file in BEAM for kernel in load(file)["kernels"]]
  figure, panels = pyplot.subplots(1, len(kernels), figsize=(WIDTH, 2.8), layout="constrained", sharey=True)
  names = {"ours": "our search", "BEAM=2": "tinygrad BEAM=2", "BEAM=4": "tinygrad BEAM=4"}
  for axes, (report, kernel) in zip(panels, kernels):
    clean(axes, look)
    axes.axvline(1, color=look.ink, linewidth=1)
    for y, search in enumerate(names):
      times = kernel["searches"][search]["us"] / kernel["heuristic_us"]
      axes.plot(times, y, "o", color=look.good if search == "ours" else look.bad, markersize=7)
      axes.annotate(f"{times:.2f}", (times, y), xytext=(8, 0), textcoords="offset points", va="center",
                    bbox=box(look))
    near = sorted(p["in_turns"] or p["ratio"] for p in kernel.get("population", []))
    axes.plot(near, [3 + 0.12 * (i % 3 - 1) for i in range(len(near))], ".", color=look.quiet, markersize=4)
    axes.text(1.1, 3.5, f"{len(near)} timed, best {near[0]:.2f}" if near else "none timed", color=look.quiet,
              fontsize=SMALL, va="center", bbox=box(look))
    axes.set_title(f"{kernel['kernel']}, {kernel['types']}", pad=16)
    axes.text(0.5, 1.02, f"{cpu(report)}, 1× = {kernel['heuristic_us']:.0f} µs", transform=axes.transAxes, ha="center",
              va="bottom", fontsize=SMALL, color=look.quiet)
    axes.set_xscale("log")
    axes.set_xlim(0.8, 45)
    axes.set_xticks((1, 3, 10, 30), [f"{n}×" for n in (1, 3, 10, 30)])
    axes.set_xticks((), minor=True)
  panels[0].set_yticks(range(4), [*names.values(), "neighbours"])
  panels[0].set_ylim(3.9, -0.6)
  panels[len(panels) // 2].set_xlabel("time relative to the heuristic schedule (log)")
  return figure

def starts(pyplot: Any, look: Look) -> Any:
  report = load(STARTS)
  figure, panels = pyplot.subplots(1, 2, figsize=(WIDTH, 2.3), layout="constrained", sharey=True)
  parts = {"imports": "imports", "load": "load", "ttft": "first token"}
  for axes, kind, title in zip(panels, ("cold", "warm"), ("first start, empty caches", "next starts")):
    clean(axes, look)
    for y, model in enumerate(report["models"]):
      found = model[kind]
      seconds, at = [found[part] for part in parts], 0.0
      for length, color in zip([*seconds, found["wall"] - sum(seconds)], look.parts):
        axes.barh(y, length, 0.5, at, color=color, edgecolor=look.paper, linewidth=0.6)
        at += length
      axes.annotate(f"{at:.1f} s" if at > 10 else f"{at:.2f} s", (at, y), xytext=(6, 0), textcoords="offset points",
                    va="center", bbox=box(look))
    axes.set_title(title)
    axes.set_xlabel("seconds")
    axes.margins(x=0.22)
    axes.locator_params(axis="x", nbins=4)
  panels[0].set_yticks(range(len(report["models"])), [model_name(model["model"]) for model in report["models"]])
  panels[0].set_ylim(len(report["models"]) - 0.5, -0.5)
  figure.legend([pyplot.Rectangle((0, 0), 1, 1, color=color) for color in look.parts],
                [*parts.values(), "rest"], loc="outside upper center", ncols=4,
                frameon=False)
  return figure

SERVERS = {"streams": "in this process", "serve": "the server", "llama-server": "llama-server"}

def serve(pyplot: Any, look: Look) -> Any:
  """Tokens a second of all answers together; seconds to the first token, the median and the 99th percentile."""
  found = load(SERVE)["summary"]
  names = [name for name in SERVERS if name in found]
  figure, (left, right) = pyplot.subplots(1, 2, figsize=(WIDTH, 2.8), layout="constrained")
  counts = [*found[names[0]]]
  for i, (name, color) in enumerate(zip(names, look.parts)):
    for x, n in enumerate(counts):
      at, told = x + 0.27 * (i - (len(names) - 1) / 2), found[name][n]
      left.bar(at, told["rate"], 0.25, color=color)
      left.annotate(f"{told['rate']:.0f}", (at, told["rate"]), xytext=(0, 2), textcoords="offset points", ha="center",
                    fontsize=SMALL)
      right.plot((at, at), (told["first_p50"], told["first_p99"]), color=color, linewidth=3, solid_capstyle="butt")
      right.plot(at, told["first_p50"], "o", color=color, markersize=6)
      right.plot(at, told["first_p99"], "_", color=color, markersize=10, markeredgewidth=2)
  for axes, title in ((left, "tokens a second, beside others' prompts"), (right, "seconds to the first token (log)")):
    clean(axes, look)
    axes.grid(axis="x", visible=False)
    axes.grid(axis="y", color=look.grid, linewidth=0.7)
    axes.set_title(title)
    axes.set_xticks(range(len(counts)), counts)
    axes.set_xlabel("answers at once")
    axes.margins(y=0.14)
  right.set_yscale("log")
  right.set_yticks((0.1, 0.3, 1, 3), ("0.1", "0.3", "1", "3"))
  right.set_yticks((), minor=True)
  right.text(0.02, 0.97, "dot: median, bar: 99th percentile", transform=right.transAxes, va="top", fontsize=SMALL,
             color=look.quiet)
  figure.legend([pyplot.Rectangle((0, 0), 1, 1, color=color) for color in look.parts[:len(names)]],
                [SERVERS[name] for name in names], loc="outside upper center", ncols=3, frameon=False)
  return figure

DRAWN: dict[str, Callable[[Any, Look], Any]] = {"ratio": ratio, "trained": trained, "tuning": tuning, "starts": starts,
                                                     "serve": serve}

def draw(name: str, look: Look, folder: pathlib.Path) -> pathlib.Path:
  """Writes a picture. The same results give the same file. Returns its path."""
  try: import matplotlib
  except ImportError: raise InputError("matplotlib: not installed; run: pip install matplotlib") from None
  matplotlib.use("Agg")
  from matplotlib import pyplot
  style = {"font.size": PLAIN, "axes.titlesize": PLAIN, "axes.titleweight": "bold", "font.family": "sans-serif",
           "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"], "svg.fonttype": "none",
           "svg.hashsalt": name, "figure.facecolor": look.paper, "axes.facecolor": look.paper,
           "axes.edgecolor": look.grid, **dict.fromkeys((
             "text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color"), look.ink)}
  with pyplot.rc_context(style):
    figure = DRAWN[name](pyplot, look)
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.06, wspace=0.04)
    figure.supxlabel(caption(name), x=0.012, ha="left", fontsize=SMALL, color=look.quiet)
    path = folder / f"{name}-{look.name}.svg"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None, "Creator": None, "Title": name, "Source": stamp(name)})
    pyplot.close(figure)
  return path

def _main() -> None:
  Parser(prog="python bench/plot.py", description="Draw the pictures of README.md and docs/.").parse_args()
  for name in DRAWN:
    for look in LOOKS: print(draw(name, look, PICTURES))

def main() -> None: guarded(_main)

if __name__ == "__main__": main()
