"""
The device, and the C compiler of tinygrad's CPU device: `CC`, `clang` from PATH, or the ziglang wheel behind a wrapper
of ours. Everything that the environment can get wrong is looked at here, before a model is.
"""
from __future__ import annotations
import importlib.util, os, pathlib, shlex, shutil, subprocess
from tinygrad_llm import patches
from tinygrad_llm.errors import InputError

# whole numbers that tinygrad reads in the middle of its work: {name: the least}
NUMBERS = {"DEBUG": 0, "BEAM": 0, "JIT": 0, "JITBEAM": 0, "PARALLEL": 0, "NUM_CPU_THREADS": 1, "MV": 0,
           "MV_BLOCKSIZE": 1, "MV_THREADS_PER_ROW": 1, "MV_ROWS_PER_THREAD": 1}
OLD_NAMES = {"CLANG": "CPU", "LLVM": "CPU:LLVM", "GPU": "CL", "HIP": "AMD", "NULL": "NULL", "PYTHON": "PYTHON"}

def use_c_compiler() -> None:
  """Sets `CC` for this process and the compile workers it spawns. Raises InputError where there is no compiler."""
  if cc := os.environ.get("CC"):
    fix = "set CC to the path of clang, without arguments, or unset it"
    if shutil.which(cc) is None: raise InputError(f"CC={cc}: no such program; {fix}")
    if "clang" not in _version(cc): raise InputError(f"CC={cc}: it is not clang, which the CPU device needs; {fix}")
    return
  if (clang := shutil.which("clang")) is not None:
    if "clang" in _version(clang): return
    raise InputError(f"{clang}: this clang does not run; repair it, or set CC to the path of one that does")
  if (spec := importlib.util.find_spec("ziglang")) is None or spec.origin is None:
    raise InputError("CC: no clang on PATH and no ziglang wheel; install clang, or run: pip install ziglang")
  os.environ["CC"] = str(_wrapper(pathlib.Path(spec.origin).parent / "zig"))

def _version(cc: str) -> str:
  try:
    done = subprocess.run([cc, "--version"], capture_output=True, stdin=subprocess.DEVNULL, timeout=10)
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""
  except (OSError, subprocess.TimeoutExpired): return ""

def _wrapper(zig: pathlib.Path) -> pathlib.Path:
  """An executable that runs `zig clang`: tinygrad calls CC as one word."""
  cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "tinygrad_llm"
  path, text = cache / "zig-clang", f'#!/bin/sh\nexec {shlex.quote(str(zig))} clang "$@"\n'
  try:
    if not path.exists() or path.read_text() != text:
      cache.mkdir(parents=True, exist_ok=True)
      (fresh := path.with_name(f"zig-clang.{os.getpid()}")).write_text(text)
      fresh.chmod(0o755)
      fresh.replace(path)
  except OSError as e:
    raise InputError(f"{cache}: cannot be written ({e.strerror}); set XDG_CACHE_HOME to a folder that can") from e
  return path

def check_device() -> str:
  """The name of tinygrad's default device, opened. InputError names the environment variable at fault and the fix."""
  asked = os.environ.get("DEV", "")
  for name, least in NUMBERS.items():
    if (value := os.environ.get(name)) is not None and not _is_number(value, least):
      raise InputError(f"{name}={value}: it is not a whole number from {least}; correct it or unset it")
  try:
    from tinygrad import Device
    from tinygrad.device import ALL_DEVICES
    from tinygrad.helpers import CACHEDB, CACHELEVEL, CCACHE
    patches.apply()
  except Exception as e:
    raise InputError(f"{_culprit(e)}: tinygrad does not start ({_reason(e)}); correct the variable") from e
  current = dict.fromkeys(ALL_DEVICES)
  for name in (*current, *(OLD_NAMES if not asked else ())):
    if (value := os.environ.get(name, "0")) != "0" and _is_number(value, 1):
      raise InputError(f"{name}={value}: it does not choose a device any more; write DEV={OLD_NAMES.get(name, name)}")
  try:
    if Device.DEFAULT.split(":")[0] == "CPU": use_c_compiler()
    if CCACHE and CACHELEVEL >= 1: _check_cache(pathlib.Path(CACHEDB))
    Device[Device.DEFAULT]
    return Device.DEFAULT
  except InputError: raise
  except ModuleNotFoundError as e:
    raise InputError(f"DEV={asked}: no such device; use one of {', '.join(ALL_DEVICES)}") from e
  except subprocess.CalledProcessError as e: raise InputError(compiler_failed(e)) from e
  except Exception as e:
    at = name if (name := _culprit(e)) != "environment" else f"DEV={asked}"
    raise InputError(f"{at}: it does not open ({_reason(e)}); use one of {', '.join(ALL_DEVICES)}") from e

def compiler_failed(e: subprocess.CalledProcessError) -> str:
  """The message for a compiler that ran and failed on code of tinygrad's."""
  program = e.cmd[0] if isinstance(e.cmd, (list, tuple)) else e.cmd
  return f"{program}: the compiler fails with code {e.returncode}; set CC to the path of a clang that works"

def _check_cache(path: pathlib.Path) -> None:
  """
  tinygrad keeps what it compiles in a database at `path`, and stops where it cannot. A database that exists is not
  opened: closing it would drop the locks that SQLite holds on it in this process, and another one could damage it.
  """
  try:
    if path.is_file() and os.access(path, os.W_OK): return
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab"): return
  except OSError as e:
    raise InputError(f"{path}: the kernel cache cannot be written ({e.strerror}); set CACHEDB to a file that can, or "
                     "CCACHE=0") from e

def _is_number(text: str, least: int) -> bool:
  try: return int(text) >= least
  except ValueError: return False

def _culprit(e: Exception) -> str:
  """The variable whose value an error of tinygrad's quotes."""
  found = [f"{k}={v}" for k, v in os.environ.items() if k.isupper() and v and repr(v) in str(e)]
  return found[0] if len(found) == 1 else "environment"

def _reason(e: Exception) -> str: return " ".join(str(e).split())[:200] or type(e).__name__
