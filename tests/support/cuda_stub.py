"""
A stub of the CUDA driver for machines without a GPU: tinygrad's CUDA device opens, loads modules, copies and launches.
Kernels compute nothing.

  >>> driver = cuda_stub.install(memory=1 << 30)  # replaces the functions of tinygrad.runtime.autogen.cuda
  >>> driver.lose_at = driver.launches + 3        # the third launch from now on loses the device
  $ python cuda_stub.py lose_at=7 MODULE ARGS..   # the same for `python -m MODULE ARGS..`

The stub is as hostile as the interface allows. Copies and launches are queued until something waits for them. So pinned
memory that is overwritten too early arrives wrong. A lost device shows only at a wait, and each later call fails.
Launches that a real driver would refuse are refused, also as nodes of a graph.

Memory starts as zeros and keeps what is copied to it. A kernel writes only its arguments of CHOICES bytes, which then
hold `word` in each 8: the tokens that a decode step's rows chose. Kernels must be PTX, from NVRTC
or from tinygrad's PTX renderer.
"""
from __future__ import annotations
import bisect
import ctypes
import itertools
import mmap
import re
import runpy
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pathlib
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.card.parse import PTXError, parse, variable

# CUresult codes
OK, INVALID_VALUE, NO_MEMORY, NO_CARD, INVALID_DEVICE = 0, 1, 2, 100, 101
NO_BINARY, INVALID_PTX, NEW_PTX, INVALID_HANDLE, NOT_FOUND = 209, 218, 222, 400, 500
NOT_READY, ILLEGAL_ADDRESS, NO_RESOURCES, LOST = 600, 700, 701, 719
TEXTS = {OK: "no error", INVALID_VALUE: "invalid argument", NO_MEMORY: "out of memory", 46: "device unavailable",
         NO_CARD: "no CUDA-capable device is detected", INVALID_DEVICE: "invalid device ordinal",
         NO_BINARY: "no kernel image is available for execution on the device", 214: "uncorrectable ECC error",
         INVALID_PTX: "a PTX JIT compilation failed", NEW_PTX: "the provided PTX was compiled with an unsupported "
         "toolchain.", INVALID_HANDLE: "invalid resource handle", NOT_FOUND: "named symbol not found",
         NOT_READY: "device not ready", ILLEGAL_ADDRESS: "an illegal memory access was encountered",
         NO_RESOURCES: "too many resources requested for launch", LOST: "unspecified launch failure"}

GRID, BLOCK, THREADS, SHARED = (2**31 - 1, 2**16 - 1, 2**16 - 1), (1024, 1024, 64), 1024, 48 << 10  # launch limits
PAGE, CHOICES = 4096, 64
WORD = (0x80000000 << 32) + 0xFFFFFFFF - 5  # a key of engine/sampling.greedy_key: token 5 with logit 0

class Kernel(NamedTuple):
  """A module's entry: (offset, size) of each argument, bytes of all, threads a block at most, shared memory's bytes."""
  name: str
  arguments: tuple[tuple[int, int], ...]
  nbytes: int
  threads: int
  shared: int

class Launch(NamedTuple):
  """A kernel with its grid, its block and a copy of its arguments."""
  kernel: Kernel
  grid: tuple[int, int, int]
  block: tuple[int, int, int]
  arguments: bytes

  def words(self) -> list[int]:
    """The 8-byte arguments: mostly pointers."""
    return [int.from_bytes(self.arguments[at:at + 8], "little") for at, size in self.kernel.arguments if size == 8]

class Copy(NamedTuple):
  """A queued copy from one host address to another."""
  to: int
  source: int
  nbytes: int
  kept: Any = None  # keeps the snapshot that `source` points into alive

class Node(NamedTuple):
  """A node of a graph: its work and the indices of the nodes it depends on."""
  work: Launch | Copy
  after: tuple[int, ...]

class Refused(Exception):
  """A driver call fails with a CUresult code."""
  def __init__(self, code: int): self.code = code

def kernels(ptx: str) -> dict[str, Kernel]:
  """The entries of a PTX module by name. Refused if support/card, the tests' PTX interpreter, cannot parse it."""
  try: entries, _ = parse(ptx)
  except PTXError as e: raise Refused(INVALID_PTX) from e
  return {e.name: Kernel(e.name, tuple(e.places), e.argument_bytes, e.threads, sum(
    v.nbytes for s in e.body if s.kind == "directive" and (v := variable(s.text)) is not None and v.space == "shared"))
    for e in entries}

class Driver:
  """
  A GPU and its driver. Every option may be changed at any time; 0 means no such limit or event.

  `memory`, `pinned`: bytes of device memory and of pinned host memory, at most. `cards`: number of GPUs.
  `arch`, `ptx`: compute capability and the newest PTX that the driver knows, as 89 and 85 (8.5).
  `lose_at`: the launch (from 1, a graph counts as one) at which the device is lost with the code lose_as.
  `no_memory_at`: the allocation of device memory (from 1) from which on every allocation fails.
  `fail`: {function: code} of calls that fail.

  The driver counts launches, allocations, used and pinned bytes (now and at most), and calls by function. It keeps the
  nodes of each graph.
  """
  def __init__(self, memory: int = 80 << 30, pinned: int = 0, arch: int = 89, ptx: int = 0, cards: int = 1,
               lose_at: int = 0, lose_as: int = LOST, no_memory_at: int = 0, word: int = WORD):
    self.memory, self.pinned, self.arch, self.ptx, self.cards = memory, pinned, arch, ptx, cards
    self.lose_at, self.lose_as, self.no_memory_at, self.word = lose_at, lose_as, no_memory_at, word
    self.fail = dict[str, int]()
    self.launches = self.allocations = self.used = self.most_used = self.pinned_now = self.most_pinned = 0
    self.calls, self.graphs = Counter[str](), list[list[Node]]()
    self.lost = OK  # the code of every call once the device is lost
    self.lock = threading.RLock()
    self._new = itertools.count(1)
    self._handles = dict[int, Any]()                     # modules, functions, events, graphs
    self._memory = dict[int, tuple[mmap.mmap, int]]()    # device allocations by address
    self._starts = list[int]()                           # sorted addresses of the device allocations
    self._host = dict[int, tuple[mmap.mmap, int]]()      # pinned host allocations
    self._queue = list[tuple[int, Any]]()                # (number, pending work)
    self._pushed = itertools.count(1)
    self._names = dict[int, ctypes.Array]()

  def revive(self) -> None:
    """Brings the lost device back with its memory, for the next case of a test."""
    with self.lock: self.lost, self.lose_at, self.no_memory_at = OK, 0, 0

  # *** what happens late

  def _push(self, work: Any) -> int:
    self._queue.append((number := next(self._pushed), work))
    return number

  def _wait(self, number: int | None = None) -> None:
    """Runs the queue up to and including work `number`; None: all of it. Refused if the device is lost."""
    while self._queue and (number is None or self._queue[0][0] <= number):
      work = self._queue.pop(0)[1]
      if self.lost == OK: self._do(work)
    self._check_lost()

  def _check_lost(self) -> None:
    if self.lost != OK: raise Refused(self.lost)

  def _do(self, work: Any) -> None:
    if isinstance(work, Copy): ctypes.memmove(work.to, work.source, work.nbytes)
    elif isinstance(work, Launch): self._run(work)
    elif callable(work): work()
    else:
      for node in work: self._do(node)

  def _run(self, launch: Launch) -> None:
    """Runs a kernel: writes `word` to its buffers of CHOICES bytes. Tests that want more replace this method."""
    for address in launch.words():
      if (found := self._memory.get(address)) is not None and found[1] == CHOICES:
        found[0][:CHOICES] = self.word.to_bytes(8, "little") * (CHOICES // 8)

  def _lose(self) -> None: self.lost = self.lose_as

  # *** memory: an address on the card is that of the host with its top bit set, so that the host cannot use it

  FAR = 1 << 62

  def _allocated(self, nbytes: int) -> tuple[mmap.mmap, int]:
    memory = mmap.mmap(-1, -(-nbytes // PAGE) * PAGE)
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))

  def _on_host(self, address: int, nbytes: int) -> int:
    """The host address of device memory. Refused if the bytes do not lie within one allocation."""
    at = bisect.bisect_right(self._starts, address) - 1
    if at < 0 or address + nbytes > (start := self._starts[at]) + self._memory[start][1]: raise Refused(INVALID_VALUE)
    return address - self.FAR

  def _is_pinned(self, address: int, nbytes: int) -> bool:
    return any(start <= address and address + nbytes <= start + size for start, (_, size) in self._host.items())

  # *** launches

  def _launch(self, handle: Any, sizes: tuple[int, ...], shared: int, extra: Any) -> Launch:
    """A checked launch. Refused if its sizes or arguments exceed what a GPU can launch."""
    kernel, grid, block = self._of(handle, Kernel), sizes[:3], sizes[3:]
    threads = block[0] * block[1] * block[2]
    fits = all(1 <= n <= most for n, most in zip((*grid, *block), (*GRID, *BLOCK))) and threads <= THREADS
    if not fits or kernel.shared + shared > SHARED: raise Refused(INVALID_VALUE)
    if threads > kernel.threads: raise Refused(NO_RESOURCES)
    if extra[0] != 1 or extra[2] != 2 or extra[4]: raise Refused(INVALID_VALUE)
    nbytes = ctypes.c_size_t.from_address(extra[3]).value
    if nbytes < kernel.nbytes: raise Refused(INVALID_VALUE)
    return Launch(kernel, grid, block, ctypes.string_at(extra[1], nbytes))

  def _node(self, params: Any) -> Launch:
    p = params._obj
    sizes = (p.gridDimX, p.gridDimY, p.gridDimZ, p.blockDimX, p.blockDimY, p.blockDimZ)
    return self._launch(p.func, sizes, p.sharedMemBytes, p.extra)

  def _copied(self, params: Any) -> Copy:
    p = params._obj
    nbytes = p.WidthInBytes * p.Height * p.Depth
    return Copy(self._on_host(p.dstDevice, nbytes), self._on_host(p.srcDevice, nbytes), nbytes)

  def _add(self, out: Any, graph: Any, after: Any, count: int, work: Launch | Copy) -> None:
    nodes = self._of(graph, list)
    before = tuple(_handle(after[i]) - 1 for i in range(count))
    if any(not 0 <= i < len(nodes) for i in before) or len(set(before)) != len(before): raise Refused(INVALID_VALUE)
    nodes.append(Node(work, before))
    _set(out, len(nodes))

  def _count_launch(self, work: Any) -> None:
    self.launches += 1
    self._push(self._lose if self.launches == self.lose_at else work)

  # *** handles

  def _put(self, thing: Any) -> int:
    self._handles[handle := 16 * next(self._new)] = thing
    return handle

  def _of(self, handle: Any, kind: type) -> Any:
    if not isinstance(thing := self._handles.get(_handle(handle)), kind): raise Refused(INVALID_HANDLE)
    return thing

  # *** the functions, as tinygrad calls them

  def cuInit(self, flags: int) -> None:
    if not self.cards: raise Refused(NO_CARD)

  def cuDriverGetVersion(self, out: Any) -> None: out._obj.value = 13000
  def cuDeviceGetCount(self, out: Any) -> None: out._obj.value = self.cards

  def cuDeviceGet(self, out: Any, index: int) -> None:
    if not 0 <= index < self.cards: raise Refused(INVALID_DEVICE)
    out._obj.value = index

  def cuDeviceGetName(self, out: Any, room: int, device: Any) -> None: out.value = b"NVIDIA Stub"[:room - 1]

  def cuDeviceComputeCapability(self, major: Any, minor: Any, device: Any) -> None:
    major._obj.value, minor._obj.value = divmod(self.arch, 10)

  def cuDeviceCanAccessPeer(self, out: Any, one: Any, other: Any) -> None: out._obj.value = 0
  def cuCtxCreate_v2(self, out: Any, flags: int, device: Any) -> None: _set(out, self._put("context"))
  def cuCtxSetCurrent(self, context: Any) -> None: self._of(context, str)
  def cuCtxSynchronize(self) -> None: self._wait()

  def cuMemGetInfo_v2(self, free: Any, total: Any) -> None:
    free._obj.value, total._obj.value = self.memory - self.used, self.memory

  def cuMemAlloc_v2(self, out: Any, nbytes: int) -> None:
    self._check_lost()
    self.allocations += 1
    if not nbytes: raise Refused(INVALID_VALUE)
    if self.used + nbytes > self.memory or 0 < self.no_memory_at <= self.allocations: raise Refused(NO_MEMORY)
    memory, address = self._allocated(nbytes)
    out._obj.value = address = address + self.FAR
    self._memory[address] = memory, nbytes
    bisect.insort(self._starts, address)
    self.used += nbytes
    self.most_used = max(self.most_used, self.used)

  def cuMemFree_v2(self, address: Any) -> None:
    self._wait()
    if (found := self._memory.pop(start := _handle(address), None)) is None: raise Refused(INVALID_VALUE)
    self._starts.remove(start)
    self.used -= found[1]

  def cuMemHostAlloc(self, out: Any, nbytes: int, flags: int) -> None:
    self._check_lost()
    if not nbytes: raise Refused(INVALID_VALUE)
    if self.pinned and self.pinned_now + nbytes > self.pinned: raise Refused(NO_MEMORY)
    memory, out._obj.value = self._allocated(nbytes)
    self._host[out._obj.value] = memory, nbytes
    self.pinned_now += nbytes
    self.most_pinned = max(self.most_pinned, self.pinned_now)

  def cuMemFreeHost(self, address: Any) -> None:
    self._wait()
    if (found := self._host.pop(_handle(address), None)) is None: raise Refused(INVALID_VALUE)
    self.pinned_now -= found[1]

  def cuMemcpyHtoDAsync_v2(self, to: Any, source: Any, nbytes: int, stream: Any) -> None:
    """Pinned memory is read when the copy runs; pageable memory has been read when the call returns."""
    self._check_lost()
    target, source, kept = self._on_host(_handle(to), nbytes), _handle(source), None
    if not self._is_pinned(source, nbytes):
      kept = ctypes.create_string_buffer(ctypes.string_at(source, nbytes), nbytes)
      source = ctypes.addressof(kept)
    self._push(Copy(target, source, nbytes, kept))

  def cuMemcpyHtoD_v2(self, to: Any, source: Any, nbytes: int) -> None:
    self.cuMemcpyHtoDAsync_v2(to, source, nbytes, None)
    self._wait()

  def cuMemcpyDtoHAsync_v2(self, to: Any, source: Any, nbytes: int, stream: Any) -> None:
    self._check_lost()
    self._push(Copy(to := _handle(to), self._on_host(_handle(source), nbytes), nbytes))
    if not self._is_pinned(to, nbytes): self._wait()

  def cuMemcpyDtoH_v2(self, to: Any, source: Any, nbytes: int) -> None:
    self.cuMemcpyDtoHAsync_v2(to, source, nbytes, None)
    self._wait()

  def cuMemcpyDtoDAsync_v2(self, to: Any, source: Any, nbytes: int, stream: Any) -> None:
    self._check_lost()
    self._push(Copy(self._on_host(_handle(to), nbytes), self._on_host(_handle(source), nbytes), nbytes))

  def cuEventCreate(self, out: Any, flags: int) -> None:
    self._check_lost()
    _set(out, self._put([0]))

  def cuEventDestroy_v2(self, event: Any) -> None:
    self._of(event, list)
    self._handles.pop(_handle(event))

  def cuEventRecord(self, event: Any, stream: Any) -> None:
    self._check_lost()
    self._of(event, list)[0] = self._push(lambda: None)

  def cuEventSynchronize(self, event: Any) -> None: self._wait(self._of(event, list)[0])

  def cuEventElapsedTime(self, out: Any, first: Any, last: Any) -> None:
    """0.01 ms for each item of work between the two events."""
    one, other = self._of(first, list)[0], self._of(last, list)[0]
    if not one or not other or any(number <= max(one, other) for number, _ in self._queue): raise Refused(NOT_READY)
    out._obj.value = (other - one) * 0.01

  def cuStreamWaitEvent(self, stream: Any, event: Any, flags: int) -> None: self._of(event, list)

  def cuModuleLoadData(self, out: Any, image: bytes) -> None:
    self._check_lost()
    text = image.rstrip(b"\0").decode(errors="replace")
    version, target = re.search(r"\.version\s+(\d+)\.(\d+)", text), re.search(r"\.target\s+sm_(\d+)", text)
    if image[:4] == b"\x7fELF" or target is not None and int(target[1]) > self.arch: raise Refused(NO_BINARY)
    if version is None or target is None: raise Refused(INVALID_PTX)
    if self.ptx and int(version[1]) * 10 + int(version[2]) > self.ptx: raise Refused(NEW_PTX)
    _set(out, self._put(kernels(text)))

  def cuModuleGetFunction(self, out: Any, module: Any, name: bytes) -> None:
    if (found := self._of(module, dict).get(name.decode())) is None: raise Refused(NOT_FOUND)
    _set(out, self._put(found))

  def cuModuleUnload(self, module: Any) -> None:
    self._wait()
    self._of(module, dict)

  def cuFuncSetAttribute(self, function: Any, attribute: int, value: int) -> None: self._of(function, Kernel)

  def cuLaunchKernel(self, function: Any, *args: Any) -> None:
    self._check_lost()
    *sizes, shared, _stream, _params, extra = args
    self._count_launch(self._launch(function, tuple(sizes), shared, extra))

  def cuGraphCreate(self, out: Any, flags: int) -> None:
    self.graphs.append(nodes := [])
    _set(out, self._put(nodes))

  def cuGraphAddKernelNode(self, out: Any, graph: Any, after: Any, count: int, params: Any) -> None:
    self._add(out, graph, after, count, self._node(params))

  def cuGraphAddMemcpyNode(self, out: Any, graph: Any, after: Any, count: int, params: Any, context: Any) -> None:
    self._add(out, graph, after, count, self._copied(params))

  def cuGraphInstantiate_v2(self, out: Any, graph: Any, *_: Any) -> None:
    self._check_lost()
    _set(out, self._put([node.work for node in self._of(graph, list)]))

  def cuGraphExecKernelNodeSetParams(self, instance: Any, node: Any, params: Any) -> None:
    self._check_lost()
    self._of(instance, list)[_handle(node) - 1] = self._node(params)

  def cuGraphExecMemcpyNodeSetParams(self, instance: Any, node: Any, params: Any, context: Any) -> None:
    self._check_lost()
    self._of(instance, list)[_handle(node) - 1] = self._copied(params)

  def cuGraphLaunch(self, instance: Any, stream: Any) -> None:
    self._check_lost()
    self._count_launch(list(self._of(instance, list)))

  def cuGraphDestroy(self, graph: Any) -> None:
    self._check_lost()
    self._of(graph, list)

  def cuGraphExecDestroy(self, instance: Any) -> None:
    self._wait()
    self._of(instance, list)

  def cuGetErrorString(self, code: int, out: Any) -> None:
    text = self._names.setdefault(code, ctypes.create_string_buffer(TEXTS.get(code, "unknown error").encode()))
    _set(out, ctypes.addressof(text))

def _handle(thing: Any) -> int:
  """The integer value of a handle, an address or a ctypes pointer."""
  if isinstance(thing, int): return thing
  if isinstance(thing, ctypes._Pointer): return ctypes.c_void_p.from_buffer(thing).value or 0
  return thing.value or 0

def _set(out: Any, value: int) -> None:
  """Writes a handle through a byref() argument."""
  ctypes.c_void_p.from_buffer(out._obj).value = value

def _function(driver: Driver, name: str) -> Callable[..., int]:
  """A driver function as tinygrad calls it: it counts the call and returns a CUresult code."""
  function = getattr(driver, name)
  def call(*args: Any) -> int:
    with driver.lock:
      driver.calls[name] += 1
      try:
        if name in driver.fail: raise Refused(driver.fail[name])
        function(*args)
      except Refused as e: return e.code
    return OK
  return call

def functions(driver: Driver) -> dict[str, Callable[..., int]]:
  """The driver functions by name; each returns a CUresult code."""
  return {name: _function(driver, name) for name in vars(Driver) if name.startswith("cu")}

def install(**options: Any) -> Driver:
  """Replaces libcuda in this process by a new Driver(**options). Call it before the device CUDA is opened."""
  from tinygrad.runtime.autogen import cuda
  for name, function in functions(driver := Driver(**options)).items(): setattr(cuda, name, function)
  return driver

def main() -> None:
  """Runs a module with the stub. Options come first, as name=number."""
  options, args = {}, sys.argv[1:]
  while "=" in args[0]:
    name, _, value = args.pop(0).partition("=")
    options[name] = int(value)
  import tinygrad_llm  # noqa: F401  # before tinygrad: it applies the patches
  install(**options)
  sys.argv = args
  runpy.run_module(args[0], run_name="__main__", alter_sys=True)

if __name__ == "__main__": main()
