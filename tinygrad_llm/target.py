"""Targets to compile for: a device that is here, or the compiler of one that is not (tinygrad's NULL device)."""
from __future__ import annotations
import ctypes, importlib.util, os, pathlib, re, shutil, subprocess, tempfile
from tinygrad_llm.compiler import check_device, use_c_compiler
from tinygrad_llm.errors import InputError

WHEELS = "nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-cuobjdump"
EM_CUDA = 190  # e_machine of a cubin, which is an ELF file

def open_target(asked: str | None) -> str:
  """
  Makes a target tinygrad's default device; returns its name.

  asked: None is the default device. RENDERER:ARCH of NVIDIA or AMD (CUDA:sm_90, PTX:sm_90, HIP:gfx1100) only compiles
  and needs no such card; all else are DEV strings of tinygrad. InputError says what is missing.
  """
  from tinygrad import Device
  from tinygrad.helpers import DEV
  _find_cuda()
  if asked is not None:
    os.environ["DEV"] = target = f"NULL:{asked}" if re.match(r"\w+:(sm_|gfx)", asked) else asked
    try: DEV.value = target
    except RuntimeError as e: raise InputError(f"--target {asked}: {e}; write it as CPU, CL or CUDA:sm_90") from e
  name = f"--target {asked}" if asked is not None else f"DEV={os.environ.get('DEV', '')}"
  try: check_device()
  except InputError as e:
    if asked is None: raise
    hint = "; CUDA:sm_90 compiles without a card" if target in ("CUDA", "NV") else ""
    raise InputError(str(e).replace(f"DEV={target}:", f"{name}:") + hint) from e
  if DEV.renderer == "CLANG": use_c_compiler()
  if Device.DEFAULT == "NULL" and DEV.renderer == "CUDA": _check_cuda(name, DEV.arch)
  try: _ = Device.default.renderer
  except Exception as e:
    raise InputError(f"{name}: it does not compile here ({' '.join(str(e).split())[:200]}); install its compiler, or "
                     "use another target") from e
  return asked or os.environ.get("DEV") or Device.DEFAULT

def resources(binary: bytes) -> tuple[int, int] | tuple[None, None]:
  """Registers of a thread and bytes of its stack, where they hold what registers do not; None if it is no cubin."""
  if binary[:4] != b"\x7fELF" or int.from_bytes(binary[18:20], "little") != EM_CUDA or not (tool := _cuobjdump()):
    return None, None
  with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
    file.write(binary)
    file.flush()
    text = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True).stdout
  found = re.findall(r"REG:(\d+) STACK:(\d+)", text)
  return max(int(r) for r, _ in found), max(int(s) for _, s in found)

def _wheels() -> pathlib.Path | None:
  """The folder that NVIDIA's wheels share: nvidia/cu13 with bin, include and lib."""
  spec = importlib.util.find_spec("nvidia")
  folders = spec.submodule_search_locations if spec is not None else None
  found = [path for folder in folders or () for path in pathlib.Path(folder).glob("cu[0-9]*/lib/libnvrtc.so.[0-9]*")]
  return max(found).parent.parent if found else None

def _find_cuda() -> None:
  """Points tinygrad to NVIDIA's wheels, unless the environment points elsewhere; before its first use of NVRTC."""
  if (root := _wheels()) is None or "NVRTC_PATH" in os.environ or "CUDA_PATH" in os.environ: return
  os.environ["NVRTC_PATH"], os.environ["CUDA_PATH"] = str(max((root / "lib").glob("libnvrtc.so.*"))), str(root)

def _cuobjdump() -> str | None:
  folders = [f"{root}/bin" for root in (os.environ.get("CUDA_PATH"), _wheels(), "/usr/local/cuda") if root]
  return shutil.which("cuobjdump", path=os.pathsep.join([*folders, os.environ.get("PATH", "")]))

def _check_cuda(name: str, arch: str) -> None:
  """Whether NVRTC and cuobjdump are here and know an architecture."""
  from tinygrad.runtime.autogen import nvrtc
  install = f"run: pip install {WHEELS}"
  count = ctypes.c_int32()
  try: nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count))  # type: ignore[arg-type]
  except AttributeError as e: raise InputError(f"{name}: the compiler NVRTC is not installed; {install}") from e
  if _cuobjdump() is None: raise InputError(f"{name}: cuobjdump is not installed, it knows the registers; {install}")
  archs = (ctypes.c_int32 * count.value)()
  nvrtc.nvrtcGetSupportedArchs(archs)  # type: ignore[arg-type]
  if (known := re.fullmatch(r"sm_(\d+)[af]?", arch)) is None or int(known[1]) not in archs:
    raise InputError(f"{name}: NVRTC has no architecture {arch!r}; use one of {', '.join(f'sm_{x}' for x in archs)}")
