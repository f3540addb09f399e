"""compile_time/clang_passes: long kernels compile faster to the same machine code; any clang works."""
import os
import pathlib
import subprocess
import time

import pytest
from tinygrad.runtime.support import compiler_cpu
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.cache import schedules
from tinygrad_llm.patches.compile_time import clang_passes

pytestmark = pytest.mark.skipif(not is_on("clang_passes"), reason="it is off")

STORES = "".join(f"*(v*)(b + 16*i + {8192 * j}) = *(v*)(a + 16*i + {8192 * j}) * {j}.5f;" for j in range(500))
LONG = f"""typedef float v __attribute__((aligned(4),ext_vector_type(16)));
void f(float* restrict b, float* restrict a, int n) {{ for (int i = 0; i < n; i++) {{ {STORES} }} }}"""

def compiler(path: pathlib.Path, lines: str) -> str:
  """A shell script that logs each run, executes `lines`, and then runs the compiler."""
  path.write_text(f'#!/bin/sh\necho "$@" >> "$RUNS"\n{lines}\nexec {os.environ["CC"]} "$@"\n')
  path.chmod(0o755)
  return str(path)

@pytest.fixture(autouse=True)
def not_asked():
  clang_passes.is_known.cache_clear()
  yield
  clang_passes.is_known.cache_clear()

def test_long_kernel_compiles_faster_to_same_code():
  if not clang_passes.is_known(os.environ["CC"]): pytest.skip("this clang does not know the option")
  made = compiler_cpu.ClangCompiler(["x86_64", "x86-64-v3"])
  usual = compiler_cpu.ClangCompiler(["x86_64", "x86-64-v3"])
  usual.args = [arg for arg in usual.args if arg not in clang_passes.OPTION]
  def seconds(of: compiler_cpu.ClangCompiler) -> tuple[float, bytes]:
    begun = time.perf_counter()
    return (code := of.compile(LONG)) and (time.perf_counter() - begun, code)
  (short, code), (long, same) = seconds(made), seconds(usual)
  assert code == same and 1.5 * short < long

def test_unsupported_option_is_probed_once(tmp_path, monkeypatch):
  """A compiler without the option is asked once; the answer is cached for other processes."""
  cc = compiler(tmp_path / "clang", 'case "$*" in *opt-disable*) exit 1;; esac')
  monkeypatch.setenv("RUNS", str(tmp_path / "runs"))
  monkeypatch.setattr(schedules.VERSIONS.__class__, "folder", property(lambda self: tmp_path / self.name))
  assert not clang_passes.is_known(cc)
  clang_passes.is_known.cache_clear()
  assert not clang_passes.is_known(cc) and len((tmp_path / "runs").read_text().splitlines()) == 1
  monkeypatch.setenv("CC", cc)
  made = compiler_cpu.ClangCompiler(["x86_64", "x86-64-v3"])
  assert not set(clang_passes.OPTION) & set(made.args)

@pytest.mark.parametrize("cc", ["/none/clang", "/"])
def test_no_compiler(cc): assert not clang_passes.is_known(cc)

def test_option_is_passed_to_clang(monkeypatch):
  given: list[list[str]] = []
  def note(command: list[str], **_) -> bytes:
    given.append(command)
    return b""
  monkeypatch.setattr(clang_passes, "is_known", lambda cc: True)
  made = compiler_cpu.ClangCompiler(["x86_64", "x86-64-v3"])
  monkeypatch.setattr(subprocess, "check_output", note)
  made.compile("")
  assert all(option in given[0] for option in (*clang_passes.OPTION, "-mprefer-vector-width=512"))
