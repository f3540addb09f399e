"""
The machine's read bandwidth, without any peer's code: numpy adds up a large array, a part in each thread.

The additions are free (64 bits are read for each, and numpy does four or eight at once): sums, maxima, dot products and
libc's memchr agree to 2% where they were compared.
"""
from __future__ import annotations
import os, time
from concurrent.futures import ThreadPoolExecutor
import numpy as np

class ReadBandwidth:
  """Reads `nbytes`, far more than the caches hold, with as many threads as the peers use."""
  def __init__(self, threads: int, nbytes: int = 1 << 30):
    array = np.ones(max(1, min(nbytes, free_memory() // 4) // 8), np.int64)  # written: pages of zeros are one page
    self.nbytes, self.parts, self.pool = array.nbytes, np.array_split(array, threads), ThreadPoolExecutor(threads)
    self.measure()

  def measure(self) -> float:
    """GB/s of one read of everything."""
    start = time.perf_counter()
    list(self.pool.map(np.add.reduce, self.parts))
    return self.nbytes / (time.perf_counter() - start) / 1e9

def free_memory() -> int:
  """Bytes that can be taken without swapping, as far as the system tells."""
  try:
    with open("/proc/meminfo") as f:
      return next(int(line.split()[1]) << 10 for line in f if line.startswith("MemAvailable"))
  except (OSError, StopIteration): return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
