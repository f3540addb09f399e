"""
clang keeps vectors of 512 bits whole where a processor has them.

Why: For Intel's processors clang prefers registers of 256 bits, and splits even our kernels' vectors of 16 numbers.
How: The pass adds -mprefer-vector-width=512 for x86-64. The option has no effect where registers are smaller, and is
  the default for AMD's.
Numbers: Attention of 256 tokens of a 1B shape after 2,000, 10^9 products a second, 2 threads: 53 -> 88 (Emerald
  Rapids).
Upstream: not sent; stock kernels have few such vectors.
"""
from __future__ import annotations
from collections.abc import Callable
from tinygrad.runtime.support import compiler_cpu
from tinygrad_llm.patches import places

SEAMS = {
  "tinygrad.runtime.support.compiler_cpu:ClangCompiler": "532ea5ae9875",
}

_init: Callable[..., None]

def init(self: compiler_cpu.ClangCompiler, arch: list[str], cachekey: str = "compile_clang_obj") -> None:
  wide = arch[0] == "x86_64"
  _init(self, arch, f"{cachekey}_512" if wide else cachekey)
  if wide: self.args.append("-mprefer-vector-width=512")

def install() -> None:
  global _init
  _init = places.wrap(compiler_cpu.ClangCompiler, "__init__", init)
