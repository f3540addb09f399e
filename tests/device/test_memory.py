"""Memory of a process and of a device, checked with buffers of known sizes."""
import builtins
import errno
import re
import resource
import sys
from tests.support import child
import numpy as np
import pytest
from tinygrad import Tensor, dtypes
from tinygrad_llm.command import guarded
from tinygrad_llm.device import memory
from tinygrad_llm.device.buffers import empty

def grow(megabytes: int) -> list[int | None]:
  """The peak memory before, while and after an array of that size is held."""
  before = memory.peak_memory_bytes()
  array = np.ones(megabytes << 17)
  held = memory.peak_memory_bytes()
  del array
  return [before, held, memory.peak_memory_bytes()]

@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such count")
def test_peak_memory_grows_and_stays():
  before, held, after = child.call(grow, 300).value
  assert abs(held - before - (300 << 20)) < 16 << 20
  assert abs(after - held) < 16 << 20

@pytest.mark.skipif(sys.platform != "linux", reason="VmHWM is Linux's")
def test_child_peak_excludes_parent():
  """A child's peak does not include its parent's, as ru_maxrss would."""
  array = np.ones(400 << 17)
  assert memory.peak_memory_bytes() > array.nbytes > child.call(grow, 1).value[0]

def test_getrusage_units(monkeypatch):
  """Without /proc, getrusage counts KiB, and bytes on macOS."""
  resource = pytest.importorskip("resource")
  real = builtins.open
  def no_proc(path, *args, **options):
    if str(path).startswith("/proc"): raise FileNotFoundError(path)
    return real(path, *args, **options)
  monkeypatch.setattr(builtins, "open", no_proc)
  monkeypatch.setattr(resource, "getrusage", lambda who: type("Usage", (), {"ru_maxrss": 5000}))
  monkeypatch.setattr(sys, "platform", "linux")
  assert memory.peak_memory_bytes() == 5000 * 1024
  monkeypatch.setattr(sys, "platform", "darwin")
  assert memory.peak_memory_bytes() == 5000
  monkeypatch.setitem(sys.modules, "resource", None)
  assert memory.peak_memory_bytes() is None

def test_device_memory_counts_buffers():
  device = Tensor([0]).device
  before = memory.device_memory_bytes(device)
  tensor = empty((1 << 20,), dtypes.uint32)
  assert memory.device_memory_bytes(device) == before + (4 << 20)
  del tensor
  assert memory.device_memory_bytes(device) == before

def limited(megabytes: int) -> str:
  """The message of loading a model with that much address space left after all imports; "loaded" without an error."""
  import tinygrad_llm, tinygrad_llm.engine.llm  # noqa: E401, F401
  from tinygrad_llm.command import _line
  with open("/proc/self/statm") as f: used = int(f.read().split()[0]) * resource.getpagesize()
  resource.setrlimit(resource.RLIMIT_AS, (limit := used + (megabytes << 20), limit))
  try: tinygrad_llm.load(max_context=64)
  except (tinygrad_llm.InputError, MemoryError, OSError) as e: return _line(e)
  return "loaded"

@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
@pytest.mark.parametrize(("megabytes", "words"), [(1, "memory: .*ulimit -v|no memory to map it"),
                                                  (60, "memory: the address space is limited to .*ulimit -v"),
                                                  (600, "loaded")])
def test_address_space_limit(megabytes, words):
  """The limit is reported as lack of memory; libraries that would abort the process are not started."""
  assert re.search(words, child.call(limited, megabytes).value)

@pytest.mark.parametrize(("error", "words"), [
  (MemoryError(), "memory: "), (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory: "),
  (RuntimeError("can't start new thread"), "memory: "), (OSError(errno.EAGAIN, "x"), "processes and threads: "),
  (OSError(errno.EMFILE, "Too many open files"), "open files: Too many open files; raise ulimit -n"),
  (OSError(errno.EFBIG, "File too large"), "size of a file: File too large; raise ulimit -f")])
def test_memory_limits_give_one_line(error, words, capsys):
  def main() -> None: raise error
  with pytest.raises(SystemExit) as e: guarded(main)
  assert e.value.code == 2
  assert (said := capsys.readouterr().err).startswith(f"error: {words}")
  assert said.count("\n") == 1

def test_other_runtime_errors_are_not_caught():
  def main() -> None: raise RuntimeError("a mistake")
  with pytest.raises(RuntimeError, match="a mistake"): guarded(main)
