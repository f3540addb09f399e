"""
Targets: threads, registers and dot-product instructions of a processor.
"""
from __future__ import annotations
import ctypes, functools, pathlib, sys
from tinygrad.renderer import Renderer
from tinygrad.renderer.cstyle import ClangRenderer
from tinygrad.uop.ops import AxisType

# *** GPUs

WARP = 32  # threads
THREADS = (AxisType.LOCAL, AxisType.WARP, AxisType.GROUP_REDUCE)  # axis types of a block's threads
LARGE_CARD, SMALL_CARDS = 128, {"sm_53": 1, "sm_62": 2, "sm_72": 8, "sm_87": 16}  # multiprocessors of NVIDIA cards

def multiprocessors(ren: Renderer) -> int:
  """Multiprocessors of an NVIDIA card, which a kernel should keep busy; 0 for other makers' devices, never timed."""
  return SMALL_CARDS.get(ren.target.arch, LARGE_CARD) if ren.target.arch.startswith("sm_") else 0

# *** CPUs

LANES = 16  # 512 bits of float32: one vector register or several

def has_vectors(ren: Renderer) -> bool:
  """Whether a renderer writes C for clang on a CPU, which has vector types."""
  return isinstance(ren, ClangRenderer) and ren.target.device == "CPU"

def most_threads(ren: Renderer) -> int:
  """The most threads of a CPU that may share a kernel."""
  return ren.global_max[0] if ren.has_threads and ren.global_max else 1

@functools.cache
def here() -> frozenset[str]:
  """The features of this machine's processor, in compilers' names, with AMX only where this process may use it."""
  try: said = pathlib.Path("/proc/cpuinfo").read_text()
  except OSError: return frozenset()
  return frozenset(word.replace("_", "-" if word.startswith("amx") else "") for word in said.split()
                   if not word.startswith("amx") or may_use_tiles())

TILE_DATA, REQUEST, ARCH_PRCTL = 18, 0x1023, 158  # Linux's numbers for the state of tile registers on x86-64

@functools.cache
def may_use_tiles() -> bool:
  """Asks Linux to allow the tile registers, for all threads of this process; without that their use raises SIGILL."""
  try: return bool(sys.platform == "linux" and ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST, TILE_DATA) == 0)
  except (OSError, AttributeError): return False

# features, among others, that a processor's name implies
PROCESSORS = {"x86-64-v3": ("avx2",), "x86-64-v4": ("avx2", "avx512f"),
              "sapphirerapids": ("avx512f", "avx512vnni", "avx512bf16", "amx-tile", "amx-bf16")}

def _features(ren: Renderer) -> frozenset[str]:
  """The features of an x86-64 target; none for other targets."""
  family, _, features = ren.target.arch.partition(",")
  if family != "x86_64": return frozenset()
  if features == "native": return here()
  words = features.split(",")
  return frozenset(words).union(*(PROCESSORS.get(word, ()) for word in words))

def registers(ren: Renderer) -> int:
  """The number of 16-float vectors that the processor's registers hold: 32 with AVX-512, 8 with AVX2 or NEON."""
  return 32 if "avx512f" in _features(ren) else 8

def multiplies_bytes(ren: Renderer) -> bool:
  """Whether one instruction adds four products of an unsigned and a signed byte to a number: VNNI."""
  return not _features(ren).isdisjoint(("avx512vnni", "avxvnni"))

def adds_pairs(ren: Renderer) -> bool:
  """Whether dot products of bytes are sums of int16, two products each: AVX2 without VNNI."""
  return "avx2" in _features(ren) and not multiplies_bytes(ren)

def multiplies_bf16(ren: Renderer) -> bool:
  """Whether one instruction adds two products of bfloat16 to each of 16 floats: AVX512_BF16."""
  return "avx512bf16" in _features(ren)

def multiplies_tiles(ren: Renderer) -> bool:
  """Whether there are tile registers for products of bfloat16 (AMX-BF16) that this process may use."""
  return {"amx-tile", "amx-bf16"} <= _features(ren)
