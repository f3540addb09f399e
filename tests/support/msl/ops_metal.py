"""
tinygrad's device METAL, executed by the CPU. After install() and with DEV=METAL the whole app runs on it.

Launches are deferred, as a GPU may do: a kernel runs only when something waits for it or for a later one. There is no
graph, as on a virtual machine's GPU. MSL_ARCH: the architecture (default Apple9). MSL_SEED: the seed of the order in
which threads run.
"""
import hashlib
import math
import os
import sys
import time
from typing import Any

from tests.support.msl import build
from tests.support.msl.kernel import THREADS, Kernel
from tests.support.msl.memory import View, view
from tinygrad.device import Allocator, CompileError, Compiled, Compiler, Program, TinyELF
from tinygrad.renderer.cstyle import MetalRenderer

def install() -> None:
  """Replaces tinygrad's METAL runtime in this process. Call it before the device is opened."""
  sys.modules["tinygrad.runtime.ops_metal"] = sys.modules[__name__]

class Command:
  """A pending launch."""
  def __init__(self, kernel: Kernel, arguments: list[View | int], grid: tuple[int, ...], block: tuple[int, ...]):
    self.kernel, self.arguments, self.grid, self.block, self.left = kernel, arguments, grid, block, True

  def run(self, seed: int) -> None:
    self.left = False
    self.kernel(self.arguments, self.grid, self.block, seed)

def wait_check(command: Command) -> None:
  """Runs a launch and all pending launches before it."""
  flying = _device().mtl_buffers_in_flight
  for one in flying[:flying.index(command) + 1] if command in flying else ():
    if one.left: one.run(_device().next_seed())

def _device() -> "MetalDevice":
  from tinygrad import Device
  return Device["METAL"]  # type: ignore[return-value]

class MetalDevice(Compiled):
  """The device. launched: names of all kernels launched so far, in order."""
  def __init__(self, device: str):
    self.mtl_buffers_in_flight: list[Command] = []
    self.launched: list[str] = []
    self._seed = int(os.environ.get("MSL_SEED", "1"))
    super().__init__(device, MetalAllocator(self), [MetalRenderer], MetalProgram, None,
                     arch=os.environ.get("MSL_ARCH", "Apple9"))

  def next_seed(self) -> int:
    self._seed += 1
    return self._seed

  def synchronize(self) -> None:
    if self.mtl_buffers_in_flight:
      try: wait_check(self.mtl_buffers_in_flight[-1])
      finally: self.mtl_buffers_in_flight.clear()

class MetalCompiler(Compiler):
  """Compiles to a library that holds the kernel's source and its executable code."""
  def __init__(self) -> None:
    of = b"".join((build.FOLDER / name).read_bytes() for name in ("metal_stdlib", "source.py", "build.py"))
    super().__init__(f"msl_{hashlib.sha256(of).hexdigest()[:16]}")

  def compile(self, src: str) -> bytes:
    try: library = build.kernel(src)
    except build.Refused as e: raise CompileError(str(e)) from e
    return len(text := src.encode()).to_bytes(8, "little") + text + library

class MetalProgram(Program[MetalDevice]):
  def __init__(self, dev: MetalDevice, obj: TinyELF):
    self.dev, self.name, end = dev, obj.name, 8 + int.from_bytes(obj.lib[:8], "little")
    self.kernel = Kernel(obj.lib[8:end].decode(), obj.lib[end:], strict=False)

  def __call__(self, *bufs: View, global_size: tuple[int, ...] = (1, 1, 1), local_size: tuple[int, ...] = (1, 1, 1),
               vals: tuple[int, ...] = (), wait: bool = False, **kw: Any) -> float | None:
    if math.prod(local_size) > THREADS or min(*global_size, *local_size) < 1:
      raise RuntimeError(f"{self.name}: grid {global_size} of threadgroups {local_size}")
    self.dev.launched.append(self.name)
    self.dev.mtl_buffers_in_flight.append(Command(self.kernel, [*bufs, *vals], global_size, local_size))
    if not wait: return None
    start = time.perf_counter()
    self.dev.synchronize()
    return time.perf_counter() - start

class MetalAllocator(Allocator[MetalDevice]):
  """Never reuses memory: a pending launch may still read a freed buffer."""
  def __init__(self, dev: MetalDevice): super().__init__(dev, supports_copy_from_disk=False, supports_transfer=False)
  def _alloc(self, size: int, options: Any) -> View: return view(size)
  def _as_buffer(self, src: View) -> memoryview: return src.bytes()
  def _offset(self, buf: View, size: int, offset: int) -> View: return View(buf.memory, buf.offset + offset, size)

  def _copyin(self, dest: View, src: memoryview) -> None:
    self.dev.synchronize()
    dest.bytes()[:] = src

  def _copyout(self, dest: memoryview, src: View) -> None:
    self.dev.synchronize()
    dest[:] = src.bytes()
