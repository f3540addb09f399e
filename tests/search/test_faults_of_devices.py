"""A device error ends the process and starts another; candidates that did not cause it are not blamed."""
import math
import random
import sys
from collections.abc import Sequence
from typing import Any

from tests.support import planted_child
import pytest
from tests.support import search_kernel
from tinygrad import Device
from tinygrad.codegen.opt import Opt, OptOps
from tinygrad_llm.patches.search import tuner
from tinygrad_llm.patches.search.measure import OnDevice
from tinygrad_llm.patches.search.sandbox import Broken, Sandbox, Unready
from tinygrad_llm.patches.search.space import space

WHY = "RuntimeError: CUDA Error 700, an illegal memory access was encountered"
MANY = [None, *((Opt(OptOps.UPCAST, 0, n),) for n in range(1, 20))]

class Runner:
  """
  A fake sandbox and process. faults: candidates at which the device fails; times: how often making the data fails.
  """
  def __init__(self, faults: Sequence[Any] = (), times: int = 0, fails_beside: bool = False):
    self.faults, self.times, self.fails_beside = faults, times, fails_beside
    self._process: object = None
    self.prepared, self.started = False, 0

  @property
  def runner(self) -> "Runner": return self
  def each(self, tasks: Sequence[Any], do: Any) -> list[Any]: return [do(self, task) for task in tasks]
  def stop(self) -> None: self._process, self.prepared = None, False

  def ask(self, name: str, *args: Any, seconds: float) -> Any:
    if self._process is None:
      self._process = object()
      self.started += 1
    if name == "prepare":
      self.times -= 1
      if self.times >= 0: self.fail("")
      self.prepared = True
    if name in ("time", "check"):
      assert self.prepared, "it has no data"
      if name == "check": return self.fail("unoptimised") if self.fails_beside else 0.5
      for opts in args[0]:
        if opts in self.faults: self.fail(opts)
        if opts is None and len(args[0]) > 1 and self.fails_beside:
          self.fails_beside = False
          self.fail(None)
      return [[1.0] * args[1] for _ in args[0]]
    return b""

  def fail(self, at_work: Any) -> None:
    self.stop()
    raise Broken(WHY, at_work)

def measure(runner: Runner) -> OnDevice:
  return OnDevice(runner, math.inf, {}, lambda opts: None, lambda opts, what: None)  # type: ignore[arg-type]

@pytest.mark.parametrize("seed", range(5))
def test_failing_candidates_are_identified(seed):
  faults = random.Random(seed).sample(MANY[1:], 5)
  found = measure(runner := Runner(faults))
  assert found.time(MANY, math.inf) == [WHY if opts in faults else 1.0 for opts in MANY]
  assert found.known == {opts: WHY if opts in faults else 1.0 for opts in MANY}
  assert runner.started == 1 + len(faults) - (MANY[-1] in faults)

def test_failure_of_reference_is_not_blamed_on_candidate():
  """A failure of the present schedule, or of the unoptimised reference, is not the candidate's fault."""
  found = measure(runner := Runner(fails_beside=True))
  assert found.time(MANY[:3], math.inf) == [1.0] * 3
  assert runner.started == 2
  runner.fails_beside = True
  with pytest.raises(Unready, match="700"): found.check(MANY[1])
  assert found.known == dict.fromkeys(MANY[:3], 1.0)

def test_out_of_memory_for_the_data_blames_no_candidate():
  """No candidate is blamed if the data does not fit in memory, be it for a moment or always."""
  assert measure(Runner(times=1)).time(MANY[:3], math.inf) == [1.0] * 3
  found = measure(Runner(times=9))
  with pytest.raises(Unready, match="700"): found.time(MANY[:3], math.inf)
  assert found.known == {}

def test_only_crashes_are_journalled(monkeypatch, tmp_path):
  """Nothing is journalled about a candidate that was interrupted or had no device; a death is."""
  monkeypatch.setattr(tuner.JOURNALS, "name", f"searches-{tmp_path.name}")
  kernel = search_kernel.product()
  for error in (KeyboardInterrupt, Unready):
    journal = tuner.Journal(kernel, {})
    found = OnDevice(Runner(), math.inf, journal.known, journal.running, journal.done, idle=journal.idle)
    found.time([None], math.inf)
    def ask(*args: Any, error: Any = error, **kwargs: Any) -> Any: raise error
    monkeypatch.setattr(found, "_ask", ask)
    with pytest.raises(error): found.time([MANY[1]], math.inf)
    assert tuner.Journal(kernel, {}).known == {None: 1.0}
  journal.running(MANY[1])
  assert tuner.Journal(kernel, {}).known == {None: 1.0, MANY[1]: "the search died while it ran"}

def test_search_continues_in_new_process_after_fault():
  """A driver fails a process for good after one fault; the search continues in a new process, and so do later ones."""
  kernel = search_kernel.product(96, 256)
  found = space(kernel.ast, Device[kernel.device].renderer)
  near = [opts for steps in found.neighbours(found.steps(tuner.present(found))) if (opts := found.opts(steps))]
  bad = next(opts for opts in near if planted_child.is_planted(opts))
  good = next(opts for opts in near if not planted_child.is_planted(opts))
  with Sandbox(1, (sys.executable, planted_child.__file__, "device")) as sandbox:
    tuner.begin(kernel, sandbox, 1 << 18)
    ask = OnDevice(sandbox, math.inf, {}, lambda opts: None, lambda opts, what: None)
    before, failed, after = ask.time([None, bad, good], math.inf)
    assert isinstance(before, float) and isinstance(after, float) and "CUDA Error 700" in failed
    ask.time([other := next(opts for opts in near if planted_child.is_planted(opts) and opts != bad)], math.inf)
    assert "CUDA Error 700" in ask.known[other]
    tuner.begin(search_kernel.product(64, 128), sandbox, 1 << 18)
    assert sandbox.runner.ask("survey", 1, seconds=60)[0] > 0
