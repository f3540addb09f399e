"""
Prefill GEMMs with quantised matrices for GPUs: numerics (run by numpy), schedules and compiled code.
"""
import math
import re
from typing import Any, NamedTuple
from unittest import mock

from tests.gpu import gpu_lockstep
from tests.gpu import gpu_renderers
import numpy as np
import tinygrad_llm  # noqa: F401  (before tinygrad: it applies the patches)
from tests.gpu.gpu_numbers import arguments, file_rows, held
from tests.gpu.gpu_schedules import quant_named
from tinygrad import Device, Tensor, Variable, dtypes
from tinygrad.codegen import to_program
from tinygrad.codegen.opt import KernelOptError, Opt
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.dtype import AddrSpace
from tinygrad.engine import realize, worker
from tinygrad.engine.realize import compile_linear, run_linear
from tinygrad.helpers import ceildiv
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.ir import matmuls
from tinygrad_llm.patches.ir.actions import ScheduleOps
from tinygrad_llm.patches.ir.targets import WARP
from tinygrad_llm.patches.search import space
from tinygrad_llm.patches.search.cost.memory_access import accesses
from tinygrad_llm.quants.table import reference
from tinygrad_llm.weights import numerics
from tinygrad_llm.weights.decode import dequantize, layout

class Case(NamedTuple):
  """
  x (tokens, n) times a matrix (rows, n) of a type.

  `most`: maximum of a symbolic number of tokens; 0: the number is constant. `options`: words for variants. x is stored
  as "half", or has "large" values beyond a half's range; "several" matrices have an x each, and their results may be
  "joined". The other words name an epilogue: "bias", "residual", "gate", "heads".
  """
  type: str
  tokens: int
  rows: int
  n: int
  most: int = 0
  options: str = ""

def _float(a: np.ndarray) -> Tensor: return Tensor(a.astype(np.float32)).realize()

def product(case: Case, floats: bool = False) -> tuple[Tensor, np.ndarray]:
  """The lazy product and its expected value. floats: x is not clipped to halves: a device without tensor cores."""
  qt, rng = quant_named(case.type), np.random.default_rng([case.tokens, case.rows])
  packed, lay = held(qt, raw := file_rows(qt, case.rows, case.n), case.n)
  w = dequantize(qt, packed if lay is None else lay.rows(packed), case.n, lay)
  aw = reference(qt, raw.reshape(-1), case.n).reshape(case.rows, case.n).astype(np.float64)
  first = Variable("tokens", 1, case.most).bind(case.tokens) if case.most else case.tokens
  of_all, t = case.most or case.tokens, case.tokens
  x = rng.standard_normal((of_all, case.n)).astype(np.float32)
  if "large" in case.options: x *= np.where(rng.random((1, case.n)) < 0.05, 1e5, 1).astype(np.float32)
  # one sequence, as in a model
  lazy, ax = _float(x)[:first].unsqueeze(0), x[:t].astype(np.float64)
  if "several" in case.options:
    w, aw = w.reshape(2, case.rows // 2, case.n), aw.reshape(2, case.rows // 2, case.n)
    lazy, ax = lazy.cat(lazy * 2), np.stack([ax, ax * 2])
  if not floats or "half" in case.options: ax = ax.clip(-numerics.MOST, numerics.MOST)
  if "half" in case.options: lazy, ax = numerics.halves(lazy), ax.astype(np.float16).astype(np.float64)
  y, ay = lazy @ w.transpose(-1, -2), ax @ aw.swapaxes(-1, -2)
  if "bias" in case.options:
    bias = rng.standard_normal(case.rows)
    y, ay = y + _float(bias), ay + bias
  if "residual" in case.options:
    other = rng.standard_normal((of_all, case.rows))
    y, ay = y + _float(other)[:first].unsqueeze(0), ay + other[:t]
  if "gate" in case.options:
    k = case.rows // 2
    (gate, up), (agate, aup) = y.split([k, k], dim=-1), np.split(ay, 2, -1)
    y, ay = (gate.silu() * up).contiguous(), agate / (1 + np.exp(-agate)) * aup
  if "heads" in case.options:  # (heads, tokens, elements of one)
    y, ay = y.reshape(1, first, 3, -1).transpose(1, 2).contiguous(), ay.reshape(t, 3, -1).transpose(1, 0, 2)
  if "joined" in case.options:  # a token's results of all matrices are adjacent, as heads of attention are
    y, ay = y.transpose(0, 1).reshape(1, first, case.rows).contiguous(), ay.swapaxes(0, 1).reshape(t, case.rows)
  return y, ay

class Found(NamedTuple):
  """error: as a fraction of the root mean square; block: BLOCK's arg, or []; kinds: dtypes of shared-memory arrays."""
  error: float
  block: list[int]
  kernels: int
  wmma: int
  arrays: int
  kinds: list[str]

def _block(opts: tuple) -> list[int]: return next((list(opt.arg) for opt in opts if opt.op is ScheduleOps.BLOCK), [])

def computed(target: str, case: Case) -> Found:
  """Runs a product's last kernel in numpy as compiled for a target; the default device runs the kernels before it."""
  y, wanted = product(case, gpu_renderers.named(target).tensor_cores == [])
  linear, variables = y.linear_with_vars()
  *before, call = linear.src
  if before: run_linear(compile_linear(linear.replace(src=tuple(before))), variables)
  uops = gpu_renderers.lowered(call.src[0], target)
  gpu_lockstep.run(uops, args := arguments(uops, call, variables, {}), variables)
  found = args[0].reshape(*wanted.shape[:-2], -1, wanted.shape[-1])[..., :case.tokens, :].astype(np.float64)
  arrays = [u for u in uops if u.op is Ops.BUFFER and u.addrspace is AddrSpace.LOCAL]
  return Found(float(np.abs(found - wanted).max() / np.sqrt((wanted ** 2).mean())), _block(gpu_renderers.opts(uops)),
               len(linear.src), sum(u.op is Ops.WMMA for u in uops), len(arrays),
               [str(u.dtype) for u in arrays])

def all_computed(target: str, cases: list[list]) -> list[Found]: return [computed(target, Case(*c)) for c in cases]

# *** schedules

def multiplies_halves(target: str) -> bool:
  with mock.patch.object(type(Device[Device.DEFAULT]), "renderer", gpu_renderers.named(target)):
    return numerics.multiplies_halves()

def slots_of_blocks(target: str) -> int:
  with mock.patch.object(type(Device[Device.DEFAULT]), "renderer", gpu_renderers.named(target)):
    return numerics.slots_of_blocks()

def _ast(case: Case) -> UOp: return product(case)[0].linear_with_vars()[0].src[-1].src[0]

def loops(target: str, case: Case) -> space.Loops:
  return space.Loops(space.before_opts(_ast(case), ren := gpu_renderers.named(target)), ren)

def after(options: list[str]) -> list[tuple[int, int, int]]:
  """For GEMMs of 512 tokens: output ranges, output ranges after matmuls.divided, and loads outside the reduction."""
  asts = [_ast(Case("Q8_0", 512, 96, 256, 600, o)) for o in options]
  def outputs(ast: UOp) -> int: return len(ast.src[0].src[1:])
  return [(outputs(ast), outputs(matmuls.divided(ast)), matmuls.loaded_after(ast)) for ast in asts]

def is_refused(k: Scheduler, block: Any) -> bool:
  try: k.copy().apply_opt(Opt(ScheduleOps.BLOCK, None, block))
  except KernelOptError: return True
  return False

def source(target: str, case: Case) -> str: return gpu_renderers.render(_ast(case), target)

# *** compiled

TOKENS = 512

class Code(NamedTuple):
  """hmma: number of tensor-core instructions; read: bytes of the matrix that warps request, per byte of the matrix."""
  block: list[int]
  hmma: int
  registers: int
  stack: int
  read: float

def packed_product(name: str, rows: int, n: int) -> tuple[Tensor, Tensor]:
  """The lazy product of up to TOKENS tokens of halves and a matrix, and the packed matrix."""
  qt = quant_named(name)
  lay = layout(qt, Device[Device.DEFAULT].renderer, rows, n)
  items, dtype = (qt.row_items(n), qt.dtype) if lay is None else (lay.row_words(n // qt.block), dtypes.uint32)
  packed, tokens = Tensor.empty(rows, items, dtype=dtype), Variable("tokens", 1, TOKENS).bind(TOKENS)
  x = Tensor.empty(1, TOKENS, n, dtype=dtypes.half)[:, :tokens]
  return x @ dequantize(qt, packed, n, lay).transpose(-1, -2), packed

def codes(target: str, cases: list[tuple[str, int, int]]) -> list[Code]:
  """The compiled code of products, (type, rows, n) each, for an NVIDIA target."""
  from tinygrad_llm.analysis.programs import compiled
  from tinygrad_llm.device.cuda import resources, sass
  from tinygrad_llm.device.device import open_target
  open_target(target)
  found = []
  for case in cases:
    y, packed = packed_product(*case)
    linear, variables = y.linear_with_vars()
    call = linear.src[-1]
    program = compiled(linear.replace(src=(call,))).src[0].src[0]
    slot = [u.nbytes() for u in call.src[1:]].index(packed.nbytes())
    uops, sizes = program.src[1].src, program.arg.launch_dims(variables)
    warps = math.prod(sizes[0]) * ceildiv(math.prod(sizes[1] or (1,)), WARP)
    loads = [a for a in accesses(uops, variables, warps=32) if not a.store and a.slot == slot]
    (registers, stack), text = resources(program.src[3].arg), sass(program.src[3].arg)
    assert registers is not None and stack is not None and text is not None
    read = warps * sum(a.wanted * a.trips for a in loads) / packed.nbytes()
    hmma, opts = len(re.findall(r"\bHMMA\b", text)), program.src[0].arg.applied_opts
    found.append(Code(_block(opts), hmma, registers, stack, read))
  return found

def by_worker() -> list[str]:
  """The source of a product, generated in this process and in a compile worker."""
  from tinygrad_llm.device.device import open_target
  open_target("CUDA:sm_80")
  task = realize._get_call_to_compile(packed_product("Q8_0", 64, 1024)[0].linear_with_vars()[0].src[-1])
  context = {v.key: v.value for v in realize.to_program_context}
  (_, made), = worker.get_worker_pool().map(realize._compile_kernel, [(0, task, context)])
  return [to_program(*task).src[2].arg, made.src[2].arg]
