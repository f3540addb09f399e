"""Fast exit of a command's process."""
from __future__ import annotations
import atexit, os, pathlib, sys, threading
from types import FrameType

SCRIPTS = "tinygrad-llm"  # prefix of the installed commands' names

def leave() -> None:
  """
  Ends the process with exit code 0, if only the interpreter's shutdown would follow.

  That shutdown frees a model's objects one by one, for some 0.3 s. Exit handlers run and streams are flushed as usual.
  The function returns if other code called the command (a test, a debugger, a profiler), or if non-daemon threads run.
  It also returns if a device is open that may need more than its exit handler.
  """
  if not _is_command(sys._getframe(1)) or sys.flags.inspect or os.environ.get("PYTHONINSPECT"): return
  if sys.gettrace() is not None or sys.getprofile() is not None or not _is_alone() or not _has_only_cpu(): return
  atexit._run_exitfuncs()
  for stream in (sys.stdout, sys.stderr):
    try: stream.flush()
    except (AttributeError, OSError, ValueError): return  # a closed or full stream: leave it to Python
  os._exit(0)

def _is_command(frame: FrameType | None) -> bool:
  """Whether a frame was called only by `python -m` of this package's module, or by a command's script."""
  first = None
  while frame is not None and _is_ours(frame): first, frame = frame, frame.f_back
  if frame is not None and pathlib.Path(frame.f_code.co_filename).name.startswith(SCRIPTS):
    first, frame = frame, frame.f_back
  if first is None or first.f_code.co_name != "<module>" or first.f_globals.get("__name__") != "__main__": return False
  while frame is not None and frame.f_globals.get("__name__") == "runpy": frame = frame.f_back
  return frame is None

def _is_ours(frame: FrameType) -> bool:
  spec = frame.f_globals.get("__spec__")
  return spec is not None and spec.name.startswith("tinygrad_llm.")

def _is_alone() -> bool:
  return all(thread.daemon or thread is threading.main_thread() for thread in threading.enumerate())

def _has_only_cpu() -> bool:
  device = sys.modules.get("tinygrad.device")
  return device is None or {*device.Device._opened_devices} <= {"CPU", "PYTHON", "DISK", "NPY"}
