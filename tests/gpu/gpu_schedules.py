"""
Quantised matvec kernels for GPUs: the shapes, types and targets, and limits on their figures.

A role with experts is nn/moe.py's work for the experts that a token chose: gate, up and their activation, or down and
the weighted sum. Nothing runs and no GPU is needed. test_gpu_schedules.py checks a few; these commands check all:

  $ python tests/gpu/gpu_schedules.py [TYPE ..] [--targets T ..] [--roles R ..] [--q8]  # a table (make gpu-schedules)
  $ python tests/gpu/gpu_schedules.py --measure TARGET ROLES TYPES                      # JSON, for a child process
"""
import argparse
import concurrent.futures
import dataclasses
import functools
import json
import math
import os
import pathlib
import subprocess
import sys
from typing import Any, NamedTuple
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

ROLES = {  # rows, n of a decode step's matrices; q, k, v are one matrix, and so are gate, up
  "1b.qkv": (3072, 2048), "1b.out": (2048, 2048), "1b.gate_up": (16384, 2048), "1b.down": (2048, 8192),
  "1b.head": (128256, 2048), "8b.qkv": (6144, 4096), "8b.out": (4096, 4096), "8b.gate_up": (28672, 4096),
  "8b.down": (4096, 14336), "8b.head": (128256, 4096)}

class Experts(NamedTuple):
  """A layer's experts. matrices: 2 for gate and up, 1 for down; rows, n: of each; used: experts a token chooses."""
  matrices: int
  rows: int
  n: int
  experts: int
  used: int

EXPERTS = {f"{name}.{role}": Experts(matrices, *((hidden, dim) if matrices == 2 else (dim, hidden)), experts, used)
           for name, dim, hidden, experts, used in (
             ("qwen3moe", 2048, 768, 128, 8), ("olmoe", 2048, 1024, 64, 8), ("deepseek2", 2048, 1408, 64, 6),
             ("gpt-oss", 2880, 2880, 32, 4))
           for role, matrices in (("gate_up", 2), ("down", 1))}
TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4",
         "NVFP4", "TQ2_0", "F16")
TARGETS = ("CUDA:sm_80", "CUDA:sm_87", "CUDA:sm_90")

USEFUL, THREADS, REGISTERS, OPS, WIDTH = 0.85, 2048, 128, 1.1, 16
OF_TOKENS = 1.75  # limit on ops / needed where several rows of x share the weights
IN_PLACE = 0.8  # limit on ops / needed where fields become floats in place (patches/isa/fields_in_place.py)

@dataclasses.dataclass(frozen=True)
class Figures:
  """
  The figures of one product's kernel.

  `kernels`: their number, without x's. `threads`: in flight. `width`: bytes of the load that reads most of the weights.
  `useful`, `useful_x`: used shares of the touched sectors, of the weights and of x. `held`, `read`: bytes in memory,
  and bytes that warps request, for each byte of the file. `ops`, `needed`: operations a weight, as they are and as
  gpu_checks.needed_ops counts them. `dots`: whether activations are bytes, multiplied by integer dot products.
  `tokens`: rows of x.
  """
  target: str
  role: str
  type: str
  kernels: int
  opts: str
  grid: str
  threads: int
  width: int
  useful: float
  useful_x: float
  held: float
  read: float
  registers: int | None
  stack: int | None
  ops: float
  needed: float
  forbidden: list[str]
  dots: bool = False
  tokens: int = 1

  def wrong(self) -> list[str]:
    """The names of the figures that miss their limits."""
    in_place = self.target.startswith("CUDA") and self.type.startswith("Q") and not self.dots
    most = (IN_PLACE if in_place else OPS) * self.needed
    threads = math.prod(int(opt.split(":")[2]) for opt in self.opts.split() if opt.startswith("GROUP"))
    read = 1.05 if threads <= 32 else 1.12  # two warps of a row read the same sectors of scales, the second from L2
    width, useful = WIDTH, USEFUL
    if self.tokens > 1:  # fewer weights at a time, and more than four rows of x read them again, from L1
      most, read, width, useful = OF_TOKENS * self.needed, read * math.ceil(self.tokens / 4), 4, 0.8
    ok = {"kernels": self.kernels == 1, "width": self.width >= width, "useful": self.useful >= useful,
          "threads": self.threads >= THREADS, "stack": not self.stack, "registers": (self.registers or 0) <= REGISTERS,
          "ops": self.ops <= most, "held": self.held <= 1.05, "read": self.read <= read,
          "forbidden": not self.forbidden}
    return [name for name, right in ok.items() if not right]

def quant_named(name: str) -> Any:
  from tinygrad_llm.quants.table import QUANT_TYPES
  return next(qt for qt in QUANT_TYPES.values() if qt.name == name)

def product(name: str, rows: int, n: int, tokens: int = 1) -> Any:
  """
  x (tokens, 1, n) times a matrix (rows, n): the lazy result, the packed matrix, and the matrix's bytes in a file.

  x is quantised to two bytes if the environment (Q8_ACTIVATIONS) asks for it.
  """
  from tinygrad import Device, Tensor, dtypes
  from tinygrad_llm.weights import numerics
  from tinygrad_llm.weights.decode import dequantize, layout
  qt = quant_named(name)
  lay = layout(qt, Device[Device.DEFAULT].renderer, rows, n)
  items, dtype = (qt.row_items(n), qt.dtype) if lay is None else (lay.row_words(n // qt.block), dtypes.uint32)
  packed, x = Tensor.empty(rows, items, dtype=dtype), Tensor.empty(tokens, 1, n)
  if lay is not None and numerics.multiplies_bytes(): x = numerics.fine(x)
  return x @ dequantize(qt, packed, n, lay).transpose(-1, -2), packed, rows * qt.row_nbytes(n)

def of_experts(qt: Any, lay: Any, packed: Any, role: Experts, x: Any, ids: Any, share: Any) -> Any:
  """nn/moe.py's experts: x (1, 1, 1 or used, n), ids (1, 1, used), share (1, 1, used, 1) -> (1, 1, .., rows)."""
  from tinygrad_llm.nn.ffn import ACTIVATIONS
  from tinygrad_llm.weights.linear import ExpertLinear
  from tinygrad_llm.weights.weight import Weight
  m, rows, n, experts, _ = role
  ys = ExpertLinear([Weight(qt, packed, (m, experts, rows, n), lay)], [None] * m, [None] * m)(x, ids)
  return ACTIVATIONS["silu"](*ys) if m == 2 else (ys[0] * share).sum(2)

def chosen(name: str, role: Experts) -> Any:
  """product() for the experts' matrices that a token chose."""
  from tinygrad import Device, Tensor, dtypes
  from tinygrad_llm.weights.decode import layout
  m, rows, n, experts, used = role
  qt = quant_named(name)
  lay = layout(qt, Device[Device.DEFAULT].renderer, rows, n)
  held = m * experts * rows
  packed = Tensor.empty(held, qt.row_items(n), dtype=qt.dtype) if lay is None else Tensor.empty(
    held // lay.tile, lay.row_words(n // qt.block), lay.tile, dtype=dtypes.uint32)
  x, ids = Tensor.empty(1, 1, 1 if m == 2 else used, n), Tensor.empty(1, 1, used, dtype=dtypes.int32)
  return of_experts(qt, lay, packed, role, x, ids, Tensor.empty(1, 1, used, 1)), packed, held * qt.row_nbytes(n)

def figures(target: str, role: str, name: str, tokens: int = 1) -> Figures:
  """The figures of one product; tokens: not of experts. The default device must be `target`."""
  from tests.gpu import gpu_checks as checks
  from tinygrad import Device
  from tinygrad_llm.analysis.programs import compiled, load_width
  from tinygrad_llm.device.cuda import resources
  from tinygrad_llm.patches.search.cost.memory_access import WARP, accesses
  from tinygrad_llm.weights import numerics
  ren, experts = Device[Device.DEFAULT].renderer, EXPERTS.get(role)
  y, packed, nbytes = chosen(name, experts) if experts else product(name, *ROLES[role], tokens)
  weights = math.prod(ROLES[role]) if experts is None else math.prod(experts[:3]) * experts.used
  linear, _ = y.linear_with_vars()
  calls = [call for call in linear.src if any(u.nbytes() >= packed.nbytes() for u in call.src[1:])]
  call = calls[-1]
  program = compiled(linear.replace(src=(call,))).src[0].src[0]
  slot = max(range(1, len(call.src)), key=lambda i: call.src[i].nbytes()) - 1
  sizes = program.arg.launch_dims({})
  group = math.prod(sizes[1] or (1,))
  loads = [a for a in accesses(program.src[1].src, samples=64, warps=32) if not a.store]
  registers, stack = resources(program.src[3].arg) if len(program.src) > 3 else (None, None)
  opts = " ".join(f"{opt.op.name}:{opt.axis}:{opt.arg}" for opt in program.src[0].arg.applied_opts)
  grid = " of ".join("x".join(map(str, dims or (1,))) for dims in sizes[:2])
  warps = math.prod(sizes[0]) * math.ceil(group / WARP)
  read = warps * sum(load.wanted * load.trips for load in loads if load.slot == slot) / nbytes
  if experts: read *= experts.experts / experts.used
  return Figures(
    target, role, name, len(calls), opts, grid,
    math.prod(sizes[0]) * group, load_width(program.src[1].src, {slot}) or 0,
    checks.useful(x for x in loads if x.slot == slot), checks.useful(x for x in loads if x.slot != slot),
    packed.nbytes() / nbytes, read, registers, stack, int(program.src[0].arg.estimates.ops) / weights,
    checks.needed_ops(call.src[0], ren, weights), checks.forbidden(program, ren, weights), numerics.multiplies_bytes(),
    tokens)

def has_blocks(name: str, role: str) -> bool:
  """Whether a role's rows are a whole number of the type's blocks."""
  n = EXPERTS[role].n if role in EXPERTS else ROLES[role][1]
  return n % quant_named(name).block == 0

def _measure(target: str, roles: list[str], names: list[str], tokens: int) -> None:
  from tinygrad_llm.device.device import open_target
  open_target(target)
  for role in roles:
    for name in names: print(json.dumps(dataclasses.asdict(figures(target, role, name, tokens))), flush=True)

@functools.cache
def measure(target: str, roles: tuple[str, ...], names: tuple[str, ...], q8: bool = False, tokens: int = 1
            ) -> list[Figures]:
  """The figures of roles and types, from a child process. q8: x is quantised to two bytes. tokens: rows of x."""
  keep = ("PATH", "HOME", "PYTHONPATH", "TMPDIR", "LD_LIBRARY_PATH", "XDG_CACHE_HOME", "CACHEDB", "NVRTC_PATH",
          "CUDA_PATH", "NVJITLINK_PATH", "OPENCL_PATH", "OCL_ICD_FILENAMES")
  env = {name: os.environ[name] for name in keep if name in os.environ}
  command = [sys.executable, __file__, "--measure", target, ",".join(roles), ",".join(names), str(tokens)]
  env |= {"PARALLEL": "0", "Q8_ACTIVATIONS": f"{q8:d}"}
  done = subprocess.run(command, env=env, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr[-2000:]
  return [Figures(**json.loads(line)) for line in done.stdout.splitlines()]

def table(rows: list[Figures]) -> str:
  head = ("target", "role", "type", "grid", "width", "useful", "of x", "held", "read", "regs", "ops", "needed", "wrong")
  cells = [head, *((f.target, f.role, f.type, f.grid, f"{f.width}", f"{f.useful:.0%}", f"{f.useful_x:.0%}",
                    f"{f.held:.3f}", f"{f.read:.3f}", f"{f.registers or '-'}", f"{f.ops:.2f}", f"{f.needed:.2f}",
                    " ".join([*f.wrong(), *f.forbidden])) for f in rows)]
  widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
  return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip() for row in cells)

def main() -> None:
  parser = argparse.ArgumentParser(description="What products with quantised matrices compile to for GPUs.")
  parser.add_argument("types", nargs="*", default=list(TYPES), metavar="TYPE")
  parser.add_argument("--targets", nargs="+", default=list(TARGETS))
  parser.add_argument("--roles", nargs="+", default=[*ROLES, *EXPERTS], choices=[*ROLES, *EXPERTS])
  parser.add_argument("--opts", action="store_true", help="print the schedules, too")
  parser.add_argument("--q8", action="store_true", help="activations of two bytes")
  parser.add_argument("--tokens", type=int, default=1, help="rows of x, a sequence each (not of experts)")
  parser.add_argument("--measure", nargs=4, metavar=("TARGET", "ROLES", "TYPES", "TOKENS"), help=argparse.SUPPRESS)
  args = parser.parse_args(["--measure", *sys.argv[2:]] if sys.argv[1:2] == ["--measure"] else None)
  if args.measure:
    target, roles, types, tokens = args.measure
    return _measure(target, roles.split(","), types.split(","), int(tokens))
  jobs = [(target, (role,), names) for target in args.targets for role in args.roles
          if (names := tuple(name for name in args.types if has_blocks(name, role)))]
  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    rows = [row for part in pool.map(lambda job: measure(*job, args.q8, args.tokens), jobs) for row in part]
  print(table(rows))
  if args.opts: print("\n".join(f"{f.target} {f.role} {f.type}: {f.opts}" for f in rows))
  if any(f.wrong() for f in rows): sys.exit(1)

if __name__ == "__main__": main()
