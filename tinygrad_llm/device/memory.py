"""Memory use of a run: host memory as the operating system reports it, device memory as tinygrad counts its buffers."""
from __future__ import annotations
import ctypes, re, sys
from tqdm import tqdm
from tinygrad_llm.errors import InputError

LEAST = 96 << 20  # bytes of address space for code, threads and activations of the smallest model
PER_TOKEN = 512   # bytes of a tokenizer per token of its vocabulary
_M_ARENA_MAX = -8  # glibc's malloc.h

def address_space() -> tuple[int, int] | None:
  """The limit of this process's address space (ulimit -v) and the rest of it, in bytes; None without a limit."""
  try:
    import resource
    if (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) == resource.RLIM_INFINITY: return None
    with open("/proc/self/statm") as f: return limit, max(0, limit - int(f.read().split()[0]) * resource.getpagesize())
  except (ImportError, OSError): return None

def check_address_space(weights: int, vocabulary: int) -> bool:
  """
  Whether the address space is limited. weights: bytes of the model; vocabulary: tokens.

  InputError if the model is sure not to fit, because libraries that run out of memory end the process. With a limit,
  malloc no longer reserves 64 MiB per thread.
  """
  if (found := address_space()) is None: return False
  limit, left = found
  if (needed := LEAST + weights + PER_TOKEN * vocabulary) > left:
    raise InputError(f"memory: the address space is limited to {limit >> 20} MiB (ulimit -v), {left >> 20} MiB of them "
                     f"are left, and the model needs {needed >> 20} MiB; raise the limit or use a smaller model")
  tqdm.monitor_interval = 0  # saves a thread
  try: ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
  except (AttributeError, OSError): pass  # another libc
  return True

def peak_memory_bytes() -> int | None:
  """
  The peak resident host memory of this process in bytes; None where the system does not report it.

  Pages of mapped files count while they are resident; compile workers do not count. Linux: VmHWM, which belongs to this
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
  memory. Drivers, code, other programs and mapped files that are not copied do not count.
  """
  from tinygrad import Device
  from tinygrad.helpers import GlobalCounters
  return int(GlobalCounters.mem_used_per_device[Device.canonicalize(device)])
