"""
Tables of commands for the CPU device, and the threads that run them: the basis of `threads` and `dispatch`.

A command is one launch of a kernel, in 64-bit words:
- FUNCTION: the address of its code
- THREADS: the number of its shares
- SLOT: the index of the argument that is the share's number (ARGS if there is none)
- WORDS: the number of words of this command
- HEAD and on: the arguments

A table begins with the number of its commands (COUNT) and the number of threads to WAKE. The commands come last.
Between them are its variables: the addresses of VALUES and of PAIRS, and the number of pairs (PAIRED). A pair is the
index of a word and of the value that a run first writes into it.

thread_pool.c runs a table. A pool has a line of memory for each thread, the caller's first. Slot i of a command is its
shares i, i + the pool's size, and so on. The caller offers a slot by the address of the command in the `order` of the
slot's line. The thread that swaps this for 0 runs the slot. This is the line's own thread or the caller, which takes
all slots that no worker has begun when it is done with its own. Workers also take the slots of lines whose threads are
not active.

A worker without an order spins, then yields. After two milliseconds, or when it does not get its core back, it sleeps
in read() on an eventfd, or on a pipe where there are none. The eventfd is better: writing to a pipe tells Linux that
the writer will wait, and Linux wakes the worker on the caller's own core. The caller sleeps, too, if the others take
long.

A thread that has begun a share and then loses its core costs a time slice of the system (3 to 4 ms), which is more than
many a step. So no more threads are `active` than the process has cores; its affinity is read every CORES_EVERY seconds.
Fewer are active if such waits took longer than the threads save. More are tried again after a pause, which doubles from
8 ms to a second as long as they do not pay.
"""
from __future__ import annotations
import ctypes, itertools, os, pathlib, sys, threading, time
from collections.abc import Sequence
from dataclasses import replace
from typing import cast
from tinygrad import Device
from tinygrad.device import TinyELF
from tinygrad.helpers import NUM_CPU_THREADS, WIN
from tinygrad.renderer.cstyle import ClangRenderer
from tinygrad.runtime.autogen import libc
from tinygrad.runtime.ops_cpu import MAX_ARGS as ARGS, CPUDevice, CPUProgram
from tinygrad_llm.patches import is_on

SEAMS = {
  "tinygrad.device:Compiler.compile_cached": "5cbd6a59b2ec",
  "tinygrad.device:TinyELF": "7f5401598645",
  "tinygrad.renderer.cstyle:ClangRenderer": "9763a2d76a66",
  "tinygrad.runtime.ops_cpu:CPUProgram.__init__": "bb170a876987",
  "tinygrad.runtime.ops_cpu:CPUProgram.__call__": "ebbeb3d86da2",
}

COUNT, WAKE, VALUES, PAIRS, PAIRED, TABLE_HEAD = range(6)
FUNCTION, THREADS, SLOT, WORDS, HEAD = range(5)
STAMP = 2  # words of a time stamp: seconds and nanoseconds
MONOTONIC = getattr(time, "CLOCK_UPTIME_RAW", getattr(time, "CLOCK_MONOTONIC", 0))  # the clock of time.monotonic_ns()
CORES_EVERY = 0.1  # seconds
SYSTEM = ("sched_yield", "read", "write", "clock_gettime")  # in the order of pool_t
ALIGNED = 128  # bytes of a line, and its alignment
SOURCE = pathlib.Path(__file__).with_suffix(".c")

# *** tables and the pool ***

def command(program: CPUProgram, threads: int, args: Sequence[int]) -> list[int]:
  """The words of a launch; the argument for the share's number may be anything."""
  assert len(args) <= ARGS, f"CPU programs support at most {ARGS} arguments, got {len(args)}"
  return [program.addr, threads, program.runtimevars.get("core_id", ARGS), HEAD + len(args), *args]

class Table:
  """Commands in memory, ready to run. at: the index in `words` at which each begins."""
  def __init__(self, commands: Sequence[list[int]]):
    *self.at, end = itertools.accumulate(map(len, commands), initial=TABLE_HEAD)
    self.threads = max((c[THREADS] for c in commands), default=1)
    self.words = (ctypes.c_uint64 * (end + ARGS))()  # run() may read ARGS argument words of any command
    self.words[:end] = [len(commands), self.threads, 0, 0, 0, *itertools.chain(*commands)]
    self.address = ctypes.addressof(self.words)

  def bind(self, places: Sequence[Sequence[int]]) -> ctypes.Array[ctypes.c_int64]:
    """The values of variables, to be set before a run; places: the indices in `words` that take each."""
    pairs = [(word, i) for i, words in enumerate(places) for word in words]
    self._values = (ctypes.c_int64 * len(places))()
    self._pairs = (ctypes.c_uint64 * (2 * len(pairs)))(*itertools.chain(*pairs))
    self.words[VALUES:TABLE_HEAD] = [ctypes.addressof(self._values), ctypes.addressof(self._pairs), len(pairs)]
    return self._values

class _Line(ctypes.Structure):
  _fields_ = [(name, ctypes.c_uint64) for name in ("order", "asleep", "read_fd", "write_fd", "read_to")] + \
             [("rest", ctypes.c_uint64 * 11)]

class _Head(ctypes.Structure):
  """pool_t of thread_pool.c, without the lines that follow it."""
  _fields_ = [(name, ctypes.c_uint64) for name in (
    "size", "limit", "active", "since", "time", "lost", "until", "pause", "clock", "ticks_then", "ns_then", "us",
    *SYSTEM)] + [("left", ctypes.c_uint64 * 16)]

class Pool:
  """
  The caller and up to `size` - 1 workers, which start with the first table that needs one.

  A worker does not end: its memory and code stay until the process ends, and the worker with it.
  """
  def __init__(self, size: int):
    self.size, self.workers, self._lock, self._looked = size, list[threading.Thread](), threading.Lock(), 0.0
    self._code = _compiled()
    self._run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(self._code.addr)
    self._memory = (ctypes.c_uint8 * (ctypes.sizeof(_Head) + size * ctypes.sizeof(_Line) + ALIGNED))()
    self._at = -(-ctypes.addressof(self._memory) // ALIGNED) * ALIGNED
    self.head = _Head.from_address(self._at)
    self.head.size = self.head.limit = self.head.active = 1
    self.head.clock = MONOTONIC
    if not WIN:
      for name in SYSTEM: setattr(self.head, name, _address(name))

  def run(self, table: Table) -> float:
    """Runs a table and waits for it; returns the seconds that it took."""
    with self._lock:
      start = time.perf_counter()
      if start - self._looked > CORES_EVERY or table.threads > 1 + len(self.workers): self._ready(table, start)
      self._run(self._at, 0, table.address, None)
      return time.perf_counter() - start

  def run_stamped(self, table: Table) -> ctypes.Array[ctypes.c_uint64]:
    """
    The same; returns time stamps of the clock MONOTONIC, STAMP words each: the first command's start, then the end of
    each.
    """
    with self._lock:
      self._ready(table, time.perf_counter())
      stamps = (ctypes.c_uint64 * (STAMP * (table.words[COUNT] + 1)))()
      self._run(self._at, 0, table.address, ctypes.addressof(stamps))
      return stamps

  def _ready(self, table: Table, now: float) -> None:
    if table.threads > 1 + len(self.workers) < self.size: self._start()
    if self.workers and now - self._looked > CORES_EVERY: self._look(now)

  def _look(self, now: float) -> None:
    """Limits the threads to the cores there are: these may be fewer, or others, than when the threads started."""
    self._looked = now
    if hasattr(os, "sched_getaffinity"):
      try: cores = os.sched_getaffinity(0).union(*(os.sched_getaffinity(t.native_id or 0) for t in self.workers))
      except OSError: return
      self.head.limit = min(self.size, len(cores))

  def _start(self) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
    lines = [_Line.from_address(self._at + ctypes.sizeof(_Head) + i * ctypes.sizeof(_Line)) for i in range(self.size)]
    try:
      for number, line in enumerate(lines):
        line.read_fd, line.write_fd = _wake_up_call()
        if number == 0: continue  # the caller's line
        thread = threading.Thread(target=self._run, args=(self._at, number, None, None), name=f"tinygrad CPU {number}",
                                  daemon=True)
        thread.start()
        self.workers.append(thread)
    except (OSError, RuntimeError): pass  # as many threads as the system allows
    self.size = self.head.size = self.head.limit = self.head.active = 1 + len(self.workers)

def _compiled() -> CPUProgram:
  """The machine code of thread_pool.c, which stays in memory as long as this object is held."""
  device = cast(CPUDevice, Device["CPU"])
  clang = ClangRenderer(replace(device.renderer.target, renderer="CLANG"))
  names = ("COUNT", "WAKE", "VALUES", "PAIRS", "PAIRED", "TABLE_HEAD", "FUNCTION", "THREADS", "SLOT", "WORDS", "HEAD",
           "ARGS", "STAMP")
  defines = [f"#define {name} {globals()[name]}" for name in names]
  abi = "__attribute__((ms_abi))" if sys.platform == "win32" else ""
  source = "\n".join([*defines, f"#define ABI {abi}", SOURCE.read_text(encoding="utf-8")])
  return CPUProgram(device, TinyELF(clang.compiler.compile_cached(source), SOURCE.stem, clang.target, ()))

def _address(name: str) -> int: return ctypes.cast(getattr(libc.dll, name), ctypes.c_void_p).value or 0

def _wake_up_call() -> tuple[int, int]:
  """Two descriptors: a read of 8 bytes from the first waits until 8 bytes are written to the second."""
  if hasattr(os, "eventfd"): return (fd := os.eventfd(0)), fd
  pipe = os.pipe()
  os.set_blocking(pipe[1], False)
  return pipe

_making, _made = threading.Lock(), None  # type: threading.Lock, Pool | None

def pool() -> Pool:
  """The process's pool: as many threads as tinygrad lets a kernel have; one if `threads` is off, or on Windows."""
  global _made
  if (made := _made) is not None: return made
  with _making:
    if _made is None: _made = Pool(NUM_CPU_THREADS.value if is_on("threads") and not WIN else 1)
    return _made

def _forget() -> None:
  """Drops the pool in the child of a fork: its threads, and a thread that held a lock, stay in the parent."""
  global _making, _made
  _making, _made = threading.Lock(), None

if hasattr(os, "register_at_fork"): os.register_at_fork(after_in_child=_forget)
