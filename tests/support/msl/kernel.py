"""A Metal kernel that runs on the CPU, and the faults that end a launch."""
import ctypes
import functools
import math
import tempfile
from collections.abc import Sequence

from tests.support.msl import build
from tests.support.msl.memory import CELL, PAGE, View, pages, protect
from tests.support.msl.source import has_arrays, signature, stored

THREADS, LIMIT, GAP, ARRAYS = 1024, 32768, 256, 64  # as in executor.cpp
STACK = 1 << 16  # bytes of a thread's stack
FAULTS = ("", "out of bounds", "misaligned", "uninitialised", "race", "divergent barrier", "divergent simdgroup",
          "no such thread in the simdgroup", "too much threadgroup memory")
SEVERAL = 0xffff
FILLS = (0xff, 0x7b, 0xfb)  # NaNs, large numbers and large negative numbers of any type

class Fault(Exception):
  """A kernel did something that Metal leaves undefined. kind: one of FAULTS."""
  def __init__(self, kind: str, text: str):
    super().__init__(text)
    self.kind = kind

class _Buffer(ctypes.Structure):
  _fields_ = [(name, ctypes.c_uint64) for name in ("begin", "end", "cells", "stored")]

class _Fault(ctypes.Structure):
  _fields_ = [*((name, ctypes.c_int) for name in ("kind", "line", "thread", "other", "is_write", "array")),
              ("offset", ctypes.c_long), ("group", ctypes.c_uint32 * 3), ("bytes", ctypes.c_uint32)]

class _Launch(ctypes.Structure):
  _fields_ = [*((name, ctypes.c_uint64) for name in (
                "entry", "arguments", "buffers", "count", "stacks", "memory", "cells", "stack", "seed")),
              ("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3), ("fill", ctypes.c_int), ("fault", _Fault)]

def _loaded(library: bytes, mode: int) -> ctypes.CDLL:
  with tempfile.NamedTemporaryFile(suffix=".so") as file:
    file.write(library)
    file.flush()
    return ctypes.CDLL(file.name, mode=mode)

class _Executor:
  """The executor's library, the threads' stacks and the threadgroup memory."""
  def __init__(self) -> None:
    self.launch = _loaded(build.executor(), ctypes.RTLD_GLOBAL).msl_launch  # global: kernels link to its functions
    region = LIMIT + GAP * (ARRAYS + 1)
    self._held = [pages(THREADS * STACK), pages(region), pages(region * CELL)]
    self.stacks, self.memory, self.cells = (address for _, address in self._held)
    for i in range(THREADS): protect(self.stacks + i * STACK, PAGE)

_executor = functools.cache(_Executor)

class Kernel:
  """
  A kernel compiled from Metal source. build.Refused if Apple's compiler would reject it.

  `library`: the result of build.kernel(source), if known. `strict`: reading uninitialised threadgroup memory is a
  fault, even if no result depends on it.
  """
  def __init__(self, source: str, library: bytes | None = None, strict: bool = True):
    self.source, self.signature, self._executor = source, signature(source), _executor()
    self._library = _loaded(build.kernel(source) if library is None else library, ctypes.RTLD_LOCAL)
    self._entry = ctypes.cast(self._library.msl_entry, ctypes.c_void_p).value
    self._stored = [] if strict or not has_arrays(source) else stored(source)
    self._reads_anything = False

  def __call__(self, arguments: Sequence[View | int], grid: Sequence[int], block: Sequence[int], seed: int = 1) -> None:
    """
    Runs all threadgroups. Raises Fault if the kernel does something undefined, ValueError if Metal would not launch it.

    `arguments`: buffers, and numbers for `constant int&`. `grid`: number of threadgroups. `block`: threads of each.
    `seed`: of the order in which threads run.
    """
    if len(arguments) != len(self.signature.arguments): raise ValueError(f"{len(arguments)} arguments")
    if min(*grid, *block) < 1 or math.prod(block) > THREADS: raise ValueError(f"grid {grid} of threadgroups {block}")
    written = [a.bytes() for i in self._stored if isinstance(a := arguments[i], View)]
    before = [bytes(m) for m in written]
    try:
      if not self._reads_anything: return self._run(arguments, grid, block, seed, -1)
    except Fault as e:
      if not written or e.kind != "uninitialised": raise
      self._reads_anything = True
    results = set[bytes]()
    for fill in FILLS:
      for memory, was in zip(written, before): memory[:] = was
      self._run(arguments, grid, block, seed, fill)
      results.add(b"".join(written))
    if len(results) == 1: return
    raise Fault("uninitialised", f"{self.signature.name}: uninitialised: what it stores depends on threadgroup memory "
                                 "that nobody wrote")

  def _run(self, arguments: Sequence[View | int], grid: Sequence[int], block: Sequence[int], seed: int, fill: int
           ) -> None:
    numbers = [ctypes.c_int64(a) for a in arguments if not isinstance(a, View)]  # little endian: an int is its start
    left = iter(numbers)
    pointers = (ctypes.c_void_p * len(arguments))(*[
      a.address if isinstance(a, View) else ctypes.addressof(next(left)) for a in arguments])
    regions = [(a.address, a.address + a.size, a.memory.cells + a.offset * CELL, 0) if isinstance(a, View) else
               (at, at + 8, 0, 0) for a, at in zip(arguments, pointers)]
    buffers = (_Buffer * max(1, len(regions)))(*regions)
    of = self._executor
    launch = _Launch(self._entry, ctypes.addressof(pointers), ctypes.addressof(buffers), len(regions), of.stacks,
                     of.memory, of.cells, STACK, seed, tuple(grid), tuple(block), fill)
    if (kind := of.launch(ctypes.byref(launch))) < 0: raise RuntimeError("2^31 barriers: go on in another process")
    if kind: raise Fault(FAULTS[kind], self._told(launch.fault, arguments))

  def _told(self, f: _Fault, arguments: Sequence[View | int]) -> str:
    where = f"{self.signature.name}: {FAULTS[f.kind]}: thread {f.thread} of threadgroup {tuple(f.group)}"
    if f.line: return f"{where}, line {f.line}, is not where thread {f.other} is"
    if f.array == -1: return where
    if f.array < -1: what = f"array {-2 - f.array} of the threadgroup"
    else:
      given = arguments[f.array]
      what = f"{self.signature.arguments[f.array][1]} ({given.size if isinstance(given, View) else 8} bytes)"
    does = f"{where} {'writes' if f.is_write else 'reads'} {f.bytes} bytes at {f.offset} of {what}"
    if f.other < 0: return does
    return f"{does}, as does {'another thread, or several,' if f.other == SEVERAL else f'thread {f.other}'} meanwhile"
