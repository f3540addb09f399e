"""The passes' disk cache: entries are whole or absent, its size is bounded, and UOps are serialised."""
import os, pathlib, pickle, re, subprocess, sys, time
import pytest
import tinygrad
from tinygrad import Device, Tensor, dtypes, helpers
from tinygrad.codegen import do_to_program
from tinygrad.codegen.opt import Opt, OptOps
from tinygrad.dtype import AddrSpace
from tinygrad.uop.ops import AxisType, Ops, UOp
from tinygrad_llm.patches.cache import disk_cache, serialize
from tinygrad_llm.patches.ir.actions import ScheduleOps

ROOT = pathlib.Path(__file__).parents[2]

@pytest.fixture
def kept(tmp_path, monkeypatch) -> disk_cache.Store:
  monkeypatch.setattr(helpers, "CACHEDB", str(tmp_path / "cache.db"))
  return disk_cache.Store("kept")

# *** entries

def test_put_and_get(kept):
  assert kept.get("a") is None
  kept.put("a", b"one")
  kept.put("b", b"")
  assert (kept.get("a"), kept.get("b"), kept.get("c")) == (b"one", b"", None)
  kept.put("a", b"two")
  assert kept.get("a") == b"two"
  assert [file.name for file in kept.folder.iterdir() if file.suffix] == []  # no temporary file is left

def test_location_and_permissions(kept, tmp_path):
  kept.put("a", b"one")
  assert kept.path("a").parent == tmp_path / "cache.db.d" / "kept"
  if os.name == "posix": assert kept.folder.stat().st_mode & 0o777 == kept.folder.parent.stat().st_mode & 0o777 == 0o700

@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:40], lambda b: b"", lambda b: b"\0" * len(b),
                                    lambda b: b[:50] + bytes([b[50] ^ 1]) + b[51:], lambda b: b + b"x"])
def test_damaged_entry_is_a_miss_and_is_replaced(kept, damage):
  kept.put("a", bytes(range(100)))
  (path := kept.path("a")).write_bytes(damage(path.read_bytes()))
  assert kept.get("a") is None
  assert not path.exists()
  kept.put("a", b"one")
  assert kept.get("a") == b"one"

def test_size_bound_evicts_oldest(kept):
  kept.bound, kept.slack = 16000, 1000
  for i in range(40):
    kept.put(str(i), bytes(1000 - 32))
    os.utime(kept.path(str(i)), (time.time() - 1000 + i,) * 2)
  sizes = [file.stat().st_size for file in kept.folder.iterdir()]
  assert 11000 <= sum(sizes) <= 17000
  assert kept.get("39") is not None and kept.get("30") is not None and kept.get("0") is None

def test_reading_renews_age(kept):
  """Reading an entry renews its age, to the day."""
  kept.bound, kept.slack = 16000, 1000
  kept.put("used", bytes(1000))
  os.utime(kept.path("used"), (time.time() - 30 * 86400,) * 2)
  assert kept.get("used") is not None
  for i in range(30):
    kept.put(str(i), bytes(1000))
    os.utime(kept.path(str(i)), (time.time() - 86400 * 2,) * 2)
  assert kept.get("used") is not None

def test_stale_temporary_files_are_evicted_first(kept):
  kept.bound, kept.slack = 6000, 1
  kept.put("a", bytes(1000))
  (left := kept.folder / "0.1.2.new").write_bytes(bytes(4000))
  os.utime(left, (time.time() - 2 * 86400,) * 2)
  os.utime(kept.path("a"), (time.time() - 9 * 86400,) * 2)
  kept.put("b", bytes(2000))
  assert not left.exists() and kept.get("a") is not None and kept.get("b") is not None

def test_disk_failure_raises_nothing(kept, tmp_path):
  (tmp_path / "cache.db.d").write_text("in the way")
  kept.put("a", b"one")
  assert kept.get("a") is None
  kept.drop("a")

def test_concurrent_writers(kept):
  """Four processes rewrite one entry: each read returns one of their values, whole."""
  code = ("import sys, time; from tinygrad_llm.patches.cache.disk_cache import Store\n"
          "s = Store('kept'); end = time.time() + 2\n"
          "while time.time() < end: s.put('a', sys.argv[1].encode() * 100000)")
  env = {**os.environ, "CACHEDB": str(kept.folder.parent)[:-2]}
  writers = [subprocess.Popen([sys.executable, "-c", code, c], cwd=ROOT, env=env) for c in "wxyz"]
  seen = set()
  while any(w.poll() is None for w in writers):
    if (entry := kept.get("a")) is not None:
      assert len(entry) == 100000 and len(set(entry)) == 1
      seen.add(entry[:1])
  assert [w.wait() for w in writers] == [0] * 4
  assert len(seen) > 1

# *** parts of all keys

def test_machine_key_depends_on_compiler(monkeypatch, tmp_path):
  here = disk_cache.machine()
  assert here == disk_cache.machine()
  (other := tmp_path / "clang").write_text("#!/bin/sh\nexec /bin/true\n")
  other.chmod(0o755)
  monkeypatch.setenv("CC", str(other))
  assert disk_cache.machine() != here
  first = disk_cache.program(str(other))
  assert any("/bin/true" in part for part in first[2:] for part in part if isinstance(part, str))
  other.write_text("#!/bin/sh\nexec /bin/false\n")
  assert disk_cache.program(str(other)) != first  # a wrapper is identified by the program that it runs
  monkeypatch.setattr(disk_cache, "processor", lambda: ("x86_64", "another"))
  disk_cache._machine.cache_clear()
  assert disk_cache.machine() != here
  disk_cache._machine.cache_clear()

def test_processor():
  assert len(found := disk_cache.processor()) > 1
  assert all(isinstance(x, str) for x in found)

@pytest.mark.parametrize("name", ["MV_BLOCKSIZE", "OCCUPANCY_FLOOR", "EXPAND_SSA"])
def test_key_contains_environment(monkeypatch, name):
  before = disk_cache.surroundings()
  monkeypatch.setenv(name, "7")
  assert disk_cache.surroundings() != before

def test_key_contains_switches():
  before = disk_cache.surroundings()
  with helpers.Context(NOOPT=1): assert disk_cache.surroundings() != before
  with helpers.Context(DEBUG=2, PARALLEL=7, CAPTURING=0): assert disk_cache.surroundings() == before
  assert {v.key for v in vars(helpers).values() if isinstance(v, helpers.ContextVar)} >= disk_cache.OBSERVING

def test_key_covers_tinygrad_variables():
  """Each environment variable that tinygrad reads for kernels and schedules is in a key, or harmless."""
  base = pathlib.Path(tinygrad.__file__).parent
  files = [*(base / "codegen").rglob("*.py"), *(base / "schedule").rglob("*.py"), base / "engine" / "jit.py",
           *(base / "renderer" / name for name in ("__init__.py", "cstyle.py", "llvmir.py", "ptx.py", "nir.py"))]
  read = {name for file in files for name in re.findall(r'getenv\("(\w+)"', file.read_text())}
  shown = {"DEBUG_LINEARIZE"}
  searched = {name for name in read if name.startswith("BEAM_") or name in ("TC", "TC_OPT", "NOLOCALS")}
  first_call = {"IGNORE_JIT_FIRST_BEAM"}  # a jit's first call is not cached
  assert read - shown - searched - first_call - set(disk_cache.ENVIRONMENT) == set()

# *** UOps as bytes

def kernel() -> UOp:
  call, = (Tensor.empty(64, 32) @ Tensor.empty(32, 16)).schedule_linear().src
  return call.src[0]

def test_uops_round_trip():
  """Deserialised UOps are interned: an equal one is the same object."""
  with helpers.Context(CACHELEVEL=0): program = do_to_program(kernel(), Device["CPU"].renderer)
  again, sink = serialize.load(serialize.dump([program, program.src[0]]))
  assert again is program and sink is program.src[0]

def test_uops_within_arguments():
  x = UOp.variable("x", 1, 9)
  program = UOp(Ops.PROGRAM, arg=(x * 3 + 1, "a", (x,)))
  assert serialize.load(serialize.dump([program]))[0] is program

@pytest.mark.parametrize("value", [0.0, -0.0, float("inf"), float("nan"), 1e-45, 2 ** 63, True])
def test_constants(value):
  u = UOp.const(value)
  assert serialize.load(serialize.dump([u]))[0] is u

@pytest.mark.parametrize("one", [AxisType.UPCAST, AddrSpace.LOCAL, Ops.ADD, Opt(OptOps.LOCAL, 0, 4),
                                 Opt(ScheduleOps.TILES, 0, 2)], ids=str)
def test_enumerations(monkeypatch, one):
  """Enumerations are restored, also before Python 3.11.4, which pickles them as getattr and a name."""
  kind = type(one.op if isinstance(one, Opt) else one)
  monkeypatch.setattr(kind, "__reduce_ex__", lambda self, protocol: (getattr, (type(self), self.name)))
  found, = serialize.load(serialize.dump([UOp(Ops.NOOP, arg=(one,))]))
  assert found.arg[0] == one and found is UOp(Ops.NOOP, arg=(one,))

def test_no_recursion():
  u = UOp.variable("x", 1, 9)
  for i in range(20000): u = UOp(Ops.ADD, src=(u, UOp.const(i)), dtype=dtypes.weakint)
  data = serialize.dump([u])
  assert serialize.load(data)[0] is u

def test_leaves():
  buffer = Tensor.empty(8).uop.base
  root = UOp(Ops.SINK, src=(buffer, UOp.const(1)))
  data = serialize.dump([root], lambda u: "here" if u is buffer else None)
  assert b"here" in data
  assert serialize.load(data, {"here": buffer}.__getitem__)[0] is root
  other = Tensor.empty(8).uop.base
  assert serialize.load(data, lambda token: other)[0].src[0] is other

class Strange: pass

@pytest.mark.parametrize("arg", [Strange(), os.system, print, (1, Strange())])
def test_refuses_to_serialise(arg):
  with pytest.raises((ValueError, pickle.PicklingError)): serialize.dump([UOp(Ops.NOOP, arg=arg)])

class Hostile:
  def __init__(self, *call): self.call = call
  def __reduce__(self): return self.call

@pytest.mark.parametrize("what", [lambda path: (os.system, (f"touch {path}",)), lambda path: (open, (path, "w")),
                                  lambda path: (eval, (f"open({path!r}, 'w')",)),
                                  lambda path: (helpers.diskcache_put, ("t", "k", "v"))])
def test_unpickling_runs_no_code(tmp_path, what):
  """A pickle that calls anything but the allowed classes is refused before the call."""
  path = str(tmp_path / "touched")
  with pytest.raises(Exception, match="not read"): serialize.load(pickle.dumps(Hostile(*what(path))))
  assert not os.path.exists(path)

@pytest.mark.parametrize("data", [b"", b"x", pickle.dumps((5, (0,))), pickle.dumps((1, (0,))) + pickle.dumps((1, 2))])
def test_rejects_invalid_bytes(data):
  with pytest.raises(Exception): serialize.load(data)  # noqa: B017
