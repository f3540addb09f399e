"""NVIDIA's tools, which need no card: the compiler NVRTC and cuobjdump, from wheels or an installed toolkit."""
from __future__ import annotations
import ctypes, functools, importlib.util, os, pathlib, re, shutil, subprocess, tempfile
from tinygrad_llm.errors import InputError, warn

WHEELS = "nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-cuobjdump"
EM_CUDA = 190  # e_machine of a cubin, which is an ELF file

def _dump(binary: bytes, what: str) -> str | None:
  """cuobjdump's output for a cubin; None if `binary` is no cubin, or if cuobjdump or its helper nvdisasm is missing."""
  if binary[:4] != b"\x7fELF" or int.from_bytes(binary[18:20], "little") != EM_CUDA or not (tool := cuobjdump()):
    return None
  with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
    file.write(binary)
    file.flush()
    done = subprocess.run([tool, what, file.name], capture_output=True, text=True)
  return done.stdout if done.returncode == 0 else None

def sass(binary: bytes) -> str | None:
  """The machine code of a cubin as text; None if it cannot be read."""
  return _dump(binary, "--dump-sass")

@functools.cache
def resources(binary: bytes) -> tuple[int, int] | tuple[None, None]:
  """Registers of a thread and bytes of its stack (spills included); (None, None) if the cubin cannot be read."""
  if (text := _dump(binary, "--dump-resource-usage")) is None: return None, None
  found = re.findall(r"REG:(\d+) STACK:(\d+)", text)
  return max(int(r) for r, _ in found), max(int(s) for _, s in found)

def _wheels() -> pathlib.Path | None:
  """The folder that NVIDIA's wheels share: nvidia/cu13 with bin, include and lib."""
  spec = importlib.util.find_spec("nvidia")
  folders = spec.submodule_search_locations if spec is not None else None
  found = [path for folder in folders or () for path in pathlib.Path(folder).glob("cu[0-9]*/lib/libnvrtc.so.[0-9]*")]
  return max(found).parent.parent if found else None

def _libraries(root: pathlib.Path, name: str) -> list[pathlib.Path]:
  """A library's files in a toolkit or in the wheels' folder, the newest one last."""
  return sorted(path for folder in ("lib", "lib64") for path in (root / folder).glob(f"lib{name}.so.[0-9]*"))

def find_cuda() -> None:
  """
  Points tinygrad to NVRTC and nvJitLink, before it first uses them.

  They come from the environment's NVRTC_PATH, else from the toolkit in CUDA_PATH, else from NVIDIA's wheels. The paths
  are set in the environment, so that compile workers and other children find them, too.
  """
  if os.environ.get("NVRTC_PATH"): return
  roots = [pathlib.Path(path)] if (path := os.environ.get("CUDA_PATH")) else []
  if (wheels := _wheels()) is not None: roots.append(wheels)
  for root in roots:
    if not (found := _libraries(root, "nvrtc")): continue
    os.environ["NVRTC_PATH"], os.environ["CUDA_PATH"] = str(found[-1]), str(root)  # for the headers
    if linkers := _libraries(root, "nvJitLink"): os.environ.setdefault("NVJITLINK_PATH", str(linkers[-1]))
    return

def check_compiler(name: str, renderer: str) -> None:
  """Warns if tinygrad chose its PTX renderer because NVRTC is missing. InputError if it chose nvcc, missing too."""
  install = f"NVRTC, NVIDIA's compiler, is not installed; run: pip install {WHEELS}"
  if renderer == "NVCC" and shutil.which("nvcc") is None: raise InputError(f"{name}: {install}")
  if renderer == "PTX":
    warn(f"{name}: {install}. Kernels are tinygrad's own PTX until then, and what was tuned for NVRTC is not used")

def cuobjdump() -> str | None:
  """The path of cuobjdump, which reads cubins; None if it is missing."""
  folders = [f"{root}/bin" for root in (os.environ.get("CUDA_PATH"), _wheels(), "/usr/local/cuda") if root]
  return shutil.which("cuobjdump", path=os.pathsep.join([*folders, os.environ.get("PATH", "")]))

def check_cuda(name: str, arch: str) -> None:
  """Checks that NVRTC and cuobjdump are installed and that NVRTC knows an architecture. InputError if not."""
  from tinygrad.runtime.autogen import nvrtc
  install = f"run: pip install {WHEELS}"
  count = ctypes.c_int32()
  try: nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count))  # type: ignore[arg-type]
  except AttributeError as e: raise InputError(f"{name}: the compiler NVRTC is not installed; {install}") from e
  if cuobjdump() is None: raise InputError(f"{name}: cuobjdump is not installed, it knows the registers; {install}")
  archs = (ctypes.c_int32 * count.value)()
  nvrtc.nvrtcGetSupportedArchs(archs)  # type: ignore[arg-type]
  if (known := re.fullmatch(r"sm_(\d+)[af]?", arch)) is None or int(known[1]) not in archs:
    raise InputError(f"{name}: NVRTC has no architecture {arch!r}; use one of {', '.join(f'sm_{x}' for x in archs)}")

def check_ptx(name: str) -> None:
  """Checks that nvJitLink, which assembles PTX, is installed. InputError if not."""
  from tinygrad.runtime.autogen import nvjitlink
  try: nvjitlink.nvJitLinkVersion(ctypes.byref(ctypes.c_uint()), ctypes.byref(ctypes.c_uint()))
  except AttributeError as e:
    raise InputError(f"{name}: nvJitLink is not installed; run: pip install nvidia-nvjitlink") from e
