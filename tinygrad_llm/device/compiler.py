"""The C compiler for tinygrad's CPU device: `CC`, `clang` from PATH, or the ziglang wheel behind our wrapper."""
from __future__ import annotations
import contextlib, errno, hashlib, importlib.util, os, pathlib, shlex, shutil, subprocess, tempfile, threading
from collections.abc import Iterator
from tinygrad_llm.errors import InputError

def use_c_compiler() -> None:
  """Sets `CC` for this process and the compile workers it spawns. InputError if there is no working compiler."""
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
  """
  An executable that runs `zig clang`, because tinygrad calls CC as one word.

  The cache folder is shared, so each zig has a wrapper of its own. Without a writable home folder, the wrapper is in a
  private folder for temporary files. InputError if neither can be written.
  """
  troubles = dict[str, str]()
  for folder in _folders():
    try: return _written(zig, folder)
    except OSError as e: troubles[str(folder)] = e.strerror or str(e)
  told = "; ".join(f"{folder}: cannot be written ({why})" for folder, why in troubles.items())
  raise InputError(f"{told}; set XDG_CACHE_HOME to a folder that can, or CC to the path of clang")

def _folders() -> Iterator[pathlib.Path]:
  """
  Folders for the wrapper: the user's cache folder, if there is one, then a folder for temporary files.

  A relative XDG_CACHE_HOME is ignored, as its specification says.
  """
  cache = os.environ.get("XDG_CACHE_HOME", "")
  if not os.path.isabs(cache): cache = os.path.expanduser("~/.cache")
  if os.path.isabs(cache): yield pathlib.Path(cache, "tinygrad_llm")
  user = os.getuid() if hasattr(os, "getuid") else "user"
  with contextlib.suppress(OSError): yield pathlib.Path(tempfile.gettempdir(), f"tinygrad_llm-{user}")

def _written(zig: pathlib.Path, cache: pathlib.Path) -> pathlib.Path:
  """Writes the wrapper to a folder. OSError if that fails, if it cannot be run, or if others may write there."""
  path = cache / f"zig-clang-{hashlib.sha256(bytes(zig)).hexdigest()[:8]}"
  text = f'#!/bin/sh\nexec {shlex.quote(str(zig))} clang "$@"\n'
  cache.mkdir(mode=0o700, parents=True, exist_ok=True)
  if hasattr(os, "getuid") and ((stat := cache.lstat()).st_uid not in (0, os.getuid()) or stat.st_mode & 0o022):
    raise PermissionError(errno.EPERM, "others may write there")
  if not path.exists() or path.read_text() != text:
    (fresh := path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")).write_text(text)
    fresh.chmod(0o755)
    fresh.replace(path)
  if not os.access(path, os.X_OK): raise PermissionError(errno.EACCES, "programs there cannot be run")
  return path

def compiler_failed(e: subprocess.CalledProcessError) -> str:
  """The message for a compiler that ran and failed on tinygrad's code."""
  program = e.cmd[0] if isinstance(e.cmd, (list, tuple)) else e.cmd
  return f"{program}: the compiler fails with code {e.returncode}; set CC to the path of a clang that works"
