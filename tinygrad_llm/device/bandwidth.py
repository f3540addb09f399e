"""The machine's measured bandwidth: the upper bound for a step that only moves bytes."""
from __future__ import annotations
import os, statistics, time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
import numpy as np

class ReadBandwidth:
  """
  Read bandwidth of the host's memory: numpy sums an array of `nbytes`, far more than the caches hold, over all threads.

  The additions are free: each one reads 64 bits, and numpy does four or eight at once. Sums, maxima, dot products and
  libc's memchr agree to 2% where they were compared.
  """
  def __init__(self, threads: int, nbytes: int = 1 << 30):
    array = np.ones(max(1, min(nbytes, free_memory() // 4) // 8), np.int64)  # ones: pages never written are one page
    self.nbytes, self.parts, self.pool = array.nbytes, np.array_split(array, threads), ThreadPoolExecutor(threads)
    self.measure()

  def measure(self) -> float:
    """GB/s of reading the whole array once."""
    start = time.perf_counter()
    list(self.pool.map(np.add.reduce, self.parts))
    return self.nbytes / (time.perf_counter() - start) / 1e9

def free_memory() -> int:
  """Bytes that can be allocated without swapping, as Linux reports them; elsewhere half of the memory."""
  try:
    with open("/proc/meminfo") as f:
      return next(int(line.split()[1]) << 10 for line in f if line.startswith("MemAvailable"))
  except (OSError, StopIteration): return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2

def copy_bandwidth(nbytes: int) -> float:
  """GB/s that tinygrad's default device reads and writes in a copy: the driver's or a kernel's, the faster one."""
  from tinygrad import Tensor, TinyJit, dtypes
  from tinygrad_llm.device.buffers import empty
  a, b = (empty((nbytes // 4,), dtypes.uint32) for _ in range(2))
  step = TinyJit(lambda a: Tensor.realize(b.assign(a ^ 1)))
  jobs: list[Callable[[], Any]] = [lambda: step(a)]
  source, target = (t.uop.base.buffer for t in (a, b))
  if hasattr(source.allocator, "_transfer"):  # type: ignore[union-attr]
    jobs.append(lambda: target.copy_from(source))  # type: ignore[union-attr,arg-type]
  return max(2 * nbytes / timed(job, 10) / 1e9 for job in jobs)

SAMPLE, MOST = 5e-3, 64  # seconds of a sample, at least; calls in it, at most. A call costs 0.1 ms of Python

def timed(job: Callable[[], Any], times: int) -> float:
  """
  Median wall seconds of a call, over `times` samples. A sample has several calls if they are short.

  The default device is idle before and after each sample.
  """
  from tinygrad import Device
  device = Device[Device.DEFAULT]
  def sample(calls: int) -> float:
    device.synchronize()
    start = time.perf_counter()
    for _ in range(calls): job()
    device.synchronize()
    return (time.perf_counter() - start) / calls
  for _ in range(2): once = sample(1)
  calls = max(1, min(MOST, round(SAMPLE / max(once, 1e-6))))
  return statistics.median(sample(calls) for _ in range(times))
