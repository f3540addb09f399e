"""
Free memory of the host and of a device, as the system and the device's driver tell it.

The limits of a container count. They are in Linux's cgroups, versions 1 and 2: a group has its own limit and all limits
above it (https://docs.kernel.org/admin-guide/cgroup-v2.html, memory). The address space counts, too (ulimit -v).
"""
from __future__ import annotations
import ctypes, pathlib, subprocess, sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from tinygrad_llm.device.memory import address_space

CPU = "CPU"  # tinygrad's device whose memory is the host's

@dataclass(frozen=True)
class FreeMemory:
  """
  total: bytes of the memory, or the limit. free: bytes that can be taken now, file caches that can be dropped included.

  bound: bytes beyond which memory is sure to run out, swap space included; None: unknown.
  """
  total: int
  free: int
  bound: int | None = None

  def within(self, limit: int, left: int, bound: int | None = None) -> FreeMemory:
    """The same under a limit of which `left` bytes are left, or `bound` with swap space."""
    sure = None if self.bound is None else min(self.bound, max(left if bound is None else bound, 0))
    return FreeMemory(min(self.total, limit), min(self.free, max(left, 0)), sure)

def free_memory(device: str) -> FreeMemory | None:
  """The free memory of a tinygrad device; None where it is unknown."""
  if device.split(":")[0] == CPU: return host_memory()
  with suppress(ImportError, AttributeError, OSError, RuntimeError): return _of_device(device)
  return None

def host_memory(root: pathlib.Path = pathlib.Path("/")) -> FreeMemory | None:
  """The host's free memory for this process; None where it is unknown. root: Linux's root folder."""
  try: found = _linux(root) if sys.platform == "linux" else _windows() if sys.platform == "win32" else _macos()
  except (OSError, ValueError, KeyError, AttributeError, subprocess.SubprocessError): return None
  return found if (space := address_space()) is None else found.within(*space)

# *** Linux

def _linux(root: pathlib.Path) -> FreeMemory:
  """/proc/meminfo, within the limits of this process's cgroups."""
  info = _numbers(root / "proc/meminfo", ":", 1024)
  swap = info.get("SwapFree", 0)
  found = FreeMemory(info["MemTotal"], info["MemAvailable"], info["MemAvailable"] + swap)
  for group, version in _cgroups(root):
    with suppress(OSError, ValueError): found = _within_group(found, group, version, swap)
  return found

def _within_group(found: FreeMemory, group: pathlib.Path, version: int, swap: int) -> FreeMemory:
  """
  The memory within the limit of one cgroup. Its usage includes file caches, which the kernel drops before it runs out.
  """
  names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_") if version == 1 else (
    "memory.max", "memory.current", "")
  if (text := (group / names[0]).read_text().strip()) == "max" or (limit := int(text)) >= found.total: return found
  stat, used = _numbers(group / "memory.stat", " "), int((group / names[1]).read_text())
  cache = sum(stat.get(f"{names[2]}{kind}_file", 0) for kind in ("active", "inactive"))
  left = limit - max(0, used - cache)
  with suppress(OSError, ValueError):  # without these files, or with "max", swap space has no other limit
    if version == 2: swap = min(swap, max(0, int((group / "memory.swap.max").read_text()) -
                                          int((group / "memory.swap.current").read_text())))
  return found.within(limit, left, left + swap)

def _cgroups(root: pathlib.Path) -> Iterator[tuple[pathlib.Path, int]]:
  """
  The folders of this process's cgroups that may limit memory, each with its version: the group's, then those above it.

  A container may see only its own group: what is mounted is then that group, and has its limit.
  """
  paths = dict[int, str]()
  for line in (root / "proc/self/cgroup").read_text().splitlines() if (root / "proc/self/cgroup").exists() else ():
    number, controllers, path = line.split(":", 2)
    if number == "0" and not controllers: paths[2] = path
    elif "memory" in controllers.split(","): paths[1] = path
  try: mounts = (root / "proc/self/mountinfo").read_text().splitlines()
  except OSError: return
  for line in mounts:
    fields, _, rest = line.partition(" - ")
    kind, *_, options = rest.split(" ")
    version = 2 if kind == "cgroup2" else 1 if kind == "cgroup" and "memory" in options.split(",") else 0
    if version not in paths: continue
    shown, mount = fields.split(" ")[3:5]
    top = root / mount.lstrip("/")
    inside = paths[version].removeprefix(shown.rstrip("/")) if paths[version].startswith(shown) else ""
    folder = top / inside.lstrip("/")
    if ".." in folder.parts or not folder.is_dir(): folder = top
    while True:
      yield folder, version
      if folder == top: break
      folder = folder.parent

def _numbers(path: pathlib.Path, end: str, unit: int = 1) -> dict[str, int]:
  """The lines NAME<end> NUMBER of a file of the kernel."""
  rows = (line.split(end, 1) for line in path.read_text().splitlines() if end in line)
  return {name: int(rest.split()[0]) * unit for name, rest in rows if rest.split()[:1] and rest.split()[0].isdigit()}

# *** other systems, whose swap space grows by itself

def _macos() -> FreeMemory:
  """All memory of a Mac: macOS compresses it, so what is free does not tell what can be taken."""
  size, length = ctypes.c_uint64(), ctypes.c_size_t(8)
  if ctypes.CDLL(None).sysctlbyname(b"hw.memsize", ctypes.byref(size), ctypes.byref(length), None, 0):
    raise OSError("hw.memsize")
  return FreeMemory(size.value, size.value)

class _Status(ctypes.Structure):
  """MEMORYSTATUSEX of Windows' sysinfoapi.h."""
  _fields_ = [("length", ctypes.c_uint32), ("load", ctypes.c_uint32), *((name, ctypes.c_uint64) for name in (
    "total", "free", "total_page_file", "free_page_file", "total_virtual", "free_virtual", "extended"))]

def _windows() -> FreeMemory:
  status = _Status(length=ctypes.sizeof(_Status))
  if not ctypes.WinDLL("kernel32").GlobalMemoryStatusEx(ctypes.byref(status)):  # type: ignore[attr-defined]
    raise OSError("GlobalMemoryStatusEx")
  return FreeMemory(status.total, status.free)

# *** devices

def _of_device(device: str) -> FreeMemory | None:
  from tinygrad import Device
  opened: Any = Device[device]
  kind = device.split(":")[0]
  if kind == "CUDA": return _cuda(opened)
  if kind == "METAL":
    total = int(opened.sysdevice.recommendedMaxWorkingSetSize())
    return FreeMemory(total, max(0, total - int(opened.sysdevice.currentAllocatedSize())))
  # tinygrad's own drivers of boards on the PCI bus know the size of their memory
  total = int(opened.iface.dev_impl.vram_size)
  from tinygrad_llm.device.memory import device_memory_bytes
  return FreeMemory(total, max(0, total - device_memory_bytes(device)))

def _cuda(opened: Any) -> FreeMemory:
  """
  The numbers of CUDA's driver. They are a bound only on Linux, and for memory that a card has alone.

  Windows moves a card's memory to the host. Boards that share the host's memory do not count caches of files as free.
  """
  from tinygrad.runtime.autogen import cuda
  def check(code: int) -> None:
    if code: raise RuntimeError(f"CUDA Error {code}")
  check(cuda.cuCtxSetCurrent(opened.context))
  free, total, shared = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_int32(1)
  check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
  check(cuda.cuDeviceGetAttribute(ctypes.byref(shared), cuda.CU_DEVICE_ATTRIBUTE_INTEGRATED, opened.cu_device))
  found = FreeMemory(total.value, free.value)
  return replace(found, bound=free.value) if sys.platform == "linux" and not shared.value else found
