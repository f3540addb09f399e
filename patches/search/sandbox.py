"""
Worker processes for candidates (child.py), seen from outside: a candidate that kills its process is only refused.
"""
from __future__ import annotations
import importlib, os, pathlib, pickle, select, signal, subprocess, sys, time, weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from tinygrad.helpers import DEBUG, PARALLEL
from tinygrad_llm.patches.search.child import SIZE

MEMORY = 4 << 30  # bytes that a process may take beside its kernel's data
START = 120       # seconds until a new process answers, at most
COMMAND = (sys.executable, "-m", "tinygrad_llm.patches.search.child")

class Failed(Exception):
  """A candidate failed. The process that tried it may have been replaced since."""

class Unready(Failed):
  """No candidate is to blame: a process does not start, or cannot make its data."""

class Broken(Failed):
  """The device failed, and the process with it. at_work: the candidate that was running."""
  def __init__(self, why: str, at_work: Any):
    super().__init__(why)
    self.at_work = at_work

class Process:
  """
  A worker process: started on its first request, and again after it died or its device failed.

  setup: the requests that a new process answers before any other.
  """
  def __init__(self, command: Sequence[str] = COMMAND):
    self.command, self.setup = command, list[tuple[str, tuple[Any, ...]]]()
    self._process: subprocess.Popen[bytes]|None = None
    _all.add(self)

  def ask(self, name: str, *args: Any, seconds: float) -> Any:
    """The answer to a request. Failed: refused, too slow, or the process died. Unready: a new one does not start."""
    if self._process is None:
      try: self._start()
      except Failed as e:
        self.stop()
        raise Unready(str(e)) from e
    return self._ask(name, args, seconds)

  def _start(self) -> None:
    package = importlib.import_module(__name__.partition(".")[0])
    root = str(pathlib.Path(str(package.__file__)).resolve().parents[1])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    quiet = None if DEBUG >= 2 else subprocess.DEVNULL
    self._process = subprocess.Popen([*self.command, str(os.getpid())], stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, stderr=quiet, bufsize=0, start_new_session=True,
                                     env={**os.environ, "PYTHONPATH": path, "BEAM": "0", "JITBEAM": "0",
                                          "NO_STORED_SCHEDULES": "1"})
    self._read(START)
    for name, args in self.setup: self._ask(name, args, START)

  def _ask(self, name: str, args: tuple[Any, ...], seconds: float) -> Any:
    data = pickle.dumps((name, args))
    assert self._process is not None and self._process.stdin is not None
    try: self._process.stdin.write(SIZE.pack(len(data)) + data)
    except OSError: self._failed("its process died")
    kind, answer = self._read(seconds)
    if kind == "failed": raise Failed(answer)
    if kind == "broken":
      self.stop()
      raise Broken(*answer)
    return answer

  def _read(self, seconds: float) -> Any:
    end = time.monotonic() + seconds
    return pickle.loads(self._bytes(SIZE.unpack(self._bytes(SIZE.size, end))[0], end))

  def _bytes(self, count: int, end: float) -> bytes:
    assert self._process is not None and self._process.stdout is not None
    found = bytearray()
    while len(found) < count:
      left = max(0.0, end - time.monotonic())
      if not select.select([self._process.stdout], [], [], left)[0]: self._failed("too slow")
      part = os.read(self._process.stdout.fileno(), min(count - len(found), 1 << 20))
      if not part: self._failed(_death(self._process))
      found += part
    return bytes(found)

  def _failed(self, why: str) -> None:
    self.stop()
    raise Failed(why)

  def kill(self) -> None:
    """Kills the process and all that it started."""
    if (process := self._process) is None: return
    try: os.killpg(process.pid, signal.SIGKILL)
    except OSError: process.kill()

  def stop(self) -> None:
    self.kill()
    process, self._process = self._process, None
    if process is None: return
    process.wait()
    for stream in (process.stdin, process.stdout):
      if stream is not None: stream.close()

_all: weakref.WeakSet[Process] = weakref.WeakSet()

def _after_fork() -> None:
  """In a fork's child: forgets the processes, which belong to the parent. The child starts its own."""
  for process in list(_all): process._process = None

if hasattr(os, "register_at_fork"): os.register_at_fork(after_in_child=_after_fork)

def _death(process: subprocess.Popen[bytes]) -> str:
  try: code = process.wait(5)
  except subprocess.TimeoutExpired: return "its process stopped answering"
  if code >= 0: return f"its process ended with {code}"
  names = {-s.value: s.name for s in signal.Signals}
  return f"its process died of {names.get(code, f'signal {-code}')}"

PROCESSES = {"CPU": 16}  # at most; each process on a GPU costs its driver's share of the card's memory
OF_GPUS = 4

def processes(device: str) -> int:
  """How many processes a search uses on a device; each lowers one kernel at a time, in one thread."""
  return max(1, min(PARALLEL.value, PROCESSES.get(device.split(":")[0], OF_GPUS)))

class Sandbox:
  """Several processes. The first one runs candidates; all of them lower and compile, one candidate at a time each."""
  def __init__(self, count: int, command: Sequence[str] = COMMAND):
    self.processes = [Process(command) for _ in range(count)]

  def __enter__(self) -> Sandbox: return self
  def __exit__(self, *_: object) -> None:
    for process in self.processes: process.stop()

  @property
  def runner(self) -> Process: return self.processes[0]

  def kernel(self, memory: int, *args: Any) -> None:
    """Sets the kernel for all further requests. memory: bytes of its data."""
    for process in self.processes:
      process.setup = [("kernel", (MEMORY + memory, *args))]
      if process._process is None: continue
      try: process.ask("kernel", MEMORY + memory, *args, seconds=START)
      except Failed: process.stop()

  def each(self, tasks: Sequence[Any], do: Callable[[Process, Any], Any]) -> list[Any]:
    """do(process, task) for every task, shared among the processes. A Failed that it raises becomes the result."""
    left, results = list(enumerate(tasks))[::-1], list[Any]([None]) * len(tasks)
    def work(process: Process) -> None:
      while left:
        i, task = left.pop()
        try: results[i] = do(process, task)
        except Failed as e: results[i] = e
    with ThreadPoolExecutor(len(self.processes)) as pool:
      try:
        for job in [pool.submit(work, process) for process in self.processes]: job.result()
      except BaseException:
        left.clear()
        for process in self.processes: process.kill()  # the threads that wait for it then fail
        raise
    return results
