"""Tells from Linux's device files which devices cannot be present; asking their drivers would take 0.3 seconds."""
from __future__ import annotations
import os, pathlib, sys

ATI, NVIDIA = "0x1002", "0x10de"
# device nodes that tinygrad opens. CUDA has more: NVIDIA's boards have nodes of other names, WSL has /dev/dxg, and
# there are CUDA libraries for other makers' cards
NODES = {"AMD": ("kfd",), "NV": ("nvidiactl",), "QCOM": ("kgsl-3d0",),
         "CUDA": ("nvidia*", "nvhost*", "nvgpu*", "nvmap", "dxg", "kfd", "dri")}

def is_absent(device: str, root: pathlib.Path = pathlib.Path("/")) -> bool:
  """Whether a tinygrad device cannot open on this system; False if unknown. root: the system's root folder."""
  if sys.platform != "linux" or os.environ.get("REMOTE"): return False
  if device == "METAL": return True
  if device not in NODES or any(any((root / "dev").glob(node)) for node in NODES[device]): return False
  if device == "AMD": return ATI not in _vendors(root) and not any((root / "sys/bus/usb/devices").glob("*"))
  return device != "NV" or NVIDIA not in _vendors(root)

def _vendors(root: pathlib.Path) -> set[str]:
  """Vendor ids of all devices on the PCI bus; ATI and NVIDIA if they cannot be read."""
  try: return {file.read_text().strip() for file in (root / "sys/bus/pci/devices").glob("*/vendor")}
  except OSError: return {ATI, NVIDIA}
