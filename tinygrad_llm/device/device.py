"""
Choosing the device: one that is present, or only the compiler of one that is not (tinygrad's NULL device). All
environment variables that can be wrong are checked here, before a model is read.
"""
from __future__ import annotations
import contextlib, os, pathlib, re, sqlite3, subprocess
from tinygrad_llm import patches
from tinygrad_llm.device.absent import is_absent
from tinygrad_llm.device.compiler import compiler_failed, use_c_compiler
from tinygrad_llm.device.cuda import check_compiler, check_cuda, check_ptx, find_cuda
from tinygrad_llm.errors import InputError, is_shortage

# integer variables that tinygrad reads in the middle of its work: {name: minimum}
NUMBERS = {"DEBUG": 0, "BEAM": 0, "JIT": 0, "JITBEAM": 0, "PARALLEL": 0, "NUM_CPU_THREADS": 1, "MV": 0,
           "MV_BLOCKSIZE": 1, "MV_THREADS_PER_ROW": 1, "MV_ROWS_PER_THREAD": 1}
NVIDIA = ("CUDA", "NV")  # devices whose kernels NVRTC compiles
STORES = ("DISK", "NPY", "TINYFS")  # tinygrad devices that hold data and compute nothing
OLD_NAMES = {"CLANG": "CPU", "LLVM": "CPU:LLVM", "GPU": "CL", "HIP": "AMD", "NULL": "NULL", "PYTHON": "PYTHON"}

def check_device() -> str:
  """
  Opens tinygrad's default device and returns its name.

  Without DEV, it is the first device that opens, in tinygrad's order. The CPU, with whatever clang there is, comes
  last. InputError names the environment variable at fault and the fix.
  """
  asked = os.environ.get("DEV", "")
  for name, least in NUMBERS.items():
    if (value := os.environ.get(name)) is not None and not _is_number(value, least):
      raise InputError(f"{name}={value}: it must be an integer of at least {least}; correct it or unset it")
  if not asked.startswith("CPU"): find_cuda()
  try:
    from tinygrad import Device
    from tinygrad.device import ALL_DEVICES
    from tinygrad.helpers import CACHEDB, CACHELEVEL, CCACHE, DEV
    patches.apply()
    from tinygrad_llm.device import private_memory
    private_memory.install()
  except Exception as e:
    raise InputError(f"{_culprit(e)}: tinygrad does not start ({_reason(e)}); correct the variable") from e
  current = dict.fromkeys(ALL_DEVICES)
  for name in (*current, *(OLD_NAMES if not asked else ())):
    if (value := os.environ.get(name, "0")) != "0" and _is_number(value, 1):
      raise InputError(f"{name}={value}: it does not choose a device any more; write DEV={OLD_NAMES.get(name, name)}")
  no_compiler: InputError|None = None
  try:
    if not asked:
      try: use_c_compiler()  # without one, tinygrad would not choose the CPU
      except InputError as e: no_compiler = e
      _select()
    if Device.DEFAULT.split(":")[0] == "CPU" and (asked or no_compiler is not None): use_c_compiler()
    if CCACHE and CACHELEVEL >= 1 and not patches.is_on("sqlite_cache"): _check_cache(pathlib.Path(CACHEDB))
    if Device.DEFAULT.split(":")[0] in STORES:
      raise InputError(f"DEV={asked}: it holds data and computes nothing; use one of {', '.join(ALL_DEVICES)}")
    Device[Device.DEFAULT]
    if Device.DEFAULT.split(":")[0] in NVIDIA and not DEV.renderer:
      check_compiler(f"DEV={Device.DEFAULT}", renderer_of(Device.DEFAULT))
    return Device.DEFAULT
  except InputError: raise
  except ModuleNotFoundError as e:
    raise InputError(f"DEV={asked}: no such device; use one of {', '.join(ALL_DEVICES)}") from e
  except subprocess.CalledProcessError as e: raise InputError(compiler_failed(e)) from e
  except sqlite3.Error as e:  # only if the patch sqlite_cache, which does without the database, is off
    raise InputError(f"{CACHEDB}: the kernel cache cannot be used ({e}); delete it, or set CACHEDB to another file, or "
                     "CCACHE=0") from e
  except Exception as e:
    if is_shortage(e): raise
    if no_compiler is not None: raise no_compiler from e
    at = name if (name := _culprit(e)) != "environment" else f"DEV={asked}"
    raise InputError(f"{at}: it does not open ({_reason(e)}); use one of {', '.join(ALL_DEVICES)}") from e

def renderer_of(device: str) -> str:
  """The name of a device's renderer, as DEV has it after the device: CUDA (for NVRTC), PTX, CLANG, METAL, .."""
  from tinygrad import Device
  return Device[device]._renderer_name(type(Device[device].renderer))

def with_renderer(device: str) -> str:
  """A device's name, with its renderer if that is not the device's first choice: CUDA, CUDA:PTX."""
  from tinygrad import Device
  first = Device[device]._renderer_name(Device[device].renderers[0])
  return device if (found := renderer_of(device)) == first else f"{device}:{found}"

def check_computes() -> str:
  """check_device() for a device that must compute. InputError if it only compiles, or if its kernels do not run."""
  device = check_device()
  from tinygrad import Tensor
  from tinygrad.device import ALL_DEVICES
  from tinygrad.helpers import DEV, NULL_ALLOW_COPYOUT
  use = f"use one of {', '.join(ALL_DEVICES)}"
  if device.split(":")[0] == "NULL" and not NULL_ALLOW_COPYOUT:
    raise InputError(f"DEV={os.environ.get('DEV', device)}: it compiles and computes nothing; {use}")
  if DEV.renderer in ("", "CLANG"): return device
  try: total = Tensor([1.0, 2.0, 4.0]).sum().item()  # a chosen renderer is tried out; the devices' defaults are trusted
  except Exception as e:
    if is_shortage(e): raise
    raise InputError(f"DEV={os.environ['DEV']}: it does not compute ({_reason(e)}); {use}") from e
  if total != 7: raise InputError(f"DEV={os.environ['DEV']}: it computes 1 + 2 + 4 as {total}; {use}")
  return device

def _select() -> None:
  """Makes tinygrad's choice of the first device that opens, without trying devices that cannot be present."""
  from tinygrad import Device
  from tinygrad.device import ALL_DEVICES
  from tinygrad.helpers import DEV
  if DEV.device or "_select_device" in vars(Device): return
  for name in ALL_DEVICES:
    if is_absent(name): continue
    with contextlib.suppress(Exception):
      os.environ["DEV"] = Device._select_device = Device[name].device  # for spawned children, and for this process
      return

# names of targets, and tinygrad's DEV strings for them; its device NULL compiles and runs nothing
TARGETS = tuple((re.compile(asked), known) for asked, known in (
  (r"CPU:(x86-64-v\d|sapphirerapids)", r"CPU:CLANG:x86_64,\1"), (r"CPU:arm64", "CPU:CLANG:arm64,apple-m1"),
  (r"NV:(sm_\w+)", r"NULL:CUDA:\1"), (r"NV:((?:CUDA|PTX):sm_\w+)", r"NULL:\1"),
  (r"METAL:[Aa]pple([1-9]|10)", r"NULL:METAL:Apple\1"), (r"(\w+:(?:sm_|gfx)\w+)", r"NULL:\1")))

def open_target(asked: str | None) -> str:
  """
  Makes a target tinygrad's default device; returns its name.

  asked: the target; None is the default device. NVIDIA's and AMD's architectures (CUDA:sm_90, NV:sm_90, NV:PTX:sm_90,
  HIP:gfx1100) and Apple's (METAL:Apple9) only compile, and need no such card. CPU:x86-64-v3, CPU:sapphirerapids and
  CPU:arm64 (an M1) need no such processor. All other names are tinygrad's DEV strings. InputError says what is missing.
  """
  from tinygrad import Device
  from tinygrad.helpers import DEV
  if asked is not None:
    target = next((m.expand(known) for pattern, known in TARGETS if (m := pattern.fullmatch(asked))), asked)
    os.environ["DEV"] = target
    try: DEV.value = target
    except RuntimeError as e: raise InputError(f"--target {asked}: {e}; write it as CPU, CL or CUDA:sm_90") from e
  name = f"--target {asked}" if asked is not None else f"DEV={os.environ.get('DEV', '')}"
  try: check_device()
  except InputError as e:
    if asked is None: raise
    hint = {"CUDA": "; CUDA:sm_90 compiles without a card", "NV": "; NV:sm_90 compiles without a card",
            "METAL": "; METAL:Apple9 needs no Mac"}.get(target.split(":")[0], "")
    raise InputError(str(e).replace(f"DEV={target}:", f"{name}:") + hint) from e
  if DEV.renderer in ("CLANG", "METAL"): use_c_compiler()
  if Device.DEFAULT == "NULL":
    if DEV.renderer in ("CUDA", "PTX"): check_cuda(name, DEV.arch)
    if DEV.renderer == "PTX": check_ptx(name)
    if DEV.renderer == "METAL":
      from tinygrad_llm.device.metal import MetalRenderer
      Device.default.renderers.insert(0, MetalRenderer)
  try: _ = Device.default.renderer
  except Exception as e:
    raise InputError(f"{name}: it does not compile here ({' '.join(str(e).split())[:200]}); install its compiler, or "
                     "use another target") from e
  return asked or os.environ.get("DEV") or Device.DEFAULT

def _check_cache(path: pathlib.Path) -> None:
  """
  Checks that tinygrad can store compiled kernels in a database at `path`: without patches, it stops if it cannot.

  An existing database is not opened. Closing it would drop the locks that SQLite holds on it in this process, and
  another process could then damage it. InputError if it cannot be written.
  """
  try:
    if path.is_file() and os.access(path, os.W_OK): return
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab"): return
  except OSError as e:
    raise InputError(f"{path}: the kernel cache cannot be written ({e.strerror}); set CACHEDB to a file that can, or "
                     "CCACHE=0") from e

def _is_number(text: str, least: int) -> bool:
  try: return int(text) >= least
  except ValueError: return False

def _culprit(e: Exception) -> str:
  """The environment variable, as NAME=value, whose value a tinygrad error quotes; "environment" if unclear."""
  found = [f"{k}={v}" for k, v in os.environ.items() if k.isupper() and v and repr(v) in str(e)]
  return found[0] if len(found) == 1 else "environment"

def _reason(e: Exception) -> str: return " ".join(str(e).split())[:200] or type(e).__name__
