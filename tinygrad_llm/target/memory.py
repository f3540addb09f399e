"""What a run takes of memory: the host's by the operating system, a device's by tinygrad's count of its buffers."""
from __future__ import annotations
import re, sys

def peak_memory_bytes() -> int | None:
  """
  The most host memory that this process has had resident so far, in bytes; None where the system does not tell.

  Pages of mapped files count while they are resident, compile workers do not. Linux: VmHWM, which belongs to this
  program alone (ru_maxrss starts from the peak of the process that started it). Windows: None.
  """
  try:
    with open("/proc/self/status") as f:
      if m := re.search(r"^VmHWM:\s*(\d+) kB$", f.read(), re.M): return int(m[1]) << 10
  except OSError: pass
  try: import resource
  except ImportError: return None
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS, KiB on other systems
  return peak if sys.platform == "darwin" else peak << 10

def device_memory_bytes(device: str) -> int:
  """
  Bytes of the buffers that tinygrad holds on a device now: weights, KV cache, activations. On the CPU they are host
  memory. What drivers, code and other programs take is not in it, nor are files that are mapped and not copied.
  """
  from tinygrad import Device
  from tinygrad.helpers import GlobalCounters
  return GlobalCounters.mem_used_per_device[Device.canonicalize(device)]
