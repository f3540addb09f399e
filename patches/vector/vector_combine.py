"""
LLVM's VectorCombine pass is off where clang compiles kernels.

Why: clang 22 does not end in it on some sums of choices and comparisons with AVX-512, as of the places and ranks of 16
  experts: the first run of a model that has one never does. The vectors of a kernel are those that it says.
How: -mllvm -disable-vector-combine, an option of every LLVM since 10.
Numbers: compiling the ranks of 16 experts, AVX-512, clang 22.1.8: over 13 minutes -> 0.1 s.
Upstream: not sent, and to be told to LLVM.
"""
from __future__ import annotations
from tinygrad.runtime.support.compiler_cpu import ClangCompiler

SEAMS = {
  "tinygrad.runtime.support.compiler_cpu:ClangCompiler": "532ea5ae9875",
}

_init = ClangCompiler.__init__

def init(self: ClangCompiler, arch: list[str], cachekey: str = "compile_clang_obj") -> None:
  _init(self, arch, f"{cachekey}_no_vector_combine")
  self.args += ["-mllvm", "-disable-vector-combine"]

def install() -> None: ClangCompiler.__init__ = init  # type: ignore[method-assign]
