"""python -m tinygrad_llm.tune: search for faster schedules of a model's kernels, and keep them."""
from __future__ import annotations
import argparse, os, pathlib, re, sys, time
from typing import TYPE_CHECKING
from tqdm import tqdm
from tinygrad_llm.command import Parser, check_writable, guarded
from tinygrad_llm.device.threads import use_threads
from tinygrad_llm.errors import InputError, warn
from tinygrad_llm.files.hub import locate
if TYPE_CHECKING: from tinygrad_llm.analysis.tuning import Row, Tuning

UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}

def _parser() -> argparse.ArgumentParser:
  parser = Parser(prog="python -m tinygrad_llm.tune", description=(
    "Time other schedules of a decode step's kernels on this device, and keep the faster ones. Every later run of a "
    "model uses them. Candidates run in processes of their own, and their results are checked. The search may be "
    "stopped at any time, and then continues where it was."))
  add = parser.add_argument
  add("-m", "--model", help="path of a .gguf file, a name of `run --list`, or hf:owner/repo[:file or quant type] "
                            "(default: the bundled model)")
  add("--budget", default="10m", help="time for the whole search, such as 90s, 10m or 1h (default 10m)")
  add("-d", "--depth", type=int, help="tokens in the KV cache while attention is timed (default 512, at most half of "
                                      "the context)")
  add("--max-context", type=int, default=4096, help="positions of the KV cache, as for `run` (default 4096)")
  add("-t", "--threads", type=int, metavar="N", help="threads of the CPU device (default: all cores)")
  add("--again", action="store_true", help="search kernels again that were searched before")
  add("--plot", type=pathlib.Path, metavar="FILE", help="draw the kernels before and after, as PNG or SVG")
  files = parser.add_mutually_exclusive_group()
  files.add_argument("--export", type=pathlib.Path, metavar="FILE", help="only write the schedules found, as JSON")
  files.add_argument("--import", dest="take", type=pathlib.Path, metavar="FILE",
                     help="only read a file of --export, from any machine; none of it is executed")
  return parser

def seconds_of(text: str) -> float:
  """A time such as 90, 90s, 10m or 1.5h in seconds."""
  if (m := re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())) is None or not float(m[1]):
    raise InputError(f"--budget {text!r:.40}: give a time as 90s, 10m or 1h")
  return float(m[1]) * UNITS[m[2]]

class Bar:
  """A progress line on a terminal; elsewhere one line for each kernel that is done."""
  def __init__(self, seconds: float):
    self.end = time.monotonic() + seconds
    self.bar = tqdm(file=sys.stderr, unit="kernel", leave=False, disable=None, bar_format="|{bar:12}| {desc}{postfix}")
    self.told = set[int]()

  def __call__(self, rows: list[Row], at: int | None, line: str) -> None:
    from tinygrad_llm.analysis.tuning import step_us
    before, after = step_us(rows)
    if at is None: self.bar.set_description_str(line)
    else:
      row, left = rows[at], max(0, int(self.end - time.monotonic()))
      searched = [r for r in rows if not r.state]
      self.bar.total, self.bar.n = len(rows), len(rows) - len(searched)
      self.bar.set_description_str(f"{at + 1}/{len(rows)} {row.kernel.name} {row.types}: {line}")
      self.bar.set_postfix_str(f"{before / 1e3:.2f} -> {after / 1e3:.2f} ms a token, {left // 60}:{left % 60:02d} left")
      if self.bar.disable and row.state and at not in self.told:
        self.told.add(at)
        print(f"{at + 1}/{len(rows)} {row.kernel.name} {row.types}: {row.before:.1f} -> {row.after:.1f} us, "
              f"{row.state}", file=sys.stderr, flush=True)
    self.bar.refresh()

  def close(self) -> None: self.bar.close()

def table(tuning: Tuning) -> str:
  """A table of a step's kernels before and after tuning, with their share of the machine's memory bandwidth."""
  from tinygrad_llm.analysis.tuning import step_us
  def share(row: Row, us: float) -> str: return f"{row.nbytes / us / 1e3 / tuning.bandwidth:.0%}" if us else "-"
  lines = [("kernel", "types", "n", "us", "tuned", "gain", "of peak", "tuned", "")]
  lines += [(row.kernel.name, row.types or "-", str(row.count), f"{row.before:.1f}", f"{row.after:.1f}",
             f"{row.gain:.2f}x", share(row, row.before), share(row, row.after), row.state) for row in tuning.rows]
  widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
  text = ["  ".join(c.ljust(w) if i in (0, 1, 8) else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))).rstrip()
          for line in lines]
  before, after = step_us(tuning.rows)
  moved = sum(row.nbytes * row.count for row in tuning.rows)
  text.append(f"kernels of a token: {before / 1e3:.2f} -> {after / 1e3:.2f} ms ({before / after:.3f}x), "
              f"{moved / before / 1e3:.1f} -> {moved / after / 1e3:.1f} of {tuning.bandwidth:.1f} GB/s" if after else
              "nothing was timed")
  return "\n".join(text)

def context(args: argparse.Namespace) -> int:
  """Positions of the KV cache: --max-context, at most the model's own context."""
  from tinygrad_llm.files.gguf import open_gguf
  from tinygrad_llm.files.hub import resolve
  from tinygrad_llm.nn.reader import read_config
  return int(min(args.max_context, read_config(open_gguf(resolve(args.model))).context_length))

def check_store() -> None:
  """InputError at once if the schedules that a search finds could not be kept."""
  from tinygrad_llm.patches.cache import schedules
  try: schedules.STORE.check_writable()
  except OSError as e:
    raise InputError(f"{schedules.STORE.folder}: what is found could not be kept ({e.strerror}); set CACHEDB to a file "
                     "in a folder that can be written") from e

def warn_if_busy() -> None:
  """Warns on stderr if other programs load the machine and so disturb the timing."""
  if hasattr(os, "getloadavg") and (load := os.getloadavg()[0]) > (cores := os.cpu_count() or 1) / 2:
    warn(f"the load of this machine is {load:.1f} of {cores} cores: other programs run, and what they disturb is timed")

def _tune(args: argparse.Namespace, seconds: float) -> None:
  from tinygrad import Device
  from tinygrad_llm.analysis.tuning import Tuning
  from tinygrad_llm.kernels import decode_step
  from tinygrad_llm.patches import is_on
  if Device.DEFAULT.split(":")[0] in ("NULL", "PYTHON"):
    raise InputError(f"DEV={Device.DEFAULT}: nothing can be timed there; use a device that runs kernels")
  if os.name != "posix": raise InputError("tune: this system has no processes that it can watch; use Linux or macOS")
  if not is_on("stored_schedules"): raise InputError("NO_STORED_SCHEDULES: what is found is not used; unset it")
  depth = min(512, context(args) // 2) if args.depth is None else args.depth
  tuning = Tuning(*decode_step(args.model, args.max_context, depth), seconds, args.again, bar := Bar(seconds))
  if Device.DEFAULT == "CPU": warn_if_busy()
  interrupted = False
  try: tuning.run()
  except KeyboardInterrupt: interrupted = True
  finally: bar.close()
  print(table(tuning))
  if args.plot is not None:
    from tinygrad_llm.analysis.pages.tuned import draw
    draw(tuning, args.plot)
    print(f"written: {args.plot}")
  if interrupted: raise KeyboardInterrupt

def _main() -> None:
  args = _parser().parse_args()
  seconds = seconds_of(args.budget)
  use_threads(args.threads)
  if args.max_context < 1: raise InputError(f"--max-context {args.max_context}: give at least 1 position")
  for option, path in (("--plot", args.plot), ("--export", args.export)):
    if path is not None: check_writable(option, path)
  if args.plot is not None:
    from tinygrad_llm.analysis.pages.tuned import check
    check(args.plot)
  if args.export is None and args.take is None: locate(args.model)  # a wrong name fails before anything slow
  from tinygrad_llm.device.device import open_target
  open_target(None)
  from tinygrad_llm.analysis import tuning
  if args.export is None: check_store()
  if args.export is not None: return print(f"written: {args.export}, {tuning.export(args.export)} schedules")
  if args.take is not None:
    count, here = tuning.take(args.take)
    return print(f"read: {args.take}, {count} schedules, {here} of them for this device")
  _tune(args, seconds)

def main() -> None: guarded(_main)

if __name__ == "__main__": main()
