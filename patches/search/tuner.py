"""
The search for one kernel's schedule from beginning to end: earlier results, the search itself (beam.py), storing its
result. An interrupted search continues where it stopped, even if its process was killed.
"""
from __future__ import annotations
import contextlib, datetime, json, math, time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from tinygrad import Device
from tinygrad.codegen.opt import heuristic
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.cache import disk_cache, schedules, serialize
from tinygrad_llm.patches.ir.actions import Opts
from tinygrad_llm.patches.search import known_schedules
from tinygrad_llm.patches.search.beam import WIDTH, Result, Search
from tinygrad_llm.patches.search.candidates import COLD
from tinygrad_llm.patches.search.measure import LOWER, OnDevice, memory_of
from tinygrad_llm.patches.search.sandbox import Failed, Sandbox
from tinygrad_llm.patches.search.space import Attention, Loops, space

JOURNALS = disk_cache.Store(f"searches-{schedules.VERSION}", 64 << 20)

@dataclass(frozen=True)
class Kernel:
  """A kernel to search. ast: scheduled, not lowered; variables: values of the kernel's variables; name: for people."""
  ast: UOp
  device: str
  variables: dict[str, int]
  name: str = ""

  @property
  def key(self) -> str: return schedules.key_of(self.ast)

def kernel_of(ast: UOp, device: str, variables: dict[str, int], name: str = "") -> Kernel:
  """The Kernel of a scheduled kernel, or of one stage of a fused launch: its argument slots are numbered anew."""
  params = sorted((u for u in ast.toposort() if u.op is Ops.PARAM and u.arg.slot >= 0), key=lambda u: u.arg.slot)
  new = {u: u.replace(arg=replace(u.arg, slot=i)) for i, u in enumerate(params) if u.arg.slot != i}
  return Kernel(ast.substitute(new, walk=True) if new else ast, device, variables, name)

class Journal:
  """
  The results of a search so far, on disk until it is complete: seconds of candidates, or why they are invalid.

  A candidate that was running when the process died is invalid.
  """
  def __init__(self, kernel: Kernel, touched: dict[str, str], again: bool = False):
    device = schedules.device_of(kernel.device, Device[kernel.device].renderer)
    self._name = json.dumps([kernel.key, device, touched], sort_keys=True)
    self.known: dict[Opts|None, float|str] = {}
    self._running: Opts|None|str = ""
    if again: return
    with contextlib.suppress(ValueError, TypeError, KeyError):
      row = json.loads(JOURNALS.get(self._name) or b"{}")
      self.known = {_opts(opts): what for opts, what in row.get("known", [])}
      if (opts := _opts(row.get("running"))) is not None: self.known[opts] = "the search died while it ran"

  def running(self, opts: Opts|None) -> None:
    self._running = opts
    self._write()

  def idle(self) -> None:
    """No candidate runs, so none is to blame if the process dies now."""
    self._running = ""
    self._write()

  def done(self, opts: Opts|None, what: float|str) -> None:
    self.known[opts], self._running = what, ""
    self._write()

  def _write(self) -> None:
    row: dict[str, Any] = {"known": [[_json(opts), what] for opts, what in self.known.items()
                                     if isinstance(what, str) or math.isfinite(what)]}
    if not isinstance(self._running, str): row["running"] = _json(self._running)
    JOURNALS.put(self._name, json.dumps(row).encode())

  def close(self) -> None: JOURNALS.drop(self._name)

def _json(opts: Opts|None) -> Any: return None if opts is None else schedules.to_json(opts)
def _opts(row: Any) -> Opts|None: return None if row is None else schedules.from_json(row)

def present(found: Any) -> Opts:
  """The Opts that a kernel gets without a search: the heuristic's."""
  if not isinstance(found, Loops): return ()
  return tuple(heuristic.hand_coded_optimizations(found.start()).applied_opts)

def known_for(kernel: Kernel) -> schedules.Entry|None:
  """The result of an earlier search, if patches, device and tinygrad are the same as then."""
  return schedules.lookup(kernel.key, kernel.device, Device[kernel.device].renderer)

def begin(kernel: Kernel, sandbox: Sandbox, cold: int = COLD) -> None:
  """Makes a kernel the sandbox's."""
  sandbox.kernel(memory_of(kernel.ast, cold), serialize.dump([kernel.ast]), kernel.device, kernel.variables, cold)

def search(kernel: Kernel, sandbox: Sandbox, seconds: float, enough: float = 0.0, width: int = WIDTH, cold: int = COLD,
           again: bool = False, told: Callable[[str], None] = lambda line: None) -> Result:
  """
  Searches a kernel's schedule and stores the result.

  - seconds: the budget of the search.
  - enough: seconds of the kernel at which the search ends.
  - again: whether the results of an interrupted search are ignored.
  - told: called with a line after each candidate.

  NotScheduled: the kernel has no loops to schedule. Failed: it cannot be lowered or run at all.
  """
  found = space(kernel.ast, ren := Device[kernel.device].renderer)
  device = schedules.device_of(kernel.device, ren)
  begin(kernel, sandbox, cold)
  touched = schedules.versions(sandbox.runner.ask("touched", None, seconds=LOWER))
  journal = Journal(kernel, touched, again)
  def done(opts: Opts|None, what: float|str) -> None:
    journal.done(opts, what)
    told(f"{len(journal.known)} candidates")
  measure = OnDevice(sandbox, time.monotonic() + seconds, journal.known, journal.running, done,
                     seed=time.time_ns() % (1 << 30), idle=journal.idle)
  starts = [*schedules.nearest(kernel.ast, device), *of_others(kernel, found)]
  result = Search(found, present(found), starts, measure, enough, width).run()
  if math.isnan(result.before): raise Failed(result.refused.get(None, "it does not run"))
  schedules.put(schedules.Entry(
    kernel.key, schedules.family_of(kernel.ast), schedules.sizes_of(kernel.ast), kernel.name, device, touched,
    result.opts, result.ratio, result.after * 1e6, datetime.date.today().isoformat(),
    extra={"timed": result.timed, "lowered": result.lowered, "compiled": measure.compiled,
           "complete": result.complete}))
  if result.complete: journal.close()
  return result

def of_others(kernel: Kernel, found: Loops|Attention) -> list[Opts]:
  """The schedules of other projects' kernels that are legal for this one."""
  known = known_schedules.known_attention(kernel.ast, found.ren) if isinstance(found, Attention) else \
    known_schedules.known(found.start())
  return list(known.values())
