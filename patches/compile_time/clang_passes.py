"""
Clang passes: LLVM's loop-load elimination is off; it takes most of a long compilation and changes no kernel of ours.

Why: the pass of LLVM looks for loads of values that an earlier iteration of the loop has stored. To find them it
  compares each pair of memory accesses. An elementwise kernel of a prompt has hundreds in one loop: 3.7 of its 4.7
  seconds in clang.
How: -mllvm -opt-disable=loop-load-elim. Each compiler is asked once whether it accepts the option, which clang 22 does;
  the answer is kept on disk.
Numbers: compiling the 38 kernels of two layers of a 1B Llama in Q4_K_M, decode and prompt, clang 22.1.8, processor
  seconds: 9.2 -> 5.0, machine code the same (2-core AMD EPYC Zen 4).
Upstream: not sent; LLVM should be told of the cost.
"""
from __future__ import annotations
from collections.abc import Callable
import functools, os, subprocess
from tinygrad.runtime.support import compiler_cpu
from tinygrad_llm.patches import places
from tinygrad_llm.patches.cache import disk_cache, schedules

SEAMS = {
  "tinygrad.runtime.support.compiler_cpu:ClangCompiler": "532ea5ae9875",
}

OPTION = ("-mllvm", "-opt-disable=loop-load-elim")

_init: Callable[..., None]

def init(self: compiler_cpu.ClangCompiler, arch: list[str], cachekey: str = "compile_clang_obj") -> None:
  _init(self, arch, cachekey)
  if is_known(os.environ.get("CC", "clang")): self.args += OPTION

@functools.cache
def is_known(cc: str) -> bool:
  """Whether a compiler accepts the option; False for a compiler that does not run."""
  key = repr((OPTION, disk_cache.program(cc)))
  if (known := schedules.VERSIONS.get(key)) is not None: return known == b"1"
  command = [cc, "-c", "-x", "c", *OPTION, "-", "-o", os.devnull]
  try: known = b"1" if subprocess.run(command, input=b"", capture_output=True, timeout=20).returncode == 0 else b"0"
  except (OSError, subprocess.TimeoutExpired): return False
  schedules.VERSIONS.put(key, known)
  return known == b"1"

def install() -> None:
  global _init
  _init = places.wrap(compiler_cpu.ClangCompiler, "__init__", init)
