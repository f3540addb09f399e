"""The C compiler of tinygrad's CPU device: `CC`, `clang` from PATH, or the ziglang wheel behind a wrapper of ours."""
from __future__ import annotations
import importlib.util, os, pathlib, shlex, shutil, subprocess
from tinygrad_llm.errors import InputError

def use_c_compiler() -> None:
  """Sets `CC` for this process and the compile workers it spawns. Raises InputError where there is no compiler."""
  if cc := os.environ.get("CC"):
    fix = "set CC to the path of clang, without arguments, or unset it"
    if shutil.which(cc) is None: raise InputError(f"CC={cc}: no such program; {fix}")
    if "clang" not in _version(cc): raise InputError(f"CC={cc}: it is not clang, which the CPU device needs; {fix}")
    return
  if shutil.which("clang") is not None: return
  if (spec := importlib.util.find_spec("ziglang")) is None or spec.origin is None:
    raise InputError("CC: no clang on PATH and no ziglang wheel; install clang, or run: pip install ziglang")
  os.environ["CC"] = str(_wrapper(pathlib.Path(spec.origin).parent / "zig"))

def _version(cc: str) -> str:
  try: return subprocess.run([cc, "--version"], capture_output=True, text=True, timeout=30).stdout
  except (OSError, subprocess.TimeoutExpired): return ""

def _wrapper(zig: pathlib.Path) -> pathlib.Path:
  """An executable that runs `zig clang`: tinygrad calls CC as one word."""
  cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "tinygrad_llm"
  path, text = cache / "zig-clang", f'#!/bin/sh\nexec {shlex.quote(str(zig))} clang "$@"\n'
  if not path.exists() or path.read_text() != text:
    cache.mkdir(parents=True, exist_ok=True)
    (fresh := path.with_name(f"zig-clang.{os.getpid()}")).write_text(text)
    fresh.chmod(0o755)
    fresh.replace(path)
  return path

def check_device() -> str:
  """The name of tinygrad's default device, opened. InputError names the environment variable at fault and the fix."""
  asked = os.environ.get("DEV", "")
  try:
    from tinygrad import Device
    from tinygrad.device import ALL_DEVICES
  except Exception as e:
    raise InputError(f"environment: tinygrad does not start ({_reason(e)}); correct the variable") from e
  if old := [name for name in ALL_DEVICES if os.environ.get(name)]:
    raise InputError(f"{old[0]}={os.environ[old[0]]}: it does not choose a device any more; write DEV={old[0]}")
  try:
    if Device.DEFAULT.split(":")[0] == "CPU": use_c_compiler()
    Device[Device.DEFAULT]
    return Device.DEFAULT
  except InputError: raise
  except ModuleNotFoundError as e:
    raise InputError(f"DEV={asked}: no such device; use one of {', '.join(ALL_DEVICES)}") from e
  except Exception as e:
    raise InputError(f"DEV={asked}: it does not open ({_reason(e)}); use one of {', '.join(ALL_DEVICES)}") from e

def _reason(e: Exception) -> str: return " ".join(str(e).split())[:200] or type(e).__name__
