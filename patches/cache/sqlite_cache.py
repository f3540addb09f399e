"""
SQLite cache: each thread has its own connection, and an error costs the cache, not the run.

Why: tinygrad has one connection, which belongs to the first thread that compiles. Kernels compiled in another thread
  end in sqlite3.ProgrammingError, and a fork goes on with its parent's connection. A file that is damaged, locked,
  read-only or on a full disk ends the run in the middle of a compilation. A relative CACHEDB becomes a folder, and
  without a home folder one named `~` appears.
How: helpers.db_connection opens a connection for each thread of each process, with a timeout of PATIENCE. The first
  error is reported in one line (disk_cache.give_up). A cache that cannot be written is then only read; a damaged one,
  or one that another process holds, is not used at all. An entry carries the SHA-256 of its contents, as in disk_cache:
  SQLite has no checksum, and the contents are run. CACHEDB is absolute from the start (disk_cache.place).
Numbers: none, nothing is faster.
Upstream: not sent; a connection for each thread would be welcome there.
"""
from __future__ import annotations
import contextlib, errno, os, pickle, sqlite3, threading, time
from typing import Any
import tinygrad.device
from tinygrad import helpers
from tinygrad.codegen.opt import search
from tinygrad_llm.patches import places
from tinygrad_llm.patches.cache import disk_cache

SEAMS = {
  "tinygrad.helpers:CACHEDB": "c993669463e0",
  "tinygrad.helpers:db_connection": "8de5160d630f",
  "tinygrad.helpers:diskcache_get": "7e572cd4ccd8",
  "tinygrad.helpers:diskcache_put": "91a0f8aba4a5",
  "tinygrad.device:Compiler.compile_cached": "5cbd6a59b2ec",
}

PATIENCE = 2.0  # seconds for a lock that another process holds
HELD = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
READABLE = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL)  # errors after which the file may still be read

_get, _put = helpers.diskcache_get, helpers.diskcache_put
_connections: dict[threading.Thread, sqlite3.Connection] = {}
_left_behind: list[Any] = []  # the parent's, in a fork: to close them could drop the parent's locks
_usable = {"read": True, "written": True}

class _Cursor(sqlite3.Cursor):
  def execute(self, *args: Any) -> Any:  # type: ignore[override]
    try: return super().execute(*args)
    except sqlite3.OperationalError as e:  # tinygrad takes each for a missing table
      if disk_cache.code(e) in HELD: give_up(e)
      raise

class _Connection(sqlite3.Connection):
  def cursor(self, *args: Any) -> Any: return super().cursor(_Cursor)

def db_connection() -> sqlite3.Connection:
  """This thread's connection. sqlite3.Error or OSError if the file cannot be used."""
  if (known := _connections.get(thread := threading.current_thread())) is not None: return known
  for other in list(_connections):
    if not other.is_alive(): _connections.pop(other).close()
  path = helpers.CACHEDB
  if os.path.exists(path) and not os.path.isfile(path): raise OSError(errno.EISDIR, "a folder, or a device")
  os.makedirs(os.path.dirname(path), exist_ok=True)
  started = time.monotonic()
  db = sqlite3.connect(path, PATIENCE, isolation_level="IMMEDIATE", check_same_thread=False, factory=_Connection)
  try:
    with contextlib.suppress(sqlite3.OperationalError): db.execute("PRAGMA journal_mode=WAL").fetchone()
    left = max(0.0, PATIENCE - (time.monotonic() - started))
    db.execute(f"PRAGMA busy_timeout={left * 1000:.0f}")
    db.execute("SELECT count(*) FROM sqlite_master").fetchone()  # reads the file
    db.execute(f"PRAGMA busy_timeout={PATIENCE * 1000:.0f}")
    db.execute("PRAGMA synchronous=NORMAL")
  except BaseException:
    db.close()
    raise
  _connections[thread] = db
  return db

def give_up(e: Exception) -> None:
  """Reports an error, and goes on without writing the cache, or without the cache."""
  _usable["written"] = False
  if disk_cache.code(e) not in READABLE: _usable["read"] = False
  disk_cache.give_up(helpers.CACHEDB, e)

def get(table: str, key: dict | str | int) -> Any:
  if not _usable["read"]: return None
  try:
    if not isinstance(entry := _get(f"{table}_checked", key), bytes): return None
    return pickle.loads(data) if (data := disk_cache.whole(entry)) is not None else None
  except (sqlite3.Error, OSError) as e: give_up(e)
  except Exception: pass  # a damaged pickle may raise anything
  return None

def put(table: str, key: dict | str | int, val: Any, prepickled: bool = False) -> Any:
  if not _usable["written"]: return val
  data = val if prepickled else pickle.dumps(val)
  try: _put(f"{table}_checked", key, disk_cache.sealed(data))
  except (sqlite3.Error, OSError) as e:
    if (db := _connections.get(threading.current_thread())) is not None:
      with contextlib.suppress(sqlite3.Error): db.rollback()
    give_up(e)
  return val

def _after_fork() -> None:
  global _connections
  _left_behind.append(_connections)
  _connections = {}

def install() -> None:
  helpers.CACHEDB = disk_cache.place()
  places.replace(helpers, "db_connection", db_connection)
  for module in (helpers, tinygrad.device, search):
    places.replace(module, "diskcache_get", get)
    places.replace(module, "diskcache_put", put)
  if hasattr(os, "register_at_fork"): os.register_at_fork(after_in_child=_after_fork)
