"""
A kernel with threads runs on as many cores.

Why: the CPU device runs the threads of a kernel one after another on one core.
How: persistent native workers take a launch's shares; they spin for a while, then sleep.
Numbers: Q4_K matvec of the 1B shape 7.1 -> 13.75 GB/s with 2 threads.
Upstream: not sent.
"""
from typing import Any
from tinygrad.runtime.ops_cpu import CPUProgram
from tinygrad_llm.patches.commands import Table, command, pool

SEAMS = {
  "tinygrad.runtime.ops_cpu:CPUProgram.__init__": "bb170a876987",
  "tinygrad.runtime.ops_cpu:CPUProgram.__call__": "ebbeb3d86da2",
  "tinygrad.renderer.cstyle:ClangRenderer": "9763a2d76a66",
}

_stock = CPUProgram.__call__

def call(self: CPUProgram, *bufs: Any, global_size: tuple[int, int, int] = (1, 1, 1),
         local_size: tuple[int, int, int] = (1, 1, 1), vals: tuple[int | None, ...] = (), wait: bool = False,
         timeout: int | None = None) -> float | None:
  if self.lvp or global_size[0] == 1 or "core_id" not in self.runtimevars:
    return _stock(self, *bufs, global_size=global_size, local_size=local_size, vals=vals, wait=wait, timeout=timeout)
  seconds = pool().run(Table([command(self, global_size[0], [*(b.va_addr for b in bufs), *(v or 0 for v in vals)])]))
  return seconds if wait else None

def install() -> None: CPUProgram.__call__ = call  # type: ignore[method-assign]
