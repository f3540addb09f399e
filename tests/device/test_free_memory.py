"""device/free_memory.py: free memory in made-up root folders with limits of cgroups, of this machine, of devices."""
import ctypes
import pathlib
import resource
import sys
from types import SimpleNamespace

import pytest
from tests.support import child
from tests.support.cuda_stub import Driver, functions
from tinygrad_llm.device import free_memory
from tinygrad_llm.device.free_memory import FreeMemory, host_memory

MIB = 1 << 20
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the files are Linux's")

def write(root: pathlib.Path, files: dict[str, str]) -> pathlib.Path:
  for name, text in files.items():
    (path := root / name).parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  return root

def machine(total=8000, free=6000, swap=0) -> dict[str, str]:
  return {"proc/meminfo": f"MemTotal: {total * 1024} kB\nMemFree: 5 kB\nMemAvailable: {free * 1024} kB\n"
                          f"SwapFree: {swap * 1024} kB\nHugePages_Total: 0\n"}

def v2(top: str, path: str, shown: str = "/") -> dict[str, str]:
  return {"proc/self/cgroup": f"0::{path}\n", "proc/self/mountinfo":
          f"1 0 8:1 / / rw - ext4 /dev/sda rw\n29 24 0:26 {shown} /{top} rw,nosuid - cgroup2 cgroup2 rw\n"}

def group2(folder: str, limit: str | int, used: int, active=0, inactive=0, swap: str = "") -> dict[str, str]:
  stat = f"anon 5\nfile {(active + inactive) * MIB}\nactive_file {active * MIB}\ninactive_file {inactive * MIB}\n"
  files = {"memory.max": str(limit if isinstance(limit, str) else limit * MIB), "memory.current": str(used * MIB),
           "memory.stat": stat, **({"memory.swap.max": swap, "memory.swap.current": str(MIB)} if swap else {})}
  return {f"{folder}/{name}": text for name, text in files.items()}

def mib(found: FreeMemory | None) -> tuple[int, int, int | None]:
  assert found is not None
  return found.total // MIB, found.free // MIB, None if found.bound is None else found.bound // MIB

def test_no_limit(tmp_path):
  assert mib(host_memory(write(tmp_path, machine(swap=500)))) == (8000, 6000, 6500)

def test_cgroup2_limit_counts_file_caches_as_free(tmp_path):
  files = group2("sys/fs/cgroup/a/b", 1000, 900, active=100, inactive=300)
  root = write(tmp_path, machine(swap=500) | v2("sys/fs/cgroup", "/a/b") | files)
  assert mib(host_memory(root)) == (1000, 500, 1000)

def test_smallest_limit_of_the_hierarchy(tmp_path):
  files = group2("cg/a/b", "max", 10) | group2("cg/a", 700, 400) | group2("cg", 2000, 1900, inactive=900)
  assert mib(host_memory(write(tmp_path, machine() | v2("cg", "/a/b") | files))) == (700, 300, 300)

def test_limit_of_swap_space(tmp_path):
  for text, bound in (("0", 300), (str(101 * MIB), 400), ("max", 800)):
    files = group2("cg/a", 700, 400, swap=text)
    assert mib(host_memory(write(tmp_path, machine(swap=500) | v2("cg", "/a") | files))) == (700, 300, bound)

def test_usage_above_the_limit(tmp_path):
  files = group2("cg/a", 700, 900)
  assert mib(host_memory(write(tmp_path, machine() | v2("cg", "/a") | files))) == (700, 0, 0)

@pytest.mark.parametrize(("path", "shown"), [("/", "/"), ("/docker/x", "/docker/x"), ("/docker/x", "/other"),
                                              ("/../up", "/"), ("/gone", "/")])
def test_container_sees_only_its_own_group(tmp_path, path, shown):
  """Where the group's folder is not there, the folder that is mounted is the group."""
  files = group2("cg", 700, 400)
  assert mib(host_memory(write(tmp_path, machine() | v2("cg", path, shown) | files))) == (700, 300, 300)

def test_cgroup1(tmp_path):
  """A hybrid system: the memory controller is version 1's, its usage includes its children's file caches."""
  def group(folder: str, limit: int, used: int, cache: int) -> dict[str, str]:
    stat = f"inactive_file 0\ntotal_active_file 0\ntotal_inactive_file {cache * MIB}\n"
    return {f"{folder}/memory.limit_in_bytes": str(limit), f"{folder}/memory.usage_in_bytes": str(used * MIB),
            f"{folder}/memory.stat": stat}
  mounts = ("30 24 0:27 / /cg/unified rw - cgroup2 cgroup2 rw\n31 24 0:28 / /cg/memory rw shared:9 - cgroup cgroup "
            "rw,memory\n32 24 0:29 / /cg/cpu rw - cgroup cgroup rw,cpu\n")
  groups = group("cg/memory/a", 600 * MIB, 500, 200) | group("cg/memory", 9223372036854771712, 5000, 0)
  root = write(tmp_path, machine() | groups | {"proc/self/cgroup": "4:cpu:/\n3:memory:/a\n0::/\n",
                                               "proc/self/mountinfo": mounts})
  assert mib(host_memory(root)) == (600, 300, 300)

@pytest.mark.parametrize("spoiled", ["sys/memory.max", "sys/memory.current", "sys/memory.stat"])
def test_unreadable_limits_are_left_out(tmp_path, spoiled):
  files = group2("sys", 700, 400) | {spoiled: "none\n"}
  found = mib(host_memory(write(tmp_path, machine() | v2("sys", "/") | files)))
  assert found == ((700, 300, 300) if spoiled.endswith("stat") else (8000, 6000, 6000))

def test_unknown_system(tmp_path):
  assert host_memory(tmp_path) is None
  assert host_memory(write(tmp_path, {"proc/meminfo": "MemTotal: 5 kB\n"})) is None

def limited(megabytes: int) -> list[int | None]:
  with open("/proc/self/statm") as f: used = int(f.read().split()[0]) * resource.getpagesize()
  resource.setrlimit(resource.RLIMIT_AS, (limit := used + (megabytes << 20), limit))
  return [*mib(host_memory())]

def test_address_space():
  total, free, bound = child.call(limited, 300).value
  assert 250 <= free <= 300 and free == bound < total < 300 + (1 << 14)

def test_this_machine():
  """No more than /proc/meminfo has available; other processes may take or free 1 GiB between the two readings."""
  found, available = host_memory(), free_memory._numbers(pathlib.Path("/proc/meminfo"), ":", 1024)["MemAvailable"]
  assert found is not None and 0 < found.free <= min(found.total, available + (1 << 30))

def test_cuda(monkeypatch):
  """The driver's numbers; they are no bound where a board shares the host's memory, or where Windows moves it."""
  from tinygrad.runtime.autogen import cuda
  call, shared = functions(Driver(memory=3 << 30)), 0
  def attribute(out, what, device):
    out._obj.value = shared
    return 0 if (what, device) == (18, 5) else 1
  def context() -> ctypes.c_void_p:
    code = call["cuCtxCreate_v2"](ctypes.byref(made := cuda.CUcontext()), 0, 0)
    assert code == 0
    return made
  for name in ("cuCtxSetCurrent", "cuMemGetInfo_v2"): monkeypatch.setattr(cuda, name, call[name])
  monkeypatch.setattr(cuda, "cuDeviceGetAttribute", attribute)
  opened = SimpleNamespace(context=context(), cu_device=5)
  assert free_memory._cuda(opened) == FreeMemory(3 << 30, 3 << 30, 3 << 30)
  assert call["cuMemAlloc_v2"](ctypes.byref(cuda.CUdeviceptr()), MIB) == 0
  assert free_memory._cuda(opened) == FreeMemory(3 << 30, (3 << 30) - MIB, (3 << 30) - MIB)
  shared = 1
  assert free_memory._cuda(opened).bound is None
  shared = 0
  monkeypatch.setattr(sys, "platform", "win32")
  assert free_memory._cuda(opened).bound is None

def test_metal_and_own_drivers(monkeypatch):
  import tinygrad
  metal = SimpleNamespace(sysdevice=SimpleNamespace(recommendedMaxWorkingSetSize=lambda: 900,
                                                    currentAllocatedSize=lambda: 200))
  board = SimpleNamespace(iface=SimpleNamespace(dev_impl=SimpleNamespace(vram_size=MIB)))
  known = {"METAL": metal, "NV": board, "CL": SimpleNamespace()}
  class Devices(dict):
    @staticmethod
    def canonicalize(name): return name
  monkeypatch.setattr(tinygrad, "Device", Devices(known))
  assert free_memory.free_memory("METAL") == FreeMemory(900, 700)
  assert free_memory.free_memory("NV") == FreeMemory(MIB, MIB)
  assert free_memory.free_memory("CL") is None
