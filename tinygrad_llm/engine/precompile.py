"""A model's steps are compiled by a fork of this process while its weights are read."""
from __future__ import annotations
import os, signal, struct, weakref
from collections.abc import Callable
from typing import Any
from tinygrad import Device
from tinygrad.engine.jit import CapturedJit
from tinygrad.helpers import BEAM, JIT, getenv
from tinygrad_llm.device.buffers import has_memory, without_memory
from tinygrad_llm.engine.steps import Steps
from tinygrad_llm.files.gguf import GGUF
from tinygrad_llm.nn.config import ModelConfig
from tinygrad_llm.nn.model import Model
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.cache import captures, disk_cache, programs
from tinygrad_llm.patches.compile_time import forked_lowering
from tinygrad_llm.process.forks import in_children
from tinygrad_llm.weights.loader import Loader

MADE, PROMPT, DECODE = range(3)  # what the fork tells: kernels of a batch, a step that is captured
_TOLD = struct.Struct("=BII")

def is_possible() -> bool:
  """Whether a fork can do it, and this process find it on disk. BEAM measures kernels: nothing may run beside it."""
  return (all(map(is_on, ("captures", "forked_lowering"))) and has_memory() and forked_lowering.is_possible() and
          disk_cache.caching() and Device.DEFAULT in forked_lowering.FORKABLE and bool(JIT.value) and
          not getenv("JITBEAM", BEAM.value))

class Ahead:
  """
  The fork. It has all of a model but memory, and puts what generate() captures on disk, the prompt's steps first.

  A file whose prompt's steps it has been through is known by its size and time: there is no fork then, nor where
  nothing can be put on disk.
  """
  def __init__(self, file: GGUF, config: ModelConfig, positions: int, chunk: int):
    stat = os.stat(file.path)
    self._key = repr((disk_cache.surroundings_of_step(), "ahead", os.path.realpath(file.path), stat.st_size,
                      stat.st_mtime_ns, positions, chunk, Device.DEFAULT, Device[Device.DEFAULT].renderer.target))
    self._told: set[int] = set()
    self._heard: int | None = None
    if captures.STORE.get(self._key) is not None or not disk_cache.writable(): return
    self._heard, told = os.pipe()
    def steps() -> Steps:
      with without_memory(), Loader(file, progress=False) as loader: model = Model(config, loader, positions)
      return Steps(model, positions, chunk)
    pid = forked_lowering.fork(lambda: self._work(steps, told))
    os.close(told)
    self._stop = weakref.finalize(self, _stop, pid, self._heard)
    in_children(self, Ahead._leave)

  def wait(self, step: int) -> None:
    """Returns when PROMPT or DECODE is captured, or never will be; tells programs.progress of kernels until then."""
    while self._heard is not None and step not in self._told:
      if len(data := os.read(self._heard, _TOLD.size)) < _TOLD.size: return self.stop()
      kind, done, total = _TOLD.unpack(data)
      if kind != MADE: self._told.add(kind)
      elif (tell := programs.progress.get()) is not None: tell(done, total)

  def stop(self) -> None:
    """Ends it, if it has not ended."""
    if self._heard is not None: self._stop()
    self._heard = None

  close = stop

  def _leave(self) -> None:
    """In another fork: it works for this one's parent, and tells that one."""
    if self._heard is not None and self._stop.detach() is not None: os.close(self._heard)
    self._heard = None

  def _work(self, make: Callable[[], Steps], told: int) -> None:
    def tell(kind: int, done: int = 0, total: int = 0) -> None: os.write(told, _TOLD.pack(kind, done, total))
    os.dup2(os.open(os.devnull, os.O_RDWR), 2)  # what is to be said of the file is said by the one that reads it
    CapturedJit.__call__ = _not_run  # type: ignore[method-assign,assignment]
    programs.progress.set(lambda done, total: tell(MADE, done, total))
    steps = make()
    steps.capture_prompt()
    captures.STORE.put(self._key, b"done")
    tell(PROMPT)
    os.nice(19)  # the prompt runs now
    steps.capture_decode()
    tell(DECODE)

def _not_run(self: CapturedJit, *_: Any) -> Any: return self.ret

def _stop(pid: int, heard: int) -> None:
  os.close(heard)
  os.kill(pid, signal.SIGKILL)
  os.waitpid(pid, 0)
