"""Devices that cannot be here, by what Linux shows of them: to ask their drivers takes a third of a second."""
from __future__ import annotations
import os, pathlib, sys

ATI, NVIDIA = "0x1002", "0x10de"
# what tinygrad opens of each; NVIDIA's boards have nodes of other names, WSL has /dev/dxg, and there are libraries of
# CUDA for others' cards
NODES = {"AMD": ("kfd",), "NV": ("nvidiactl",), "QCOM": ("kgsl-3d0",),
         "CUDA": ("nvidia*", "nvhost*", "nvgpu*", "nvmap", "dxg", "kfd", "dri")}

def is_absent(device: str, root: pathlib.Path = pathlib.Path("/")) -> bool:
  """Whether a device of tinygrad's cannot open on this system. False for what cannot be told; `root`: of the system."""
  if sys.platform != "linux" or os.environ.get("REMOTE"): return False
  if device == "METAL": return True
  if device not in NODES or any(any((root / "dev").glob(node)) for node in NODES[device]): return False
  if device == "AMD": return ATI not in _vendors(root) and not any((root / "sys/bus/usb/devices").glob("*"))
  return device != "NV" or NVIDIA not in _vendors(root)

def _vendors(root: pathlib.Path) -> set[str]:
  """Of all that is on the PCI bus; both where that cannot be told."""
  try: return {file.read_text().strip() for file in (root / "sys/bus/pci/devices").glob("*/vendor")}
  except OSError: return {ATI, NVIDIA}
