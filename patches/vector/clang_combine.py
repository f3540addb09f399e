"""
LLVM's VectorCombine pass is off for a kernel that clang does not finish compiling.

Why: With AVX-512, clang 22 does not finish on some sums of choices and comparisons, such as the places and ranks of 16
  experts. The first run of a model with such a sum never ends. With VectorCombine off for all kernels, generation was
  at 0.93 of its speed.
How: After 20 seconds the pass starts the compiler again with -mllvm -disable-vector-combine, which LLVM has since 10.
Numbers: Compiling the ranks of 16 experts, AVX-512, clang 22.1.8: over 13 minutes -> 20 s.
Upstream: not sent, and to be reported to LLVM.
"""
from __future__ import annotations
import subprocess, types
from tinygrad.runtime.support import compiler_cpu
from tinygrad_llm.patches import places

SEAMS = {
  "tinygrad.runtime.support.compiler_cpu:ClangCompiler": "532ea5ae9875",
}

SECONDS = 20

def check_output(command: list[str], input: bytes) -> bytes:
  """The compiler's output. If it takes longer than SECONDS, the compiler runs again without VectorCombine."""
  try: return subprocess.check_output(command, input=input, timeout=SECONDS)
  except subprocess.TimeoutExpired:
    return subprocess.check_output([command[0], "-mllvm", "-disable-vector-combine", *command[1:]], input=input)

_compile, _subprocess = compiler_cpu.ClangCompiler.compile, types.SimpleNamespace(check_output=check_output)

def compile(self: compiler_cpu.ClangCompiler, src: str) -> bytes:
  compiler_cpu.subprocess = _subprocess  # type: ignore[assignment]
  return _compile(self, src)

def install() -> None: places.replace(compiler_cpu.ClangCompiler, "compile", compile)
