"""
Small batches: times a decode step of a few rows beside a step of one row, which reads the same weights.

  python bench/batches.py [-m MODEL ..] [--rows 1,2,4,8] [-d DEPTH] [-r N] [--out FILE]     make batches

The ratio is the cost of speculative decoding, or of several sequences. Steps of different sizes take turns; their rows
are consecutive positions. The table has medians; all samples go to bench/results/batches-DATE.json.
"""
from __future__ import annotations
import pathlib
import sys
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import json, statistics, time
from typing import Any
import numpy as np
from bench.machine import machine, now, result_file, versions
from bench.models import model
from tinygrad_llm.bench import numbers
from tinygrad_llm.command import Parser, guarded

TYPES = ("Q4_K_M", "Q6_K", "MXFP4")
CONTEXT, MOST = 4096, 64  # tokens; most rows of a step

def _logits(llama: Any, table: Any, ids: Any, start: Any, at: Any) -> Any:
  from tinygrad_llm.nn.cache.place import Piece
  return llama.logits(llama.hidden(ids, Piece(start, table, (at,), start + ids.shape[1])))

def measure(path: str, rows: list[int], depth: int, repetitions: int) -> dict[int, list[float]]:
  """Returns {rows: milliseconds of each repetition of the step}."""
  from tinygrad import Device, UOp, dtypes
  from tinygrad.helpers import ceildiv
  from tinygrad_llm import load
  from tinygrad_llm.device.buffers import empty, fill
  from tinygrad_llm.device.captured import captured
  from tinygrad_llm.nn.cache.place import BLOCK
  llm = load(path, max_context=CONTEXT)
  start = UOp.variable("start", 0, CONTEXT - max(rows)).bind(depth)
  at = UOp.variable("at0", 0, BLOCK + CONTEXT - max(rows)).bind(BLOCK + depth)
  table = empty((1, ceildiv(CONTEXT, BLOCK)), dtypes.int32)
  fill(table, lambda memory: np.copyto(memory, np.arange(1, 1 + memory.size)))  # the pool's first blocks
  steps = {}
  for n in rows:
    ids = empty((1, n), dtypes.int32)
    fill(ids, lambda memory: memory.__setitem__(..., 1))
    steps[n] = captured(_logits, llm.model, table), ids
  found: dict[int, list[float]] = {n: [] for n in rows}
  for turn in range(3 + repetitions):
    for n, (step, ids) in steps.items():
      begun = time.perf_counter()
      step(ids, start, at)
      Device[Device.DEFAULT].synchronize()
      if turn >= 3: found[n].append((time.perf_counter() - begun) * 1e3)  # earlier turns schedule and compile
  return found

def _main() -> None:
  parser = Parser(prog="python bench/batches.py", description="Time steps of a few rows beside that of one.")
  parser.add_argument("-m", "--model", nargs="+", metavar="M", help="files, default: a 1B shape in three types")
  parser.add_argument("--rows", default="1,2,4,8", metavar="N,N", help="of a step (default 1,2,4,8)")
  parser.add_argument("-d", "--n-depth", type=int, default=0, metavar="N", help="tokens in the KV cache (default 0)")
  parser.add_argument("-r", "--repetitions", type=int, default=15, metavar="N", help="of each (default 15)")
  parser.add_argument("--out", type=pathlib.Path, help="default: bench/results/batches-DATE.json")
  args = parser.parse_args()
  if not 0 <= args.n_depth <= CONTEXT - MOST: parser.error(f"--n-depth is from 0 to {CONTEXT - MOST}")
  rows = sorted({1, *numbers("--rows", [args.rows])})
  if rows[0] < 1 or rows[-1] > MOST: parser.error(f"--rows are from 1 to {MOST}")
  if args.repetitions < 1: parser.error("--repetitions is at least 1")
  date, models = now(), list[dict[str, Any]]()
  print(f"{'model':<36}" + "".join(f"{f'{n} rows':>18}" for n in rows))
  for path in args.model or [str(model("llama-1b", types)) for types in TYPES]:
    found = measure(path, rows, args.n_depth, args.repetitions)
    median = {n: statistics.median(times) for n, times in found.items()}
    print(f"{pathlib.Path(path).name:<36}" + "".join(
      f"{f'{ms:.1f} ms {ms / median[1]:.2f}x':>18}" for ms in median.values()), flush=True)
    models.append({"file": pathlib.Path(path).name,
                   "ms": {n: [round(t, 3) for t in times] for n, times in found.items()},
                   "ratios": {n: round(ms / median[1], 3) for n, ms in median.items()}})
  out = args.out or result_file("batches", date)
  out.write_text(json.dumps({"date": date, "machine": machine(), "versions": versions(), "depth": args.n_depth,
                             "models": models}, indent=1) + "\n")
  print(f"written: {out}")

if __name__ == "__main__": guarded(_main)
