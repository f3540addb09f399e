"""
Errors of a device's driver as one-line messages: memory that ran out, a driver older than the compiler, a lost device.
"""
from __future__ import annotations
import re, sys
from collections.abc import Iterator
from contextlib import contextmanager
from tinygrad_llm.errors import DeviceError

RUNTIME, COMPILERS = "tinygrad.runtime.", "tinygrad.runtime.support.compiler_"  # modules that raise them; excluded ones
CODE = re.compile(r"(?:CUDA Error|status code) (\d+)")
NO_MEMORY, NEW_PTX = 2, 222  # error codes of CUDA's driver

def device_error(e: BaseException | None) -> DeviceError | None:
  """The DeviceError for an error of a GPU's runtime or one that it caused; None for other errors and on the CPU."""
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
  """Raises device_error(e), if there is one; else returns."""
  if (error := device_error(e)) is None: return
  try: raise error from e
  finally: del error  # else it keeps its own frames and their objects until the garbage collector runs

@contextmanager
def telling_device_errors() -> Iterator[None]:
  """Inside, errors of a device are raised as DeviceError."""
  try: yield
  except (RuntimeError, MemoryError) as e:
    raise_device_error(e)
    raise

def _device() -> str:
  """The device in use; "" before one is opened."""
  module = sys.modules.get("tinygrad.device")
  return module.Device.DEFAULT if module is not None and module.Device._opened_devices else ""

def _is_of_runtime(e: BaseException) -> bool:
  """Whether the function that raised the error belongs to a device's runtime, and not to a compiler."""
  if (at := e.__traceback__) is None: return False
  while at.tb_next is not None: at = at.tb_next
  name = at.tb_frame.f_globals.get("__name__", "")
  return name.startswith(RUNTIME) and not name.startswith(COMPILERS)

def _line(device: str, e: BaseException, memory: MemoryError | None) -> str:
  """The message for an error. memory: the error of the failed allocation, which states its size."""
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
