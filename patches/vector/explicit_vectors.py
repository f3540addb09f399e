"""
Clang makes no vectors of scalar code (SLP vectorisation): a kernel says itself what is a vector.

Why: clang 22 does not end on some sums, such as of 16 choices by a mask, with AVX-512: the first run of a model that
  has one never does. Where the schedules of this package leave scalars there is nothing to gain.
How: -fno-slp-vectorize. Loops over neighbours are still clang's to vectorise.
Numbers: compiling the place of the only expert of 16 that is used, AVX-512, clang 22.1.8: over 8 minutes -> 0.1 s.
  Generation with one layer of a 1B Llama in Q4_K_M 1.02 of the speed before, a prompt of 64 tokens 1.00 (2-core AMD
  EPYC with AVX-512, 5 rounds in turns).
Upstream: not sent, and to be told to LLVM.
"""
from __future__ import annotations
from tinygrad.runtime.support.compiler_cpu import ClangCompiler

SEAMS = {
  "tinygrad.runtime.support.compiler_cpu:ClangCompiler": "532ea5ae9875",
}

_init = ClangCompiler.__init__

def init(self: ClangCompiler, arch: list[str], cachekey: str = "compile_clang_obj") -> None:
  _init(self, arch, f"{cachekey}_no_slp")
  self.args.append("-fno-slp-vectorize")

def install() -> None: ClangCompiler.__init__ = init  # type: ignore[method-assign]
