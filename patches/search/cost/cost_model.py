"""
The cost model: estimates a kernel's time before it is compiled or run. patches/search/README.md explains it.
"""
from __future__ import annotations
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.search.cost.dependency_chain import chain
from tinygrad_llm.patches.search.cost.hardware import CPU, GPU
from tinygrad_llm.patches.search.cost.instructions import Instruction, instructions, serial_steps
from tinygrad_llm.patches.search.cost.memory_access import (
  LINE, WARP, Access, accesses, further_passes, length, local_size, number)
from tinygrad_llm.patches.search.cost.sass import executed

EFFICIENCY = 0.92  # share of the memory bandwidth that a plain read reaches
OVERLAP = {GPU: 1.5, CPU: 3.0}  # p of the p-norm: how well memory, instructions and waits overlap
PAGE, STREAMS = 4096, 0.7  # bytes; share of a CPU's bandwidth that several streams, pages apart, reach
FULL = 32          # warps of a multiprocessor that hide half of each other's waits
L1 = 64 << 10      # bytes of an argument that stays in a multiprocessor's L1, at most

@dataclass(frozen=True)
class Estimate:
  """us: the kernel's time, with its launch; bound: the part that takes longest; parts: us that each takes alone."""
  us: float
  bound: str
  parts: dict[str, float]

@dataclass(frozen=True)
class Work:
  """
  A kernel's work, as the cost model sees it.

  - blocks, threads: blocks of the grid and threads of a block; on a CPU, threads and 1.
  - nbytes: bytes moved from and to memory, each counted once.
  - registers: registers of a thread; None before the kernel is compiled.
  - issued: a thread's instructions by pipe, from the machine code; None before the kernel is compiled.
  - accesses, instructions: of a thread, from the linear program `uops`.
  - variables: values of the kernel's variables.
  - passes: passes of shared memory that a warp's requests take beyond one each.
  """
  blocks: int
  threads: int
  nbytes: int
  registers: int|None
  issued: Mapping[str, float]|None
  accesses: tuple[Access, ...]
  instructions: tuple[Instruction, ...]
  uops: tuple[UOp, ...]
  variables: Mapping[str, int]
  passes: int = 0

def work(uops: Sequence[UOp], nbytes: int, variables: Mapping[str, int] | None = None, registers: int|None = None,
         code: str|None = None) -> Work:
  """The work of a linear program at the values of its variables. code: its machine code, as cuobjdump prints it."""
  variables = variables or {}
  blocks = math.prod(number(u.src[0], variables) for u in uops if u.op is Ops.SPECIAL and not u.arg.startswith("lidx"))
  shares = [int(u.vmax) + 1 for u in uops if u.op is Ops.PARAM and getattr(u.arg, "name", None) == "core_id"]
  touched = tuple(accesses(uops, variables))
  issued = None
  if code is not None:
    longest = max((length(u, variables) for u in uops if u.op is Ops.RANGE), default=1) or 1
    loads, outer = sum(a.trips for a in touched if not a.store), serial_steps(uops, variables) // longest
    issued = executed(code, loads, outer)
  return Work(blocks * math.prod(shares), local_size(uops, variables), nbytes, registers, issued, touched,
              tuple(instructions(uops, variables)), tuple(uops), variables, further_passes(uops, variables))

def estimate(w: Work, card: GPU | CPU) -> Estimate:
  """The time of a kernel that runs alone on a card, with its data in memory."""
  parts = _on_gpu(w, card) if isinstance(card, GPU) else _on_cpu(w, card)
  us = _together(parts.values(), OVERLAP[type(card)])
  bound = max(parts, key=parts.__getitem__) if us > card.launch else "launch"
  return Estimate(us + card.launch, bound, parts | {"launch": card.launch})

def _together(times: Iterable[float], overlap: float) -> float:
  """The p-norm of times that overlap: their sum for `overlap` 1, close to the longest one if it is large."""
  return float(sum(t ** overlap for t in times) ** (1 / overlap))

def _on_gpu(w: Work, card: GPU) -> dict[str, float]:
  warps, cycle = math.ceil(w.threads / WARP), 1e-3 / card.clock
  held = max(1, min(card.blocks, card.threads // (warps * WARP),
                    card.registers // (max(w.registers or 32, 16) * warps * WARP)))
  each = w.blocks / card.multiprocessors
  busiest = (each + math.ceil(each)) / 2  # blocks of one multiprocessor: fewer warps elsewhere do not help
  issued = w.issued or by_pipe(w.instructions)
  arithmetic = sum(n / card.rates[kind] for kind, n in issued.items() if kind in card.rates)
  arithmetic *= max(1.0, card.issue / (warps * min(busiest, held)))
  lines = issued.get("shared", 0) + w.passes + sum(a.trips * max(a.lines, a.wanted / LINE) for a in w.accesses)
  busy = busiest * warps * _together((arithmetic, lines), 1 + warps * min(busiest, held) / FULL)
  waits = chain(w.uops, card.latency, w.variables).in_order * max(1.0, busiest / held)
  waits += card.latency["dram"] - card.latency["load"]  # the first load misses all caches
  dram = w.nbytes / (EFFICIENCY * card.dram) * 1e-3
  l2 = _from_l2(w, warps, card) / card.l2 * 1e-3
  return {"memory" if dram > l2 else "L2": max(dram, l2), "latency": waits * cycle,
          "arithmetic" if arithmetic > lines else "cache lines": busy * cycle}

def _from_l2(w: Work, warps: int, card: GPU) -> float:
  """Bytes that the multiprocessors request from L2. Small arguments stay in L1: each requests them once."""
  sizes = {u.arg.slot: u.max_numel() * u.dtype.itemsize for u in w.uops if u.op is Ops.PARAM and u.arg.slot >= 0}
  asked = dict[int, float]()
  for a in w.accesses: asked[a.slot] = asked.get(a.slot, 0.0) + warps * w.blocks * a.trips * a.wanted
  return sum(min(n, size * card.multiprocessors) if (size := sizes.get(slot, L1 + 1)) <= L1 else n
             for slot, n in asked.items())

def by_pipe(found: Iterable[Instruction]) -> Counter[str]:
  """A GPU thread's instructions by pipe: arithmetic takes the elements of a vector one by one."""
  issued = Counter[str]()
  for i in found: issued[i.pipe] += i.trips * (1 if i.pipe == "shared" else i.lanes)
  return issued

def _on_cpu(w: Work, card: CPU) -> dict[str, float]:
  rounds, cycle = math.ceil(w.blocks / card.cores), 1e-3 / card.clock
  cycles = sum(i.trips * _cycles(i, card) for i in w.instructions if not i.address)
  waits = chain(w.uops, card.latency, w.variables).sums
  bandwidth = min(card.dram_core * min(w.blocks, card.cores), card.dram) * (STREAMS if _streams(w) > 1 else 1)
  return {"memory": w.nbytes / bandwidth * 1e-3, "arithmetic": cycles * rounds * cycle,
          "latency": waits * rounds * cycle}

def _streams(w: Work) -> int:
  """Streams of the argument from which most bytes are read: distinct pages that its loads start in."""
  read = Counter[int]()
  for a in w.accesses: read[a.slot] += 0 if a.store else a.trips * a.width
  largest = max(read, key=read.__getitem__, default=None)
  return len({a.first // PAGE for a in w.accesses if a.slot == largest and not a.store})

def _cycles(i: Instruction, card: CPU) -> float:
  """Cycles of a core's time that an instruction takes."""
  registers = math.ceil(i.nbytes * i.alike / card.vector) / i.alike
  match i.pipe:
    case "divide": return 8.0 * i.lanes
    case "tensor": return i.lanes / card.products
    case "sfu": return 5.0 * registers
    case "load" | "store": return max(i.nbytes / card.vector, 0.4) / card.loads
    case "element": return i.lanes / card.vectors
    case "int" | "branch" if i.lanes == i.alike == 1: return 1 / card.width
  return registers / card.vectors
