"""
The store of the caches on disk: entries of bytes under a key, and the parts that all keys have.

The entries of a store are files in a folder beside tinygrad's own cache (CACHEDB + ".d/<name>"). A file appears by a
rename, so a reader sees all of it or none. It carries the SHA-256 of its contents, so a damaged or truncated entry is
dropped and made again. When a folder passes its bound, the least recently used entries go first. No error of the disk
reaches the caller. The first one that keeps an entry from being written is reported in one line, and this process
writes nothing more.

The folder holds machine code that will be run, and belongs to the user (mode 0700). Write access to it is the right to
run code as that user, as with tinygrad's own cache. An entry can do nothing beyond that: reading one makes no Python
objects but the few classes that serialize.py allows.
"""
from __future__ import annotations
import contextlib, errno, functools, hashlib, itertools, os, pathlib, platform, shutil, sqlite3, sys, time
from collections.abc import Callable, Iterator
from typing import Any
from tinygrad import helpers
from tinygrad.helpers import CACHELEVEL, CCACHE, DEBUG, VIZ, ContextVar
from tinygrad_llm.patches import TINYGRAD, patch_set, places

_DAY = 86400
NOWHERE = os.path.join(os.devnull, "cache.db")  # a path at which nothing can be stored

def place() -> str:
  """
  The absolute path of tinygrad's cache: CACHEDB, or a file in the user's cache folder. A relative XDG_CACHE_HOME is
  ignored, as its specification says. NOWHERE if there is no home folder, or if CACHEDB is in the home of an unknown
  user.
  """
  if asked := os.environ.get("CACHEDB"):
    if (path := os.path.expanduser(asked)).startswith("~"): return NOWHERE
    if path != asked or not os.path.isabs(path): os.environ["CACHEDB"] = path = os.path.abspath(path)  # for workers
    return path
  folder = os.environ.get("XDG_CACHE_HOME", "")
  if not os.path.isabs(folder): folder = os.path.expanduser("~/Library/Caches" if helpers.OSX else "~/.cache")
  return os.path.abspath(os.path.join(folder, "tinygrad", "cache.db")) if os.path.isabs(folder) else NOWHERE

_given_up: set[str] = set()  # the CACHEDBs beside which nothing more is written
_told: list[str] = []

def give_up(path: str | os.PathLike[str], e: Exception) -> None:
  """Warns, once per process, that a cache at CACHEDB cannot be used, and why."""
  if _told: return
  _told.append(line := trouble(path, e))
  with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr is closed, or None
    print(f"warning: {line}; this run goes on without it", file=sys.stderr, flush=True)

def say_nothing() -> None:
  """Silences give_up() in a helper process: its parent meets the same error and reports it."""
  _told.append("")

# rows: codes of SQLite, errno codes, what is wrong, what to do
_TROUBLES: tuple[tuple[set[int], set[int], str, str], ...] = (
  ({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}, set(), "is held by another process", "end that process"),
  ({sqlite3.SQLITE_FULL}, {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}, "has no room on its disk", "make room"),
  ({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}, set(), "is damaged", "delete it"),
  ({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}, {errno.EACCES, errno.EPERM, errno.EROFS}, "cannot be written",
   "make it writable"),
  (set(), {errno.ENOENT, errno.ENOTDIR}, "has no folder", "make one"),
  (set(), {errno.EISDIR}, "is no file", "remove what is there"))

def code(e: BaseException) -> int:
  """The primary code of an SQLite error; 0 for other errors."""
  return (getattr(e, "sqlite_errorcode", None) or 0) & 0xff

def trouble(path: str | os.PathLike[str], e: Exception) -> str:
  """One line: the file, what is wrong with it, and the fix."""
  if helpers.CACHEDB == NOWHERE:
    name = f"CACHEDB={asked}" if (asked := os.environ.get("CACHEDB")) else f"HOME={os.environ.get('HOME', '')}"
    return f"{name}: there is no such home folder for the kernel cache; set CACHEDB to the absolute path of a file"
  number = e.errno or 0 if isinstance(e, OSError) else 0
  why = " ".join(str((e.strerror if isinstance(e, OSError) else None) or e).split()) or type(e).__name__
  found = (row[2:] for row in _TROUBLES if code(e) in row[0] or number in row[1])
  what, fix = next(found, ("cannot be used", "check its disk and its permissions"))
  return f"{path}: the kernel cache {what} ({why}); {fix}, or set CACHEDB to another file"

def writable() -> bool:
  """Whether entries can be stored at CACHEDB; reports it if not. Processes that compile for each other need it."""
  if helpers.CACHEDB in _given_up: return False
  try: return _try(helpers.CACHEDB)
  except OSError as e:
    _given_up.add(helpers.CACHEDB)
    give_up(f"{helpers.CACHEDB}.d", e)
    return False

@functools.lru_cache(1)
def _try(cache: str) -> bool:
  """True; OSError if nothing can be written beside `cache`."""
  (folder := pathlib.Path(f"{cache}.d")).mkdir(mode=0o700, parents=True, exist_ok=True)
  (fresh := folder / f"{os.getpid()}.new").write_bytes(bytes(4096))
  fresh.unlink()
  return True

class Store:
  """
  A folder of entries. A process scans it at its first put() and after every `slack` bytes put. A folder with more than
  `bound` bytes is then cut to three quarters of that. So each process may exceed the bound by its slack.
  """
  def __init__(self, name: str, bound: int = 256 << 20):
    self.name, self.bound, self.slack, self.count = name, bound, bound // 16, itertools.count()
    self.unscanned = self.slack

  @property
  def folder(self) -> pathlib.Path: return pathlib.Path(f"{helpers.CACHEDB}.d") / self.name

  def path(self, key: str) -> pathlib.Path: return self.folder / hashlib.sha256(key.encode()).hexdigest()

  def get(self, key: str) -> bytes | None:
    """The entry under a key; None if there is none, or if it is damaged and was dropped."""
    path = self.path(key)
    try: data = path.read_bytes()
    except OSError: return None
    if (entry := whole(data)) is None:
      self.drop(key)
      return None
    with contextlib.suppress(OSError):
      if time.time() - path.stat().st_mtime > _DAY: os.utime(path)
    return entry

  def check_writable(self) -> None:
    """OSError if entries cannot be stored."""
    _try.__wrapped__(helpers.CACHEDB)
    self.folder.mkdir(mode=0o700, exist_ok=True)
    if not os.access(self.folder, os.W_OK): raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

  def put(self, key: str, entry: bytes) -> None:
    if helpers.CACHEDB in _given_up: return
    path = self.path(key)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.{next(self.count)}.new")
    try:
      for folder in (self.folder.parent, self.folder): folder.mkdir(mode=0o700, parents=True, exist_ok=True)
      fresh.write_bytes(sealed(entry))
      fresh.replace(path)
    except OSError as e:
      with contextlib.suppress(OSError): fresh.unlink()
      _given_up.add(helpers.CACHEDB)
      return give_up(self.folder.parent, e)
    self.unscanned += len(entry)
    if self.unscanned >= self.slack: self._cut()

  def entries(self) -> Iterator[bytes]:
    """All undamaged entries, in no order."""
    try: paths = [path for path in self.folder.iterdir() if path.suffix != ".new"]
    except OSError: return
    for path in paths:
      with contextlib.suppress(OSError):
        if (entry := whole(path.read_bytes())) is not None: yield entry

  def stamp(self) -> int:
    """A number that changes when an entry is put or dropped."""
    try: return self.folder.stat().st_mtime_ns
    except OSError: return 0

  def drop(self, key: str) -> None:
    with contextlib.suppress(OSError): self.path(key).unlink()

  def _cut(self) -> None:
    self.unscanned, entries = 0, []
    with contextlib.suppress(OSError), os.scandir(self.folder) as found:
      for file in found:
        with contextlib.suppress(OSError):
          stat = file.stat()
          left_behind = file.name.endswith(".new") and time.time() - stat.st_mtime > _DAY
          entries.append((0 if left_behind else stat.st_mtime, stat.st_size, file.path))
    size = sum(size for _, size, _ in entries)
    if size <= self.bound: return
    for _, nbytes, path in sorted(entries):
      with contextlib.suppress(OSError): os.unlink(path)
      if (size := size - nbytes) <= self.bound * 3 // 4: return

def sealed(entry: bytes) -> bytes:
  """An entry's bytes on disk: its SHA-256, then the entry."""
  return hashlib.sha256(entry).digest() + entry

def whole(data: bytes) -> bytes | None:
  """The entry in sealed() bytes; None if they are damaged."""
  digest, entry = data[:32], data[32:]
  return entry if hashlib.sha256(entry).digest() == digest else None

def caching() -> bool:
  """Whether entries may be read and written: not under tinygrad's CCACHE=0 or CACHELEVEL=0."""
  return bool(CCACHE.value) and CACHELEVEL.value >= 1

def shown() -> bool:
  """Whether the user asked to see how kernels are made (DEBUG=3 and up, VIZ), so that they have to be made."""
  return DEBUG.value >= 3 or bool(VIZ.value)

# variables that say what is shown, kept, checked or run where, and do not change a kernel. BEAM is in the KernelInfo,
# DEV in the renderer's target.
OBSERVING = frozenset((
  "ALLOW_DEVICE_USAGE", "BEAM", "CACHELEVEL", "CAPTURE_PROCESS_REPLAY", "CAPTURING", "CCACHE", "DEBUG",
  "DEBUG_RANGEIFY", "DEV", "IGNORE_BEAM_CACHE", "JIT", "JIT_BATCH_SIZE", "LRU", "NO_COLOR",
  "NULL_ALLOW_COPYOUT", "PARALLEL", "PROFILE", "SCACHE", "SPEC", "TRACEMETA", "VALIDATE_WITH_CPU", "VIZ"))

# variables that tinygrad.codegen, .renderer, .schedule and .engine.jit read from the environment while they work
ENVIRONMENT = (
  "ALIGNED", "ALLOW_HALF8", "DMC", "EXPAND_SSA", "GRAPH_ONE_KERNEL", "HCQ2", "JITBEAM", "LATE_ALLREDUCE", "MV",
  "MV_BLOCKSIZE", "MV_ROWS_PER_THREAD", "MV_THREADS_PER_ROW", "OCCUPANCY_FLOOR", "REDUCEOP_SPLIT_SIZE",
  "REDUCEOP_SPLIT_THRESHOLD", "RING_ALLREDUCE_THRESHOLD", "SUM_DTYPE", "THREADS")

def surroundings() -> tuple:
  """The part that all keys have: versions, patches, machine, and the variables that kernels depend on."""
  switches = (v for v in vars(helpers).values() if isinstance(v, ContextVar) and v.key not in OBSERVING)
  return (TINYGRAD, sys.version_info[:2], patch_set(), machine(), tuple((v.key, str(v.value)) for v in switches),
          tuple((k, os.environ.get(k)) for k in ENVIRONMENT))

# functions that return what else a step depends on, such as the schedules found for its kernels
searched: list[Callable[[], Any]] = places.Functions(__name__, "searched")

def surroundings_of_step() -> tuple:
  """A whole step's part of a key: surroundings(), and found schedules, which may change any of its kernels."""
  return (*surroundings(), *(state() for state in searched))

def search_settings() -> tuple:
  """The settings that BEAM's search depends on."""
  names = ("TC", "TC_OPT", "NOLOCALS")
  return tuple((k, v) for k, v in sorted(os.environ.items()) if k.startswith("BEAM_") or k in names)

def machine() -> str:
  """
  A short hash of the processor and the C compiler. Machines may share a home folder, and a kernel of the CPU device is
  compiled for the machine that it is made on.
  """
  return _machine(os.environ.get("CC", "clang"))  # not by tinygrad's getenv, which caches

@functools.cache
def _machine(cc: str) -> str: return hashlib.sha256(repr((processor(), program(cc))).encode()).hexdigest()[:16]

def processor() -> tuple[str, ...]:
  """The processor's architecture, model and features; the machine's name where the system does not tell."""
  names = ("vendor_id", "cpu family", "model", "model name", "flags", "Features", "CPU implementer", "CPU part",
           "CPU variant", "isa", "cpu")
  try:
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:  # the first processor's
      lines = list(itertools.takewhile(str.strip, file))
  except OSError: lines = []
  found = [line for line in lines if line.split(":")[0].strip() in names]
  return platform.machine(), *(found or (platform.processor(), platform.node()))

def program(name: str) -> tuple:
  """Path, size and time of a program. For a script: its path, its text, and the same of the programs that it names."""
  try:
    path = os.path.realpath(shutil.which(name) or name)
    if os.path.getsize(path) < 4096 and (text := pathlib.Path(path).read_bytes()).startswith(b"#!"):
      words = text.decode(errors="replace").replace("'", " ").replace('"', " ").split()
      return path, text, *(_stamp(word) for word in words if os.path.isabs(word) and os.path.isfile(word))
    return _stamp(path)
  except OSError: return (name,)

def _stamp(path: str) -> tuple[str, int, int]: return path, (stat := os.stat(path)).st_size, stat.st_mtime_ns
