"""
Forks of this process compile a model's steps while the process reads the weights.

Numbers: whole process of a 12-token answer with empty caches, one fork for both steps -> one for each: Gemma 3 270M
22.1 -> 18.6 s, SmolLM2 9.0 -> 8.1, the bundled model 18.5 -> 16.9 (in turns, on 2 threads of one AMD EPYC Zen 4 core).
The first token comes 0.3 to 0.7 s later there, because both threads share one core's units. The second fork and what
it forks hold 94 MB.
"""
from __future__ import annotations
import os, select, signal, struct, weakref
from collections.abc import Callable, Sequence
from typing import Any
from tinygrad import Device
from tinygrad.engine.jit import CapturedJit
from tinygrad.helpers import BEAM, JIT, getenv
from tinygrad_llm.device.buffers import has_memory, without_memory
from tinygrad_llm.engine.sampling import token_bias
from tinygrad_llm.engine.batch.pool_size import window_size
from tinygrad_llm.engine.batch.row_steps import RowSteps
from tinygrad_llm.files.gguf import GGUF
from tinygrad_llm.nn.config import ModelConfig
from tinygrad_llm.nn.model import Model
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.cache import captures, disk_cache, programs
from tinygrad_llm.patches.compile_time import forked_lowering
from tinygrad_llm.process.forks import in_children
from tinygrad_llm.weights.loader import Loader

PROMPT, DECODE = STEPS = ("prompt", "decode")
PATIENCE = 8.0  # seconds
_TOLD = struct.Struct("=II")  # of a batch of kernels: how many are compiled, and how many there are

def is_possible() -> bool:
  """
  Whether a fork can compile, and this process find the result on disk.

  BEAM measures kernels: nothing may run beside it.
  """
  return (all(map(is_on, ("captures", "forked_lowering"))) and has_memory() and forked_lowering.is_possible() and
          disk_cache.caching() and Device.DEFAULT in forked_lowering.FORKABLE and bool(JIT.value) and
          not getenv("JITBEAM", BEAM.value))

class Ahead:
  """
  Two forks, one for the prompt's steps and one for the decode step.

  Each builds the model without memory, and puts the captures that generate() needs on disk. The second fork takes the
  processor time that the first one leaves. A step needs no fork if one compiled it before for this file, known by its
  path, size and time. Nor are there forks if nothing can be put on disk.
  """
  def __init__(self, file: GGUF, config: ModelConfig, positions: int, chunk: int, blocks: int,
               suppressed: Sequence[int] = ()):
    stat = os.stat(file.path)
    key = (disk_cache.surroundings_of_step(), "ahead", os.path.realpath(file.path), stat.st_size, stat.st_mtime_ns,
           positions, chunk, blocks, Device.DEFAULT, Device[Device.DEFAULT].renderer.target)
    def make() -> RowSteps:
      with without_memory(), Loader(file, progress=False) as loader:
        model, bias = Model(config, loader, positions), token_bias(suppressed, config.vocab_size)
      return RowSteps(model, positions, chunk, blocks, bias, window_size(config, blocks, positions, chunk))
    keys = {step: repr((*key, step)) for step in STEPS}
    missing = [step for step in STEPS if captures.STORE.get(keys[step]) is None]
    self._forks = {step: _Fork(step, keys[step], make) for step in missing if disk_cache.writable()}

  def wait(self, step: str) -> None:
    """
    Returns when PROMPT or DECODE is captured, or never will be; reports kernels to programs.progress until then.

    A busy machine may leave the second fork no time. If it tells nothing for PATIENCE seconds, it is ended, and the
    caller does its work; the kernels that it has compiled are on disk.
    """
    if (fork := self._forks.get(step)) is not None: fork.wait(PATIENCE if step == DECODE else None)

  def stop(self) -> None:
    """Ends the forks that still run."""
    for fork in self._forks.values(): fork.stop()

  close = stop

class _Fork:
  """One of the forks, and the pipe in which it reports its kernels until it ends."""
  def __init__(self, step: str, key: str, make: Callable[[], RowSteps]):
    heard, told = os.pipe()
    self._heard: int | None = heard
    pid = forked_lowering.fork(lambda: _work(step, key, make, told))
    os.close(told)
    self._stop = weakref.finalize(self, _stop, pid, heard)
    in_children(self, _Fork._leave)

  def wait(self, patience: float | None) -> None:
    while self._heard is not None:
      if not select.select([self._heard], [], [], patience)[0]: return self.stop()
      if len(data := os.read(self._heard, _TOLD.size)) < _TOLD.size: return self.stop()
      if (tell := programs.progress.get()) is not None: tell(*_TOLD.unpack(data))

  def stop(self) -> None:
    if self._heard is not None: self._stop()
    self._heard = None

  def _leave(self) -> None:
    """Called in another fork: this fork works for that one's parent, and reports to the parent alone."""
    if self._heard is not None and self._stop.detach() is not None: os.close(self._heard)
    self._heard = None

def _work(step: str, key: str, make: Callable[[], RowSteps], told: int) -> None:
  def tell(done: int, total: int) -> None: os.write(told, _TOLD.pack(done, total))
  if step == DECODE: os.nice(19)  # reading weights, then compiling and running the prompt, come first
  os.dup2(os.open(os.devnull, os.O_RDWR), 2)  # the process that reads the file prints its warnings
  CapturedJit.__call__ = _not_run  # type: ignore[method-assign,assignment]
  programs.progress.set(tell)
  steps = make()
  if step == DECODE: steps.capture_decode(1)
  else: steps.capture_piece()
  captures.STORE.put(key, b"done")

def _not_run(self: CapturedJit, *_: Any) -> Any: return self.ret

def _stop(pid: int, heard: int) -> None:
  os.close(heard)
  os.kill(pid, signal.SIGKILL)
  os.waitpid(pid, 0)
