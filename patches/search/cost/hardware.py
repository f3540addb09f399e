"""The cards and processors that the cost model knows. patches/search/README.md has the sources of the figures."""
from __future__ import annotations
from dataclasses import dataclass
from tinygrad.helpers import Target

@dataclass(frozen=True)
class GPU:
  """
  A card. Apple's cores are its multiprocessors.

  - arch: tinygrad's name of the architecture.
  - clock: GHz. dram, l2: bandwidths in GB/s.
  - threads, blocks, registers: the most that are resident on a multiprocessor.
  - rates: warp instructions that a multiprocessor executes per cycle, by pipe.
  - latency: cycles until an instruction's result is ready, by pipe.
  - launch: microseconds from kernel to kernel of a graph.
  - issue: warps that keep a multiprocessor's pipes busy if each instruction waits for the one before; 1 if not timed.
  """
  name: str
  arch: str
  multiprocessors: int
  clock: float
  dram: float
  l2: float
  threads: int
  blocks: int
  rates: dict[str, float]
  latency: dict[str, float]
  registers: int = 65536
  launch: float = 1.0
  issue: int = 1

@dataclass(frozen=True)
class CPU:
  """
  A processor.

  - arch: its name in `kernels --target`.
  - clock: GHz. vector: bytes of a vector register.
  - width, vectors, loads: scalar integer instructions, vector instructions and vector loads per cycle.
  - dram_core, dram: GB/s that one core reads, and that all cores read together.
  - latency: cycles until an instruction's result is ready, by pipe.
  - launch: microseconds from kernel to kernel of a graph.
  - products: bfloat16 products that the tile registers (AMX) accumulate per cycle.
  """
  name: str
  arch: str
  cores: int
  clock: float
  vector: int
  width: float
  vectors: float
  loads: float
  dram_core: float
  dram: float
  latency: dict[str, float]
  launch: float = 0.33
  products: float = 512.0

def _rates(floats: float, ints: float, products: float) -> dict[str, float]:
  """
  GPU.rates of a multiprocessor. floats, ints: warp instructions of the float and integer units per cycle.

  products: fp16 products that the tensor cores accumulate in fp32 per cycle.
  """
  return {"float": floats, "half": floats, "int": ints, "dot": ints, "divide": ints / 20, "sfu": 0.5, "convert": 0.5,
          "shuffle": 1.0, "branch": 2.0, "barrier": 1.0, "tensor": products}

def _latency(alu: float, shared: float, l2: float, dram: float) -> dict[str, float]:
  return {"int": alu, "float": alu, "half": alu, "dot": alu, "divide": 80.0, "sfu": 20.0, "convert": 12.0,
          "shuffle": 23.0, "branch": 8.0, "barrier": 20.0, "tensor": 30.0, "shared": shared, "store": 4.0, "load": l2,
          "dram": dram}

_VOLTA, _AMPERE, _HOPPER = _latency(4, 22, 193, 400), _latency(4, 27, 200, 400), _latency(4, 27, 210, 480)
_H100 = _rates(4, 2.5, 1000) | {"half": 3.7, "convert": 2.0}  # measured, see README.md; integer additions 3.8
_APPLE = _latency(3, 34, 180, 400)
_X86 = {"float": 4.0, "half": 4.0, "int": 1.0, "dot": 4.0, "sfu": 13.0, "convert": 4.0, "load": 5.0}

GPUS = (
  GPU("A100", "sm_80", 108, 1.41, 1555, 4800, 2048, 32, _rates(2, 2, 1024), _AMPERE),
  GPU("RTX 3090", "sm_86", 82, 1.695, 936, 2400, 1536, 16, _rates(4, 2, 256), _AMPERE),
  GPU("RTX 3070", "sm_86", 46, 1.725, 448, 1600, 1536, 16, _rates(4, 2, 256), _AMPERE),
  GPU("Orin", "sm_87", 16, 1.3, 205, 700, 1536, 16, _rates(4, 2, 1024), _AMPERE),
  GPU("RTX 4090", "sm_89", 128, 2.52, 1008, 5000, 1536, 24, _rates(4, 2, 256), _AMPERE),
  GPU("H100", "sm_90", 132, 1.98, 3350, 5450, 2048, 32, _H100, _HOPPER, launch=0.9, issue=12),
  GPU("B200", "sm_100", 148, 1.85, 8000, 10000, 2048, 32, _rates(4, 2, 4096), _HOPPER),
  GPU("RTX 5090", "sm_120", 170, 2.41, 1792, 8000, 1536, 24, _rates(4, 4, 256), _HOPPER),
  GPU("QV100", "sm_70", 80, 1.132, 870, 2500, 2048, 32, _rates(2, 2, 512), _VOLTA),
  *(GPU(name, arch, cores, clock, dram, 2.5 * dram, 1024, 24, _rates(4, 2, 128), _APPLE, 53248, 2.0)
    for name, arch, cores, clock, dram in (
      ("M1", "Apple7", 8, 1.278, 68), ("M1 Max", "Apple7", 32, 1.296, 400), ("M2", "Apple8", 10, 1.398, 100),
      ("M2 Max", "Apple8", 38, 1.398, 400), ("M3", "Apple9", 10, 1.38, 100), ("M3 Max", "Apple9", 40, 1.38, 400),
      ("M4", "Apple9", 10, 1.47, 120), ("M4 Max", "Apple9", 40, 1.58, 546))),
)
CPUS = (
  CPU("Zen 4, 2 cores", "x86-64-v4", 2, 3.7, 64, 5.0, 2.0, 1.0, 33, 40, _X86),
  CPU("Sapphire Rapids, 2 cores", "sapphirerapids", 2, 3.0, 64, 5.0, 2.0, 2.0, 17, 28, _X86),
  CPU("AVX2, 4 cores", "x86-64-v3", 4, 3.5, 32, 4.0, 2.0, 2.0, 15, 35, _X86),
  CPU("M1 P-cores", "arm64", 4, 3.2, 16, 6.0, 4.0, 3.0, 40, 60, _X86 | {"float": 3.0}),
)
KNOWN: tuple[GPU | CPU, ...] = (*GPUS, *CPUS)

def cards(target: Target) -> list[GPU | CPU]:
  """The cards of a target's architecture; the first one stands for it. Empty if the architecture is unknown."""
  if target.device == "CPU":
    family, _, features = target.arch.partition(",")
    known = [card.arch for card in CPUS if card.arch in features.split(",")]
    arch = family if family == "arm64" else known[0] if known else "x86-64-v4"
    return [card for card in CPUS if card.arch == arch]
  return [card for card in GPUS if card.arch == target.arch]

def named(name: str) -> list[GPU | CPU]:
  """The cards of this name, whatever its case, blanks and hyphens; if there are none, those whose name begins so."""
  def plain(text: str) -> str: return text.lower().replace(" ", "").replace("-", "")
  return [card for card in KNOWN if plain(card.name) == plain(name)] or \
         [card for card in KNOWN if plain(card.name).startswith(plain(name))]
