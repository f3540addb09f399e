"""The end of a command's process."""
from __future__ import annotations
import atexit, os, pathlib, sys, threading
from types import FrameType

SCRIPTS = "tinygrad-llm"  # what the names of installed commands begin with

def leave() -> None:
  """
  Ends the process here, with exit code 0, if nothing but the interpreter's own end is to follow.

  That end takes a model's objects apart one by one, for some 0.3 s. Exit handlers run and streams are flushed as ever.
  It returns where the command was called by other code (a test, a debugger, a profiler), where threads are waited for,
  and where a device is open that may want more than its exit handler.
  """
  if not _is_command(sys._getframe(1)) or sys.flags.inspect or os.environ.get("PYTHONINSPECT"): return
  if sys.gettrace() is not None or sys.getprofile() is not None or not _is_alone() or not _has_only_cpu(): return
  atexit._run_exitfuncs()
  for stream in (sys.stdout, sys.stderr):
    try: stream.flush()
    except (AttributeError, OSError, ValueError): return  # a stream that is closed, or takes nothing: not our end
  os._exit(0)

def _is_command(frame: FrameType | None) -> bool:
  """Whether all that called a frame's function is `python -m` a module of this package, or the script of a command."""
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
