"""Memory of a process and of a device, against buffers whose size is known."""
import builtins
import sys
import child
import numpy as np
import pytest
from tinygrad import Tensor, dtypes
from tinygrad_llm.target import memory
from tinygrad_llm.target.buffers import empty

def grow(megabytes: int) -> list[int | None]:
  """The peak before, while and after an array of that size is held."""
  before = memory.peak_memory_bytes()
  array = np.ones(megabytes << 17)
  held = memory.peak_memory_bytes()
  del array
  return [before, held, memory.peak_memory_bytes()]

@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such count")
def test_the_peak_grows_with_what_is_written_and_stays():
  before, held, after = child.call(grow, 300).value
  assert abs(held - before - (300 << 20)) < 16 << 20
  assert abs(after - held) < 16 << 20

@pytest.mark.skipif(sys.platform != "linux", reason="VmHWM is Linux's")
def test_a_child_does_not_start_from_its_parents_peak():
  """As ru_maxrss would."""
  array = np.ones(400 << 17)
  assert memory.peak_memory_bytes() > array.nbytes > child.call(grow, 1).value[0]

def test_units_of_getrusage(monkeypatch):
  """Without /proc: KiB, and bytes on macOS."""
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

def test_device_memory_is_that_of_the_buffers():
  device = Tensor([0]).device
  before = memory.device_memory_bytes(device)
  tensor = empty((1 << 20,), dtypes.uint32)
  assert memory.device_memory_bytes(device) == before + (4 << 20)
  del tensor
  assert memory.device_memory_bytes(device) == before
