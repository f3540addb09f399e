"""Builds the executor and kernels as shared libraries with the project's clang."""
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

from tests.support.msl.source import as_cpp, refused
from tinygrad_llm.device import metal  # before tinygrad: it applies the patches
from tinygrad_llm.device.compiler import use_c_compiler
from tinygrad.helpers import diskcache_get, diskcache_put

FOLDER = pathlib.Path(__file__).parent
C = ("-x", "c++", "-std=c++20", "-fPIC", "-shared", "-nostdlib", "-nostdinc", "-ffreestanding", "-fno-exceptions",
     "-fno-rtti", "-fno-math-errno", "-ffp-contract=off",
     *(("-undefined", "dynamic_lookup") if sys.platform == "darwin" else ()))
X86 = platform.machine().lower() in ("x86_64", "amd64")
HALVES = ("-mf16c", "-Xclang", "-ffloat16-excess-precision=none") if X86 else ()
# instruments every access, and does not merge accesses into wider ones than Metal's
OF_KERNELS = ("-O1", "-I", str(FOLDER), *HALVES, "-fsanitize=thread", "-fno-sanitize-link-runtime", "-fno-vectorize",
              "-fno-slp-vectorize", *(part for name in ("func-entry-exit=0", "read-before-write=1")
                                      for part in ("-mllvm", f"-tsan-instrument-{name}")),
              "-Wall", "-Wno-unknown-attributes", "-Wno-ignored-attributes", "-Wno-unused", "-Wno-parentheses-equality",
              "-Werror")

class Refused(Exception):
  """Our checks, or clang, refuse a kernel's source; the message has their errors."""

def shared(text: str, *options: str) -> bytes:
  """Compiles C++ to a shared library. Refused if clang finds errors."""
  use_c_compiler()
  with tempfile.TemporaryDirectory() as folder:
    command = [os.environ.get("CC", "clang"), *C, *options, "-", "-o", path := f"{folder}/library"]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode: raise Refused(done.stderr[-4000:])
    return pathlib.Path(path).read_bytes()

def executor() -> bytes:
  """The executor's library, cached in tinygrad's kernel cache so that later processes reuse it."""
  text = (FOLDER / "executor.cpp").read_text()
  if (known := diskcache_get("msl_executor", text)) is not None: return known
  return diskcache_put("msl_executor", text, shared(text, "-O2", "-march=native"))

def kernel(source: str) -> bytes:
  """Compiles Metal source to a kernel's library. Refused if Apple's compiler would reject it, or clang does."""
  if found := refused(source): raise Refused("; ".join(found))
  use_c_compiler()
  if errors := metal.errors(source): raise Refused(errors)
  return shared(as_cpp(source), *OF_KERNELS)
