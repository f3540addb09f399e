"""
CPU threads: a pool of native threads runs each share of a kernel on a core of its own.

Why: the CPU device runs the shares of a kernel (its THREAD axis) one after another in the calling thread, so a second
  core does nothing.
How: a launch with more than one share is a table of one command for the pool of thread_pool.py. Workers wait in native
  code; the caller takes the first share. BEAM launches by the pool, too, and thereby times what will run. A process has
  one pool, whatever the number of its CPU devices. It starts with the first such launch; after a fork the child makes
  its own.
  There are as many threads as cores.py counts, and no more compile workers; NUM_CPU_THREADS and PARALLEL say otherwise.
  There is one thread only on Windows, and for the renderer LVP, whose kernels take no arguments. HCQ2=1 launches by its
  own queue and stays as it is.
Numbers: Q4_K matvec 8192 x 2048 with 2 threads: 9.0 -> 16.7 GB/s (Zen 4, medians)
Upstream: not sent; tinygrad's CPU device could own such a pool where THREAD axes exist.
"""
import os
from typing import Any
from tinygrad.helpers import NUM_CPU_THREADS, PARALLEL
from tinygrad.runtime.ops_cpu import CPUProgram
from tinygrad_llm.patches import places
from tinygrad_llm.patches.host import thread_pool
from tinygrad_llm.patches.host.cores import available

SEAMS = thread_pool.SEAMS

_stock = CPUProgram.__call__

def call(self: CPUProgram, *bufs: Any, global_size: tuple[int, int, int] = (1, 1, 1),
         local_size: tuple[int, int, int] = (1, 1, 1), vals: tuple[int | None, ...] = (), wait: bool = False,
         timeout: int | None = None) -> float | None:
  if self.lvp or global_size[0] == 1 or "core_id" not in self.runtimevars:
    return _stock(self, *bufs, global_size=global_size, local_size=local_size, vals=vals, wait=wait, timeout=timeout)
  args = [*(b.va_addr for b in bufs), *(v or 0 for v in vals)]
  seconds = thread_pool.pool().run(thread_pool.Table([thread_pool.command(self, global_size[0], args)]))
  return seconds if wait else None

def install() -> None:
  places.replace(CPUProgram, "__call__", call)
  if os.environ.get("NUM_CPU_THREADS"): return
  NUM_CPU_THREADS.value = available()
  if not os.environ.get("PARALLEL"): PARALLEL.value = min(PARALLEL.value, NUM_CPU_THREADS.value)
