"""
Warm processes, for child.py: each has imported what its calls need, and a call is a fork of it.

A start of Python with tinygrad_llm costs half a second of a processor, a fork a few hundredths. A root has imported
libraries alone, which read no switch. Forks of it have an environment each: first they import tinygrad, and forks of
these, with passes switched off, tinygrad_llm. Forks of these import the module of a test's function. Each listens at a
socket for calls, and ends with the process that started the root. No device may be open in them: its threads would be
missing in a fork.
"""
from __future__ import annotations
import atexit
import collections
import gc
import importlib
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn, TextIO

from tests.support import cpu_time

LIBRARIES = ("argparse", "gguf", "numpy", "pytest", "tests.support.extended", "tqdm")
KEPT = 16  # warm processes of a test process: some 20 MB each that it does not share
EARLY = ("LD_PRELOAD", "MALLOC", "OMP_", "OPENBLAS", "PYTHON")  # variables that a root reads at its start

# *** the process that asks

class Cold(Exception): pass

class _Warm:
  """A warm process as others see it: a socket's path."""
  made = 0
  def __init__(self, folder: pathlib.Path):
    _Warm.made += 1
    self.path = str(folder / str(_Warm.made))

  def ask(self, **request: Any) -> dict[str, Any]:
    """The answer to a request. A call whose answer nobody awaits any more is killed."""
    pid = 0
    with socket.socket(socket.AF_UNIX) as s:
      s.connect(self.path)
      with s.makefile("rw") as stream:
        print(json.dumps(request), file=stream, flush=True)
        try:
          pid = int(stream.readline() or 0)
          answer = json.loads(stream.readline() or '{"error": "a warm process has ended"}')
        except BaseException:
          if pid: os.kill(pid, signal.SIGKILL)
          raise
    cpu_time.elsewhere += answer.get("seconds", 0)
    assert "error" not in answer, answer["error"]
    return dict(answer)

  def branch(self, folder: pathlib.Path, **more: Any) -> _Warm:
    """A fork of it that has an environment, or has imported a module. Cold if the import opens a device."""
    made = _Warm(folder)
    if self.ask(branch=made.path, **more)["opened"]: raise Cold
    return made

  def end(self) -> None: self.ask(end=True)

class Nursery:
  """The warm processes of this process. They are Linux's: elsewhere a fork may not use the system's libraries."""
  def __init__(self, environment: dict[str, str]):
    self.folder = pathlib.Path(tempfile.mkdtemp(prefix="warm-"))
    self.env, self.pid = environment, os.getpid()
    self.warm = collections.OrderedDict[str, _Warm]()
    self.cold = set[str]()  # modules that a warm process cannot import
    self.lock, self.root = threading.Lock(), _Warm(self.folder)
    code = "from tests.support import warm; warm.main()"
    self.process = subprocess.Popen([sys.executable, "-c", code, self.root.path], env=environment, text=True,
                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert self.process.stdout is not None
    cpu_time.elsewhere += float(self.process.stdout.readline())
    atexit.register(self.close)

  def close(self) -> None:
    if os.getpid() != self.pid: return
    assert self.process.stdin is not None
    self.process.stdin.close()  # all warm processes wait for this
    self.process.wait()
    shutil.rmtree(self.folder, ignore_errors=True)

  def call(self, module: str, name: str, args: str, value: str, out: str, err: str, env: dict[str, str]) -> int:
    """Runs a module's function in a fork with an environment; its value, stdout and stderr go to files. Its status."""
    from tinygrad_llm.patches.pipeline import BY_NAME  # a warm process imports tinygrad_llm later than this module
    stock = {k: v for k, v in env.items() if k[:3] != "NO_" or k[3:].lower() not in BY_NAME}  # passes read the others
    found = self._get(self._get(self.root, env=stock, module="tinygrad.runtime.ops_cpu"), env=env)
    if module not in self.cold:
      try: found = self._get(found, module=module)
      except Cold: self.cold.add(module)
    answer = found.ask(call=[module, name, args, value], out=out, err=err, cwd=os.getcwd())
    return int(answer["status"])

  def fits(self, env: dict[str, str]) -> bool:
    """Whether a fork can have this environment."""
    return all(env.get(k) == self.env.get(k) for k in env.keys() | self.env.keys() if k.startswith(EARLY))

  def _get(self, parent: _Warm, **more: Any) -> _Warm:
    with self.lock: return self._kept(parent, **more)

  def _kept(self, parent: _Warm, **more: Any) -> _Warm:
    key = json.dumps([parent.path, more], sort_keys=True)
    if key not in self.warm:
      self.warm[key] = parent.branch(self.folder, **more)
      if len(self.warm) > KEPT: self.warm.popitem(last=False)[1].end()
    self.warm.move_to_end(key)
    return self.warm[key]

# *** a warm process

def main() -> None:
  """Ends here in a fork that has run a function, as a process of its own would."""
  life = os.dup(0)  # ends when the process that started the root does
  devnull = os.open(os.devnull, os.O_RDWR)
  os.dup2(devnull, 0)
  gc.disable()
  gc.set_threshold(100_000, 20, 100)  # as in session.py
  for name in LIBRARIES: importlib.import_module(name)
  gc.freeze()  # else each call's exit walks over all that was imported
  listener = _listen(sys.argv[1])
  print(time.process_time(), flush=True)
  os.dup2(devnull, 1)
  _serve(listener, life)()

def _listen(path: str) -> socket.socket:
  made = socket.socket(socket.AF_UNIX)
  made.bind(path)
  made.listen()
  return made

def _serve(listener: socket.socket, life: int) -> Callable[[], None]:
  """Answers requests, calls beside each other. Returns in a fork only, what to run there."""
  branches, calls = set[int](), dict[int, TextIO]()  # forks, and whoever waits for one
  ended, wake = os.pipe()
  os.set_blocking(wake, False)
  signal.signal(signal.SIGCHLD, lambda *_: None)
  signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
  while True:
    ready = select.select([listener, life, ended], [], [])[0]
    if ended in ready:
      os.read(ended, 4096)
      _reap(branches, calls)
    if life in ready: _end(branches, calls)
    if listener not in ready: continue
    with listener.accept()[0] as conn: stream = conn.makefile("rw")
    request = json.loads(stream.readline())
    if "end" in request:
      print("0\n{}", file=stream, flush=True)
      _end(branches, calls)
    fresh = _listen(request["branch"]) if "branch" in request else None
    if (pid := os.fork()) == 0:
      for open_ in (listener, *calls.values()): open_.close()
      for fd in (ended, wake): os.close(fd)
      signal.set_wakeup_fd(-1)
      signal.signal(signal.SIGCHLD, signal.SIG_DFL)
      if fresh is None:
        stream.close()
        os.close(life)
        return _job(**request)
      answer = _prepare(**request)
      print(f"0\n{json.dumps(answer)}", file=stream, flush=True)
      stream.close()
      if answer.get("error") or answer["opened"]: os._exit(0)
      return _serve(fresh, life)
    if fresh is None:
      print(pid, file=stream, flush=True)
      calls[pid] = stream
    else:
      fresh.close()
      branches.add(pid)
      stream.close()

def _reap(branches: set[int], calls: dict[int, TextIO], flags: int = os.WNOHANG) -> None:
  """Answers whoever waits for a fork that has ended."""
  for pid in [*branches, *calls]:
    found, status, used = os.wait4(pid, flags)
    if not found: continue
    branches.discard(pid)
    if (stream := calls.pop(pid, None)) is None: continue
    with suppress(OSError), stream:
      print(json.dumps({"status": os.waitstatus_to_exitcode(status), "seconds": used.ru_utime + used.ru_stime}),
            file=stream)

def _end(branches: set[int], calls: dict[int, TextIO]) -> NoReturn:
  _reap(branches, calls, flags=0)  # so that their times count; branches see the same end
  os._exit(0)

def _prepare(branch: str, env: dict[str, str] | None = None, module: str = "tinygrad_llm") -> dict[str, Any]:
  if env is not None:
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None
  gc.disable()
  try: importlib.import_module(module)
  except BaseException: return {"error": traceback.format_exc()}
  gc.freeze()
  if module == "tinygrad_llm":  # as in conftest.py
    importlib.import_module("tinygrad_llm.patches.cache.schedules").FILES = pathlib.Path("none")
  device = sys.modules.get("tinygrad.device")
  return {"seconds": time.process_time(), "opened": [*device.Device._opened_devices] if device is not None else []}

def _job(call: list[str], out: str, err: str, cwd: str) -> Callable[[], None]:
  for path, fd in ((out, 1), (err, 2)): os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), fd)
  os.chdir(cwd)
  gc.enable()
  module, name, args, value = call
  def run() -> None:
    function = getattr(importlib.import_module(module), name)
    pathlib.Path(value).write_text(json.dumps(function(*json.loads(args))))
  return run
