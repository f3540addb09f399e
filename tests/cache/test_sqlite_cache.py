"""cache/sqlite_cache.py: each thread has its own connection, and no error of the cache ends a run."""
import concurrent.futures
import hashlib
import os
import pathlib
import pickle
import sqlite3
import subprocess
import sys

from tests.support import child
import pytest
from tests.support.child import ROOT
from tinygrad import helpers
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.cache import disk_cache, sqlite_cache

pytestmark = pytest.mark.skipif(not is_on("sqlite_cache"), reason="it is off")
linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux's files")

@pytest.fixture
def file(tmp_path, monkeypatch) -> pathlib.Path:
  """A cache that this process has not used yet."""
  monkeypatch.setattr(helpers, "CACHEDB", str(tmp_path / "cache.db"))
  monkeypatch.setattr(helpers, "_db_tables", set())
  monkeypatch.setattr(sqlite_cache, "_connections", {})
  monkeypatch.setattr(sqlite_cache, "_usable", {"read": True, "written": True})
  monkeypatch.setattr(sqlite_cache, "PATIENCE", 0.3)
  monkeypatch.setattr(disk_cache, "_told", [])
  monkeypatch.setattr(disk_cache, "_given_up", set())
  return tmp_path / "cache.db"

def use(n: int = 3) -> list[bytes | None]:
  """Puts n values and returns the values read back."""
  for i in range(n): assert helpers.diskcache_put("t", str(i), b"%d" % i) == b"%d" % i
  return [helpers.diskcache_get("t", str(i)) for i in range(n)]

def test_threads_share_the_cache(file):
  assert use() == [b"0", b"1", b"2"]
  with concurrent.futures.ThreadPoolExecutor(3) as pool:
    assert [x.result() for x in [pool.submit(use) for _ in range(6)]] == [[b"0", b"1", b"2"]] * 6
  use()
  with concurrent.futures.ThreadPoolExecutor(1) as pool: pool.submit(use).result()
  assert len(sqlite_cache._connections) == 2  # connections of ended threads are closed

@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks")
def test_fork_opens_its_own_connection(file):
  use()
  mine = set(map(id, sqlite_cache._connections.values()))
  if (pid := os.fork()) == 0:
    fine = not sqlite_cache._connections and use() == [b"0", b"1", b"2"]
    os._exit(0 if fine and mine.isdisjoint(map(id, sqlite_cache._connections.values())) else 1)
  assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
  assert use() == [b"0", b"1", b"2"]

def damaged(path: pathlib.Path) -> None: path.write_bytes(b"no database" * 1000)
def folder(path: pathlib.Path) -> None: path.mkdir()
def empty(path: pathlib.Path) -> None: path.touch()
def other_program(path: pathlib.Path) -> None:
  with sqlite3.connect(path) as db: db.execute(f"CREATE TABLE t_checked_{helpers.VERSION} (a text)")
def half(path: pathlib.Path) -> None:
  use(200)
  sqlite_cache._connections.popitem()[1].close()
  helpers._db_tables.clear()
  data = path.read_bytes()
  path.write_bytes(data[:len(data) // 2])
def cut_log(path: pathlib.Path) -> None:
  """Leaves a truncated write-ahead log, as after a power failure."""
  use()
  data, log = path.read_bytes(), pathlib.Path(f"{path}-wal").read_bytes()
  sqlite_cache._connections.popitem()[1].close()
  helpers._db_tables.clear()
  path.write_bytes(data)
  pathlib.Path(f"{path}-wal").write_bytes(log[:len(log) * 2 // 3])

@pytest.mark.parametrize(("make", "words"), [
  (damaged, "is damaged"), (folder, "is no file"), (half, "is damaged"), (other_program, "cannot be used"),
  (empty, None), (cut_log, None)])
def test_unusable_file_disables_cache_with_one_warning(file, capfd, make, words):
  """An unusable file costs one warning, and nothing is cached; an empty or truncated one is usable."""
  make(file)
  assert use() == ([b"0", b"1", b"2"] if words is None else [None] * 3)
  said = capfd.readouterr().err.splitlines()
  assert len(said) == (words is not None)
  if words is not None: assert said[0].startswith(f"warning: {file}: the kernel cache {words}") and "CACHEDB" in said[0]

@linux
@pytest.mark.parametrize(("path", "words"), [
  ("/dev/null/x/cache.db", "has no folder"), ("/proc/x/cache.db", "has no folder"), ("/dev/full", "is no file")])
def test_unusable_path_disables_cache_with_one_warning(file, monkeypatch, capfd, path, words):
  monkeypatch.setattr(helpers, "CACHEDB", path)
  assert use() == [None] * 3
  assert [words in line and path in line for line in capfd.readouterr().err.splitlines()] == [True]

@pytest.mark.parametrize("begin", ["BEGIN EXCLUSIVE", "BEGIN IMMEDIATE"])
@pytest.mark.parametrize("wal", [False, True])
def test_locked_database_times_out_once(file, capfd, monkeypatch, begin, wal):
  """Another connection holds the lock. After one timeout the process does not try again."""
  held = sqlite3.connect(file, isolation_level=None)
  if wal: held.execute("PRAGMA journal_mode=WAL")
  held.execute("CREATE TABLE x (a)")
  held.execute(begin)
  assert use() == [None] * 3
  asked: list[str] = []
  monkeypatch.setattr(sqlite_cache, "db_connection", lambda: asked.append("again"))
  monkeypatch.setattr(helpers, "db_connection", sqlite_cache.db_connection)
  assert use() == [None] * 3 and asked == []
  [line] = capfd.readouterr().err.splitlines()
  assert line.startswith(f"warning: {file}: the kernel cache is held by another process")
  held.close()

def test_read_only_database_is_read(file, capfd, monkeypatch):
  use()
  sqlite_cache._connections.popitem()[1].close()
  connect = sqlite3.connect
  monkeypatch.setattr(sqlite3, "connect", lambda path, *args, **kwargs: connect(f"file:{path}?mode=ro", *args, uri=True,
                                                                                **kwargs))
  assert use() == [b"0", b"1", b"2"]
  [line] = capfd.readouterr().err.splitlines()
  assert f"{file}: the kernel cache cannot be written" in line

def test_damaged_entry_is_rebuilt(file):
  """A damaged entry counts as missing: our checksum finds it, since SQLite has none."""
  use()
  def put(value: bytes) -> None:
    with sqlite3.connect(file) as db: db.execute(f"UPDATE t_checked_{helpers.VERSION} SET val=?", (value,))
  data = pickle.dumps(b"1")
  for value in (b"", b"x", pickle.dumps(b"x"), pickle.dumps(hashlib.sha256(b"other").digest() + data)):
    put(value)
    assert [helpers.diskcache_get("t", str(i)) for i in range(3)] == [None] * 3
  put(pickle.dumps(hashlib.sha256(data).digest() + data))
  assert helpers.diskcache_get("t", "0") == b"1"
  assert use() == [b"0", b"1", b"2"]

# *** our own store

def test_unwritable_store_warns_once(file, capfd):
  pathlib.Path(f"{file}.d").write_text("in the way")
  store = disk_cache.Store("kept")
  for name in "abc":
    store.put(name, b"one")
    assert store.get(name) is None
  assert not disk_cache.writable()
  with pytest.raises(OSError): store.check_writable()
  [line] = capfd.readouterr().err.splitlines()
  assert f"{file}.d: the kernel cache" in line

# *** where it is

@pytest.mark.parametrize(("env", "wanted"), [
  ({"CACHEDB": "{0}/a.db"}, "{0}/a.db"), ({"CACHEDB": "a.db"}, "{1}/a.db"), ({"CACHEDB": "x/../a.db"}, "{1}/a.db"),
  ({"CACHEDB": "~/a.db", "HOME": "{0}"}, "{0}/a.db"), ({"CACHEDB": "~/a.db", "HOME": "~"}, disk_cache.NOWHERE),
  ({"CACHEDB": "", "XDG_CACHE_HOME": "{0}"}, "{0}/tinygrad/cache.db"), ({"HOME": "~"}, disk_cache.NOWHERE),
  ({"XDG_CACHE_HOME": "~/.cache", "HOME": "{0}"}, "{0}/.cache/tinygrad/cache.db"),
  ({"XDG_CACHE_HOME": "", "HOME": "{0}"}, "{0}/.cache/tinygrad/cache.db"), ({"HOME": "a"}, disk_cache.NOWHERE)],
  ids=str)
def test_cache_location(tmp_path, monkeypatch, env, wanted):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(helpers, "OSX", False)
  for name in ("CACHEDB", "XDG_CACHE_HOME"): monkeypatch.delenv(name, raising=False)
  where = "/some where", str(tmp_path)
  for name, value in env.items(): monkeypatch.setenv(name, value.format(*where))
  assert disk_cache.place() == wanted.format(*where)

def test_no_home_folder(tmp_path, capfd):
  """Without a home folder a run gives a warning, makes no folder `~`, and puts the compiler's wrapper in TMPDIR."""
  env = {"HOME": "~", "TMPDIR": str(tmp_path), "DEV": "CPU", "PYTHONPATH": str(ROOT), "CC": ""}
  code = ("from tinygrad_llm.device.device import check_device; check_device(); from tinygrad import Tensor; "
          "print((Tensor([1, 2]) + 1).tolist())")
  (here := tmp_path / "here").mkdir()
  kept = {k: v for k, v in os.environ.items() if k not in ("CACHEDB", "XDG_CACHE_HOME")}
  done = subprocess.run([sys.executable, "-c", code], cwd=here, env=kept | env, capture_output=True, text=True)
  assert done.stdout == "[2, 3]\n", done.stderr
  assert done.stderr == ("warning: HOME=~: there is no such home folder for the kernel cache; set CACHEDB to the "
                         "absolute path of a file; this run goes on without it\n")
  assert list(here.iterdir()) == []

@linux
def test_full_disk_gives_one_warning(tmp_path):
  """With files limited to 16 KB, a run succeeds with one warning."""
  code = ("import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 10, 16 << 10))\n"
          "import tinygrad_llm\nfrom tinygrad_llm.device.device import check_device; check_device()\n"
          "from tinygrad import Tensor\n"
          "for n in range(20, 40): assert (Tensor.arange(n) * n + 1).tolist()[-1] == (n - 1) * n + 1")
  done = child.run(code, CACHEDB=str(tmp_path / "cache.db"), DEV="CPU", PARALLEL="0")
  assert [str(tmp_path) in line and "the kernel cache" in line for line in done.stderr.splitlines()] == [True]

@linux
def test_tune_reports_unwritable_cache_before_search():
  done = subprocess.run([sys.executable, "-m", "tinygrad_llm.tune", "--budget", "5s"], capture_output=True, text=True,
                        cwd=ROOT, env=child.environment(CACHEDB="/dev/null/cache.db"))
  assert done.returncode == 2 and done.stdout == ""
  assert done.stderr.splitlines()[-1].startswith("error: /dev/null/cache.db.d/schedules-1: what is found could not be")
