"""The C compiler of tinygrad's CPU device: `CC`, `clang` from PATH, or the ziglang wheel behind a wrapper of ours."""
from __future__ import annotations
import hashlib, importlib.util, os, pathlib, shlex, shutil, subprocess
from tinygrad_llm.errors import InputError

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
  """An executable that runs `zig clang`, for tinygrad calls CC as one word; one for each zig: the cache is shared."""
  cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "tinygrad_llm"
  path = cache / f"zig-clang-{hashlib.sha256(bytes(zig)).hexdigest()[:8]}"
  text = f'#!/bin/sh\nexec {shlex.quote(str(zig))} clang "$@"\n'
  try:
    if not path.exists() or path.read_text() != text:
      cache.mkdir(parents=True, exist_ok=True)
      (fresh := path.with_name(f"{path.name}.{os.getpid()}")).write_text(text)
      fresh.chmod(0o755)
      fresh.replace(path)
  except OSError as e:
    raise InputError(f"{cache}: cannot be written ({e.strerror}); set XDG_CACHE_HOME to a folder that can") from e
  return path

def compiler_failed(e: subprocess.CalledProcessError) -> str:
  """The message for a compiler that ran and failed on code of tinygrad's."""
  program = e.cmd[0] if isinstance(e.cmd, (list, tuple)) else e.cmd
  return f"{program}: the compiler fails with code {e.returncode}; set CC to the path of a clang that works"
