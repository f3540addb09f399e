"""
What a device's driver raises, as one line: memory that ran out, a driver that is older than the compiler, a device that
is lost.
"""
from __future__ import annotations
import re, sys
from collections.abc import Iterator
from contextlib import contextmanager
from tinygrad_llm.errors import DeviceError

RUNTIME, COMPILERS = "tinygrad.runtime.", "tinygrad.runtime.support.compiler_"  # modules that raise such errors, or not
CODE = re.compile(r"(?:CUDA Error|status code) (\d+)")
NO_MEMORY, NEW_PTX = 2, 222  # codes of CUDA's driver

def device_error(e: BaseException | None) -> DeviceError | None:
  """The line for an error of a GPU's runtime, or for one that came of it; None for any other, and for the CPU's."""
  device = _device()
  if not device or device.split(":")[0] == "CPU": return None
  seen, memory = set[int](), None
  while e is not None and id(e) not in seen:
    seen.add(id(e))
    if isinstance(e, DeviceError): return e
    if isinstance(e, MemoryError): memory = memory or e
    if isinstance(e, (RuntimeError, MemoryError)) and _is_of_runtime(e): return DeviceError(_line(device, e, memory))
    e = e.__cause__ or e.__context__
  return None if memory is None else DeviceError(_line(device, memory, memory))

def raise_device_error(e: BaseException) -> None:
  """Raises the DeviceError that an error is; returns if it is none."""
  if (error := device_error(e)) is None: return
  try: raise error from e
  finally: del error  # else it holds its own frames, and what they hold, until the collector comes

@contextmanager
def telling_device_errors() -> Iterator[None]:
  """What this block raises of a device is a DeviceError."""
  try: yield
  except (RuntimeError, MemoryError) as e:
    raise_device_error(e)
    raise

def _device() -> str:
  """The device that is in use; "" before there is one."""
  module = sys.modules.get("tinygrad.device")
  return module.Device.DEFAULT if module is not None and module.Device._opened_devices else ""

def _is_of_runtime(e: BaseException) -> bool:
  """Whether the function that raised it is of a device's runtime, and of no compiler."""
  if (at := e.__traceback__) is None: return False
  while at.tb_next is not None: at = at.tb_next
  name = at.tb_frame.f_globals.get("__name__", "")
  return name.startswith(RUNTIME) and not name.startswith(COMPILERS)

def _line(device: str, e: BaseException, memory: MemoryError | None) -> str:
  """memory: the allocation that failed, which says how much it was about."""
  text = " ".join(str(e).split())[:200]
  code = int(found[1]) if (found := CODE.search(text)) else None
  if code == NO_MEMORY or isinstance(e, MemoryError):
    return (f"{device}: there is no memory left on it ({str(memory or text).rstrip('.')}); use a smaller max_context, "
            "quant type or model, or end what else uses it")
  if code == NEW_PTX:
    return (f"{device}: its driver is older than the compiler ({text}); update the driver, or install an older "
            "nvidia-cuda-nvrtc" + ("" if ":PTX" in device else f", or try DEV={device}:PTX"))
  return (f"{device}: the device failed ({text}), and what it held is lost; start the program again, and if it fails "
          "again, see what the system says of it (dmesg, nvidia-smi)")
