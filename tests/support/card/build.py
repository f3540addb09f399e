"""Builds the simulated GPU's library, and gives the environment in which a process uses it."""
import functools
import hashlib
import importlib.util
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
NAME = "libcuda.so.77"  # tinygrad finds it as "cuda"; NVRTC itself would load libcuda.so.1

PROGRAM = f"import sys; sys.path.insert(0, {str(HERE.parents[2])!r}); from tests.support.card import translate; " \
  "translate.main()"

def missing() -> str:
  """Why the library cannot be built here; "" if it can."""
  if sys.platform != "linux" or platform.machine() != "x86_64": return "its fibers are for x86-64 on Linux"
  return "" if pathlib.Path("/usr/include/stdio.h").exists() else "no headers of the C library"

def compiler() -> list[str]:
  """The CPU device's clang with options. zig's clang needs the folder of its own headers."""
  from tinygrad_llm.device.compiler import use_c_compiler
  use_c_compiler()
  program = os.environ.get("CC") or shutil.which("clang") or "clang"
  spec = importlib.util.find_spec("ziglang") if "zig-clang" in program else None
  headers = ["-isystem", str(pathlib.Path(spec.origin or "").parent / "lib/include")] if spec is not None else []
  return [program, *headers, "-fPIC", "-shared", "-march=native", "-fwrapv", "-fno-strict-aliasing",
          "-ffp-contract=off"]

@functools.cache
def folder() -> pathlib.Path:
  """A folder with the library, beside the test run's other caches (session.py) and shared by all its processes."""
  sources = [*sorted(HERE.glob("*.[ch]")), *(HERE / f"{x}.py" for x in ("parse", "instructions", "translate"))]
  key = hashlib.sha256(b"".join(p.read_bytes() for p in sources) + repr(compiler()).encode()).hexdigest()[:16]
  made = pathlib.Path(os.environ.get("CACHEDB") or tempfile.mkdtemp()).parent / f"card-{key}"
  made.mkdir(mode=0o700, parents=True, exist_ok=True)
  if not (made / NAME).exists():
    fresh = made / f"{NAME}.{os.getpid()}"
    subprocess.run([*compiler(), "-O2", "-fvisibility=hidden", "-o", str(fresh), *map(str, HERE.glob("*.c")),
                    "-lm", "-ldl", "-lpthread"], check=True)
    fresh.replace(made / NAME)
  (made / "kernels").mkdir(exist_ok=True)
  return made

def settings() -> dict[str, str]:
  """The environment variables of a process that uses the simulated GPU."""
  from tinygrad_llm.device.cuda import find_cuda
  find_cuda()
  compile_ = [*compiler(), "-O1", "-w", f"-I{HERE}"]
  path = os.pathsep.join(x for x in (str(folder()), os.environ.get("LD_LIBRARY_PATH", "")) if x)
  found = {k: os.environ[k] for k in ("NVRTC_PATH", "CUDA_PATH", "NVJITLINK_PATH", "CC") if k in os.environ}
  return found | {"DEV": "CUDA", "LD_LIBRARY_PATH": path, "CARD_CACHE": str(folder() / "kernels"),
                  "CARD_TRANSLATE": shlex.join([sys.executable, "-S", "-E", "-c", PROGRAM, *compile_])}

def nv_settings() -> dict[str, str]:
  """settings() for NV. The process must call nv.install() first; tinygrad imports its own mock from the folder mock."""
  from tests.support import child
  path = os.pathsep.join((str(HERE / "mock"), child.environment()["PYTHONPATH"]))
  return settings() | {"DEV": "MOCK+NV", "PYTHONPATH": path}
