"""
Forked lowering: kernels are lowered in forks of this process, one for each core, where the system forks.

Why: a compile worker of tinygrad is a new Python process. It takes 1.3 s until it lowers at full speed, and graphs are
  pickled on the way there and back. On 2 cores two workers cost more than they save for all but the largest models.
How: a fork already has everything in memory. The forks and this process take kernels from a pipe, the largest first.
  This process reads a fork's programs from the program cache; with CCACHE=0, or where the cache cannot be written, from
  a file.
  A fork opens no device and collects no garbage (buffers may be in it). It ignores Ctrl-C, which this process handles,
  and ends with its parent. The pass works on Linux only, and not while a device is open whose driver may not survive a
  fork. For BEAM tinygrad's workers lower, as before.
Numbers: seconds to the first token of the bundled model, caches empty, all steps lowered first: 14.8 -> 12.2 (2-core
  AMD EPYC), where PARALLEL=0 takes 17.6. The 18 decode steps of the kernel suite, without a cache: 73 -> 57.
Upstream: not sent; tinygrad spawns because drivers do not like forks.
"""
from __future__ import annotations
import ctypes, gc, multiprocessing, os, pathlib, pickle, select, signal, sys, tempfile
from collections.abc import Callable
from tinygrad import Device, codegen
from tinygrad.codegen import to_program_cache
from tinygrad.helpers import PARALLEL, Context
from tinygrad.uop.ops import UOp
from tinygrad_llm.patches.cache import disk_cache, programs

SEAMS = {
  "tinygrad.codegen:to_program": "0ac8cb89e06a",
  "tinygrad.engine.worker:_init_worker": "d11bc983921b",
}

FORKABLE = frozenset({"CPU", "DISK", "NPY", "NULL", "PYTHON"})
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_START = 0.05          # seconds that a fork costs

def is_possible() -> bool:
  """Whether kernels may be lowered in forks now."""
  opened = {device.split(":")[0] for device in Device._opened_devices}
  return (sys.platform == "linux" and PARALLEL.value > 1 and opened <= FORKABLE and not disk_cache.shown()
          and not multiprocessing.current_process().daemon)

class Jobs:
  """The numbers 0 to n-1 in a pipe, from which processes take one at a time."""
  def __init__(self, n: int):
    self.end, start = os.pipe()
    with open(start, "wb") as file: file.write(b"".join(i.to_bytes(2, "little") for i in range(n)))

  def take(self) -> int | None:
    """The next number; None if none is left."""
    taken = os.read(self.end, 2)
    return int.from_bytes(taken, "little") if taken else None

def _work(jobs: Jobs, tasks: list, told: int, folder: pathlib.Path, kept: bool) -> None:
  """
  The loop of a fork: lowers tasks and writes a byte to `told` for each. kept: the program cache keeps the results.
  """
  with Context(ALLOW_DEVICE_USAGE=0):
    while (i := jobs.take()) is not None:
      program = codegen.to_program(*tasks[i])
      if not kept: (folder / str(i)).write_bytes(pickle.dumps(program))
      os.write(told, b".")

def _made(i: int, task: tuple, folder: pathlib.Path) -> UOp:
  """The program that a fork made of a task; made here if the fork did not get that far."""
  if (path := folder / str(i)).exists():
    try:
      program: UOp = pickle.loads(path.read_bytes())
      return program
    except (EOFError, pickle.UnpicklingError): pass  # the fork was killed while it wrote
  made = programs.get(*task)
  return codegen.to_program(*task) if made is None else made

def fork(work: Callable[[], None]) -> int:
  """
  Starts a fork that runs `work` and ends, at the latest with this process; returns its process id. Its errors are lost.
  """
  parent = os.getpid()
  if pid := os.fork(): return pid
  try:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    gc.disable()
    disk_cache.say_nothing()
    if os.getppid() == parent: work()  # else the parent died before prctl
  except BaseException: pass  # the parent meets the same error and reports it
  finally: os._exit(0)

def lower(missing: programs.Missing, tell: Callable[[], None]) -> None:
  """Fills to_program_cache with the programs of `missing`, taken in its order. Calls tell() for each."""
  names, tasks, jobs = list(missing), list(missing.values()), Jobs(len(missing))
  kept = disk_cache.caching() and disk_cache.writable()
  heard, told = os.pipe()
  forks: list[int] = []
  with tempfile.TemporaryDirectory() as folder:
    at = pathlib.Path(folder)
    try:
      for _ in range(min(PARALLEL.value, len(tasks)) - 1): forks += [fork(lambda: _work(jobs, tasks, told, at, kept))]
      os.close(told)
      while (i := jobs.take()) is not None:
        to_program_cache[names[i]] = codegen.to_program(*tasks[i])
        tell()
        while select.select([heard], [], [], 0)[0] and os.read(heard, 1): tell()
      while os.read(heard, 1): tell()
    finally:
      for pid in forks: os.kill(pid, signal.SIGKILL)
      for pid in forks: os.waitpid(pid, 0)
      os.close(heard)
      os.close(jobs.end)
    for i, (name, task) in enumerate(missing.items()):
      if name not in to_program_cache: to_program_cache[name] = _made(i, task, at)

def offer() -> tuple[Callable[[programs.Missing, Callable[[], None]], None], float] | None:
  return (lower, _START) if is_possible() else None

def install() -> None: programs.elsewhere.append(offer)
