"""The schedule store: contents and validity of entries, and checks of imported files."""
import dataclasses
import json
import pathlib

import pytest
from tests.support import search_kernel
from tinygrad import Device
from tinygrad.codegen.opt import Opt, OptOps
from tinygrad_llm import patches
from tinygrad_llm.patches.cache import disk_cache, schedules
from tinygrad_llm.patches.cache.schedules import Entry
from tinygrad_llm.patches.ir.actions import ScheduleOps

OPTS = (Opt(OptOps.UPCAST, 0, 4), Opt(OptOps.TC, 0, (-1, 2, 1)), Opt(OptOps.NOLOCALS),
        Opt(ScheduleOps.PREFETCH, None, 0), Opt(ScheduleOps.BLOCK, None, (64, 64, 32, 32, 32)))

@pytest.fixture(autouse=True)
def own_store(monkeypatch, tmp_path):
  monkeypatch.setattr(schedules.STORE, "name", f"schedules-{tmp_path.name}")
  schedules.lookup.cache_clear()
  schedules.stamp.cache_clear()
  yield
  schedules.lookup.cache_clear()
  schedules.stamp.cache_clear()

def entry(kernel, **changed) -> Entry:
  ren = Device[kernel.device].renderer
  made = Entry(kernel.key, schedules.family_of(kernel.ast), schedules.sizes_of(kernel.ast), "w x",
               schedules.device_of(kernel.device, ren), schedules.versions(["lanes", "ordered_loads"]), OPTS, 0.9, 12.5,
               "2026-11-23")
  return dataclasses.replace(made, **changed)

def found(kernel): return schedules.lookup(kernel.key, kernel.device, Device[kernel.device].renderer)

class Card:
  """A stub of tinygrad's NV device with a number of processors, whose driver may know its name."""
  num_gpcs, num_tpc_per_gpc, num_sm_per_tpc, subdevice = 8, 9, 2, 77
  def __init__(self, name: bytes | None): self.iface, self.name = self, name
  def rm_control(self, of, command, answer):
    assert of == 77 and command == 0x20800110
    if self.name is None: raise RuntimeError("rm_control returned 86: NV_ERR_NOT_SUPPORTED")
    for i, letter in enumerate(self.name): answer.gpuNameString.ascii[i] = letter
    return answer

def test_nv_devices_are_distinguished_by_name():
  """Two GPUs of one architecture are different devices, also if the driver does not name them."""
  assert schedules.nv_model(Card(b"NVIDIA H100 80GB HBM3")) == "NVIDIA H100 80GB HBM3"
  small, large = Card(None), Card(b"")
  large.num_gpcs = 9
  assert schedules.nv_model(small) == "8 x 9 x 2 processors" != schedules.nv_model(large)

def test_opts_json_round_trip():
  rows = json.loads(json.dumps(schedules.to_json(OPTS)))
  assert schedules.from_json(rows) == OPTS

@pytest.mark.parametrize("rows", [
  None, {}, "UPCAST", [["UPCAST", 0]], [["UPCAST", 0, 4, 4]], [["EXEC", 0, 4]], [[1, 0, 4]], [["UPCAST", "0", 4]],
  [["UPCAST", 0, "4"]], [["UPCAST", 0, 4.5]], [["UPCAST", True, 4]], [["UPCAST", 0, [1, 2, 3]]], [["TC", 0, [1, 2]]],
  [["TC", 0, [1, 2, "3"]]], [["UPCAST", 0, 1 << 40]], [["UPCAST", 0, {"a": 1}]], [["BLOCK", None, [64, 64, 32]]],
  [["UPCAST", 0, 2]] * 65,
  [["__class__", 0, 2]], [["UPCAST", -(1 << 30), 2]]])
def test_rejects_invalid_opts(rows):
  with pytest.raises(ValueError, match="no action"): schedules.from_json(rows)

def test_put_and_find():
  kernel = search_kernel.product()
  assert found(kernel) is None
  schedules.put(made := entry(kernel))
  assert found(kernel) == made
  assert [*schedules.entries()] == [made]
  assert found(search_kernel.product(rows=128)) is None
  assert found(search_kernel.product(dtype="float")) is None

def test_key_ignores_kernel_name():
  kernel = search_kernel.product()
  named = dataclasses.replace(kernel.ast.arg, name="another", beam=2)
  assert schedules.key_of(kernel.ast.replace(arg=named)) == kernel.key == search_kernel.product().key
  assert kernel.key != search_kernel.product(columns=256).key
  assert schedules.family_of(kernel.ast) == schedules.family_of(search_kernel.product(columns=256).ast)
  assert schedules.family_of(kernel.ast) != schedules.family_of(search_kernel.product(dtype="float").ast)

@pytest.mark.parametrize(("field", "value"), [
  ("tinygrad", "0.13.0"), ("patches", {"lanes": "0" * 12}), ("patches", {"no such patch": "0" * 12})])
def test_entry_of_other_code_version_is_ignored(field, value):
  kernel = search_kernel.product()
  schedules.put(entry(kernel, **{field: value}))
  assert found(kernel) is None

@pytest.mark.parametrize("field", ["model", "threads", "arch", "driver"])
def test_entry_of_other_device_is_ignored(field):
  kernel = search_kernel.product()
  device = schedules.device_of(kernel.device, Device[kernel.device].renderer)
  schedules.put(entry(kernel, device={**device, field: "another"}))
  assert found(kernel) is None

def test_imported_entry_applies_with_other_driver():
  kernel = search_kernel.product()
  device = {**schedules.device_of(kernel.device, Device[kernel.device].renderer), "driver": "another"}
  schedules.put(entry(kernel, device=device, extra={"imported": True}))
  assert found(kernel) is not None

def test_nearest_of_family_come_first():
  for rows, amount in ((64, 2), (512, 4), (16, 8)):
    schedules.put(entry(search_kernel.product(rows=rows), opts=(Opt(OptOps.UPCAST, 0, amount),)))
  schedules.put(entry(search_kernel.product(dtype="float"), opts=(Opt(OptOps.UPCAST, 0, 16),)))
  kernel = search_kernel.product(rows=256)
  near = schedules.nearest(kernel.ast, schedules.device_of(kernel.device, Device[kernel.device].renderer))
  assert [opts[0].arg for opts in near] == [4, 2, 8]

@pytest.mark.parametrize("changed", [
  {"opts": [["EXEC", 0, 1]]}, {"ratio": float("nan")}, {"ratio": "1"}, {"us": -1}, {"version": 2}, {"sizes": ["a"]},
  {"patches": {"lanes": 1}}, {"device": None}, {"unknown": 1}])
def test_rejects_invalid_entry(changed):
  row = {**entry(search_kernel.product()).json(), **changed}
  with pytest.raises(ValueError): Entry.of(row)  # noqa: PT011  # whatever it says

def test_entry_json_round_trip():
  made = entry(search_kernel.product())
  assert Entry.of(json.loads(json.dumps(made.json()))) == made

def test_version_ignores_docstrings_and_comments(tmp_path, monkeypatch):
  """A module's version ignores docstrings and comments, but not code."""
  import importlib.util
  def version(source: str) -> str:
    (path := tmp_path / f"m{len(list(tmp_path.iterdir()))}.py").write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return schedules._code(module)
  code = '"""A."""\nX = 1  # one\ndef f():\n  """B."""\n  return X\n'
  assert version(code) == version(code.replace("A.", "C.").replace("B.", "D.").replace("# one", "# two"))
  assert version(code) != version(code.replace("X = 1", "X = 2"))

def test_every_patch_has_a_version():
  assert schedules._versions().keys() == set(patches.enabled())
  assert all(len(v) == 12 for v in schedules._versions().values())

def test_new_schedule_changes_capture_keys():
  """A new schedule changes the keys of captures, but not of programs, which depend only on their kernel's schedule."""
  kernel = search_kernel.product()
  before, step = disk_cache.surroundings(), disk_cache.surroundings_of_step()
  assert step == disk_cache.surroundings_of_step()
  schedules.put(entry(kernel))
  assert disk_cache.surroundings() == before
  assert disk_cache.surroundings_of_step() != step

def test_shipped_files_are_valid(monkeypatch):
  folder = pathlib.Path(patches.__file__).parent / "search" / "tuned"
  rows = [row for path in folder.glob("*.json") for row in json.loads(path.read_text())["schedules"]]
  monkeypatch.setattr(schedules, "FILES", folder)
  schedules.shipped.cache_clear()
  try: assert len(schedules.shipped()) == len(rows) > 0
  finally: schedules.shipped.cache_clear()
  for row in rows: Entry.of(row)

def test_shipped_schedule_applies_with_other_driver(monkeypatch, tmp_path):
  """A shipped schedule applies with another driver, but not on another device."""
  kernel = search_kernel.product()
  device = schedules.device_of(kernel.device, Device[kernel.device].renderer)
  rows = [entry(kernel, device={**device, "driver": "another"}), entry(kernel, device={**device, "model": "another"})]
  for row, wanted in zip(rows, (rows[0], None)):
    (tmp_path / "a.json").write_text(json.dumps({"schedules": [row.json()]}))
    monkeypatch.setattr(schedules, "FILES", tmp_path)
    for cached in (schedules.shipped, schedules.lookup): cached.cache_clear()
    assert found(kernel) == wanted
  for cached in (schedules.shipped, schedules.lookup): cached.cache_clear()
