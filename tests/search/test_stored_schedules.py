"""Kernels are lowered with the schedules that a search stored, unless the user overrides them; BEAM runs the search."""
import dataclasses
import pathlib

from tests.support import child
import numpy as np
import pytest
from tests.support.extended import extended
from tests.support import search_kernel
from tinygrad import Device, Tensor
from tinygrad.codegen.opt import Opt, OptOps
from tinygrad.helpers import Context
from tinygrad_llm.patches.cache import programs, schedules
from tinygrad_llm.patches.search import stored_schedules, tuner
from tinygrad_llm.patches.search.space import space, with_opts

@pytest.fixture(autouse=True)
def own_store(monkeypatch, tmp_path):
  monkeypatch.setattr(schedules.STORE, "name", f"schedules-{tmp_path.name}")
  forget()
  yield
  forget()

def forget() -> None:
  schedules.lookup.cache_clear()
  schedules.stamp.cache_clear()

def keep(kernel: tuner.Kernel, opts) -> None:
  ren = Device[kernel.device].renderer
  schedules.put(schedules.Entry(
    kernel.key, schedules.family_of(kernel.ast), schedules.sizes_of(kernel.ast), "w x",
    schedules.device_of(kernel.device, ren), schedules.versions(["lanes"]), opts, 0.9, 12.5, "2026-11-23"))

def others(kernel: tuner.Kernel) -> tuple[Opt, ...]:
  """A schedule that the heuristic does not choose."""
  found = space(kernel.ast, Device[kernel.device].renderer)
  steps = found.steps(tuner.present(found))
  return next(opts for near in found.neighbours(steps) if (opts := found.opts(near)) is not None)

def lowered(kernel: tuner.Kernel):
  from tinygrad import codegen
  return codegen.full_rewrite_to_sink(kernel.ast, Device[kernel.device].renderer)

def test_stored_schedule_is_used():
  kernel = search_kernel.product()
  assert lowered(kernel).arg.applied_opts == (present := tuner.present(space(kernel.ast, Device["CPU"].renderer)))
  keep(kernel, other := others(kernel))
  assert other != present
  assert lowered(kernel).arg.applied_opts == other
  assert lowered(kernel).tag[0] == "tuned"
  assert lowered(search_kernel.product(rows=128)).arg.applied_opts != other

def test_stored_no_change_keeps_schedule():
  kernel = search_kernel.product()
  before = lowered(kernel)
  keep(kernel, None)
  assert lowered(kernel) is before

@pytest.mark.parametrize("name", stored_schedules.MV_NAMES)
def test_user_settings_win(name, monkeypatch):
  kernel = search_kernel.product()
  keep(kernel, other := others(kernel))
  monkeypatch.setenv(name, "2")
  assert lowered(kernel).arg.applied_opts != other

@pytest.mark.parametrize("switch", ["NOOPT", "CCACHE", "CACHELEVEL"])
def test_tinygrad_switches_win(switch):
  kernel = search_kernel.product()
  keep(kernel, other := others(kernel))
  with Context(**{switch: int(switch == "NOOPT")}): assert lowered(kernel).arg.applied_opts != other

def test_explicit_opts_win():
  kernel = search_kernel.product()
  keep(kernel, others(kernel))
  given = (Opt(OptOps.UPCAST, 0, 2),)
  made = lowered(dataclasses.replace(kernel, ast=with_opts(kernel.ast, given)))
  assert made.arg.applied_opts == given

def test_inapplicable_schedule_is_ignored():
  kernel = search_kernel.product()
  before = lowered(kernel).arg.applied_opts
  keep(kernel, (Opt(OptOps.UPCAST, 0, 7),))
  assert lowered(kernel).arg.applied_opts == before

def test_schedule_changes_program_key():
  """A stored schedule changes its kernel's program key; without it the old key is back."""
  kernel, ren = search_kernel.product(), Device["CPU"].renderer
  before, other = programs.key(kernel.ast, ren), programs.key(search_kernel.product(rows=128).ast, ren)
  keep(kernel, others(kernel))
  assert programs.key(kernel.ast, ren) != before
  assert programs.key(search_kernel.product(rows=128).ast, ren) == other
  schedules.STORE.drop(schedules._name(kernel.key, schedules.device_of(kernel.device, ren)))
  forget()
  assert programs.key(kernel.ast, ren) == before

def test_journal_survives_restart(monkeypatch, tmp_path):
  """A journal keeps times and refusals; the candidate that ran when the process died counts as bad."""
  monkeypatch.setattr(tuner.JOURNALS, "name", f"searches-{tmp_path.name}")
  kernel = search_kernel.product()
  good, bad, last = ((Opt(OptOps.UPCAST, 0, n),) for n in (2, 4, 8))
  journal = tuner.Journal(kernel, {"lanes": "1"})
  journal.done(None, 2.0)
  journal.done(good, 1.0)
  journal.done(bad, "wrong numbers")
  journal.running(last)
  again = tuner.Journal(kernel, {"lanes": "1"})
  assert again.known == {None: 2.0, good: 1.0, bad: "wrong numbers", last: "the search died while it ran"}
  assert tuner.Journal(kernel, {"lanes": "2"}).known == {}
  assert tuner.Journal(kernel, {"lanes": "1"}, again=True).known == {}
  again.close()
  assert tuner.Journal(kernel, {"lanes": "1"}).known == {}

def test_results_are_the_same():
  w, x = np.random.default_rng(0).standard_normal((2, 256, 512)).astype(np.float16)
  def product() -> np.ndarray: return (Tensor(w).float() * Tensor(x[0]).float()).sum(1).numpy()
  wanted = w.astype(np.float64) @ x[0].astype(np.float64)
  kernel = search_kernel.product()
  keep(kernel, others(kernel))
  assert np.abs(product() - wanted).max() < 1e-3 * np.abs(wanted).max()

BEAM = """
from tinygrad import Tensor
from tinygrad_llm.patches.cache import schedules
from tinygrad_llm.patches.search import tuner
searches, search = [], tuner.search
tuner.search = lambda *args, **kwargs: searches.append(1) or search(*args, **kwargs)
w, x = Tensor.rand(64, 256).realize(), Tensor.rand(256).realize()
import numpy as np
y = (w * x).sum(1).numpy()
assert np.allclose(y, w.numpy() @ x.numpy(), rtol=1e-4)
print(len(searches), len([*schedules.entries()]))
"""

@extended
def test_beam_searches_once_and_stores_result(tmp_path):
  """BEAM searches once and stores the result; without beam_search, tinygrad's own search runs."""
  def beam(**env: str) -> list[str]:
    cache = str(pathlib.Path(tmp_path) / "cache.db")
    return child.run(BEAM, DEV="CPU", PARALLEL="1", CACHEDB=cache, **env).stdout.split()
  assert beam() == ["0", "0"]
  searches, kept = map(int, beam(BEAM="1"))
  assert searches >= kept > 0
  assert beam(BEAM="1") == [str(searches - kept), str(kept)]
  assert beam(BEAM="1", NO_BEAM_SEARCH="1") == ["0", str(kept)]
