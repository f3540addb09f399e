"""Tuning a model: its kernels are searched within a time budget, the most expensive ones first."""
from __future__ import annotations
import json, pathlib, statistics, time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from tinygrad import Device, Tensor
from tinygrad.helpers import NUM_CPU_THREADS
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.analysis.programs import Reads, Rows
from tinygrad_llm.analysis.roles import groups
from tinygrad_llm.device.bandwidth import ReadBandwidth, copy_bandwidth
from tinygrad_llm.errors import InputError
from tinygrad_llm.patches.cache import schedules
from tinygrad_llm.patches.graph.horizontal_fusion import kernels_of
from tinygrad_llm.patches.search import tuner
from tinygrad_llm.patches.search.measure import PREPARE
from tinygrad_llm.patches.search.sandbox import Failed, Sandbox, processes
from tinygrad_llm.patches.search.space import NotScheduled

SMALL = 0.004       # share of a step's time below which a kernel is not searched
SURVEY = 5          # rounds of timing before the searches
NEAR = 1.02         # a search ends within this factor of the time that the kernel's bytes take at full bandwidth
LARGE = 1 << 20     # bytes above which a kernel counts as memory-bound
LEAST = 10.0        # seconds that a kernel's search gets, at least

@dataclass(frozen=True)
class Row:
  """
  A kernel of the step.

  - types: the quantised types of the weights that it reads.
  - count: its launches in a step. nbytes: bytes that one launch moves.
  - before, after: us of one launch, cold.
  - opts: the schedule found; None if there is nothing better.
  - state: the outcome of its search, in words.
  """
  kernel: tuner.Kernel
  types: str
  count: int
  nbytes: int = 0
  before: float = 0.0
  after: float = 0.0
  opts: tuple[Any, ...] | None = None
  state: str = ""

  @property
  def gain(self) -> float: return self.before / self.after if self.after else 1.0

def rows_of(linear: UOp, variables: Mapping[str, int], weights: Mapping[UOp, Rows], caches: Sequence[Tensor],
            device: str) -> list[Row]:
  """
  The distinct kernels of a scheduled step. Each stage of a fused launch is a kernel of its own.

  linear, variables, weights, caches: as in kernels.decode_step's result.
  """
  kv, found = {cache.uop.base for cache in caches}, dict[str, Row]()
  calls = [call for call in linear.src if call.src[0].op is Ops.SINK]
  for call, part in zip(calls, groups(calls, weights, kv)):
    ast, reads = call.src[0], Reads.of(call, weights, kv)
    for stage in kernels_of(ast):
      own = {v.expr: variables.get(v.expr, int(v.vmax)) for v in stage.variables()}
      kernel = tuner.kernel_of(stage, device, own, part)
      row = found.setdefault(kernel.key, Row(kernel, "+".join(reads.types), 0))
      found[kernel.key] = replace(row, count=row.count + 1)
  return list(found.values())

class Tuning:
  """
  The search over a step's kernels. The arguments before `seconds` are those for rows_of().

  - seconds: the budget for all kernels.
  - again: whether kernels with a known result are searched again.
  - told: called with the rows so far, the index of the current one (None during the survey) and a line about it.
  - bandwidth: GB/s of the machine: the most that was measured for a plain read (GPU: a copy), or for a kernel.
  """
  def __init__(self, linear: UOp, variables: Mapping[str, int], weights: Mapping[UOp, Rows], caches: Sequence[Tensor],
               seconds: float, again: bool = False,
               told: Callable[[list[Row], int | None, str], None] = lambda rows, at, line: None):
    self.device, self.told, self.again = Device.DEFAULT, told, again
    self.rows, self.seconds, self.bandwidth = rows_of(linear, variables, weights, caches, Device.DEFAULT), seconds, 0.0

  def run(self) -> None:
    """Surveys and searches the kernels. After Ctrl-C, the results so far are stored, and in `rows`."""
    begun = time.monotonic()
    self.bandwidth = _bandwidth(self.device)
    with Sandbox(processes(self.device)) as sandbox:
      self.survey(sandbox)
      self.rows.sort(key=lambda row: -row.count * row.before)
      total = sum(row.count * row.before for row in self.rows)
      worth = [i for i, row in enumerate(self.rows) if row.count * row.before >= SMALL * total and not row.state]
      for n, i in enumerate(worth):
        shares = [self.rows[j].count * self.rows[j].before for j in worth[n:]]
        left = self.seconds - (time.monotonic() - begun)
        if left <= 0: self.rows[i] = replace(self.rows[i], state="no time was left")
        else: self._search(sandbox, i, max(LEAST, left * shares[0] / sum(shares)))
      for i, row in enumerate(self.rows):
        if not row.state: self.rows[i] = replace(row, state="too short to matter")
    self.told(self.rows, None, "done")

  def survey(self, sandbox: Sandbox) -> None:
    """Times all kernels with their present schedules."""
    for i, row in enumerate(self.rows):
      self.told(self.rows, None, f"timing {row.kernel.name}")
      try:
        tuner.begin(row.kernel, sandbox)
        seconds, nbytes = sandbox.runner.ask("survey", SURVEY, seconds=PREPARE)
        self.rows[i] = replace(row, before=seconds * 1e6, after=seconds * 1e6, nbytes=nbytes)
      except Failed as e: self.rows[i] = replace(row, state=f"cannot be timed: {e}")
    # the memory's speed changes by the minute: what one kernel reaches, another may reach too
    self.bandwidth = max(self.bandwidth, *(row.nbytes / row.before / 1e3 for row in self.rows
                                           if row.before and row.nbytes > LARGE), 0.0)

  def _search(self, sandbox: Sandbox, i: int, seconds: float) -> None:
    row = self.rows[i]
    known = None if self.again else tuner.known_for(row.kernel)
    if known is not None and known.extra.get("complete", True):
      after = row.before * known.ratio
      self.rows[i] = replace(row, after=after, opts=known.opts, state="known")
      return self.told(self.rows, i, "known")
    self.told(self.rows, i, "searching")
    enough = row.nbytes / self.bandwidth / 1e9 * NEAR
    try:
      result = tuner.search(row.kernel, sandbox, seconds, enough, again=self.again,
                            told=lambda line: self.told(self.rows, i, line))
      self.rows[i] = replace(row, before=result.before * 1e6, after=result.after * 1e6, opts=result.opts,
                             state=("found" if result.opts is not None else "best already") +
                             ("" if result.complete else ", not to the end"))
    except NotScheduled: self.rows[i] = replace(row, state="has no schedule")
    except Failed as e: self.rows[i] = replace(row, state=f"cannot be searched: {e}")
    self.told(self.rows, i, self.rows[i].state)

def step_us(rows: list[Row]) -> tuple[float, float]:
  """Microseconds of all kernels of a step, before and after tuning."""
  return sum(row.count * row.before for row in rows), sum(row.count * row.after for row in rows)

def _bandwidth(device: str) -> float:
  if device.split(":")[0] != "CPU": return copy_bandwidth(256 << 20)
  read = ReadBandwidth(NUM_CPU_THREADS.value, 1 << 29)
  return statistics.median(read.measure() for _ in range(5))

# *** files

def export(path: pathlib.Path) -> int:
  """Writes all schedules that this user's searches found to a JSON file; returns their number."""
  found = sorted((entry.json() for entry in schedules.entries()), key=lambda row: (row["name"], row["kernel"]))
  if not found: raise InputError("--export: no schedule was found yet; run without it first")
  path.write_text(json.dumps({"tinygrad_llm": "schedules", "version": schedules.VERSION, "schedules": found}, indent=1)
                  + "\n", encoding="utf-8")
  return len(found)

def take(path: pathlib.Path) -> tuple[int, int]:
  """Imports a file of export() into this user's store. Returns how many schedules it has, and how many fit here."""
  def fail(why: str) -> InputError: return InputError(f"--import {path}: {why}; give what tune --export wrote")
  try: data = json.loads(path.read_text(encoding="utf-8"))
  except (ValueError, RecursionError) as e: raise fail(f"it is no JSON ({e})") from e
  rows = data.get("schedules") if isinstance(data, dict) else None
  if not isinstance(rows, list): raise fail("it has no schedules")
  entries = list(_entries(rows, fail))
  device = schedules.device_of(Device.DEFAULT, Device[Device.DEFAULT].renderer)
  for entry in entries: schedules.put(entry)
  return len(entries), sum(entry.holds(device) for entry in entries)

def _entries(rows: list[Any], fail: Callable[[str], InputError]) -> Iterator[schedules.Entry]:
  for i, row in enumerate(rows):
    try: entry = schedules.Entry.of(row)
    except (ValueError, TypeError) as e: raise fail(f"schedules[{i}]: {e}") from e
    yield replace(entry, extra={**entry.extra, "imported": True})
