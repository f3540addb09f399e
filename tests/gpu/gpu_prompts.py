"""Prefill attention and expert GEMMs for GPUs: kernels run by numpy, and figures of them."""
import re
from typing import NamedTuple
from unittest import mock

from tests.support import attention
from tests.gpu import gpu_lockstep
from tests.gpu import gpu_renderers
import numpy as np
import tinygrad_llm  # noqa: F401  (before tinygrad: it applies the patches)
from tests.support.attention import Case, Problem
from tests.gpu.gpu_numbers import arguments, file_rows, held
from tests.gpu.gpu_schedules import quant_named
from tinygrad import Tensor, Variable
from tinygrad.engine.realize import compile_linear, run_linear
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.attention import flash_decoding
from tinygrad_llm.patches.attention.part import Part
from tinygrad_llm.patches.ir.actions import ScheduleOps
from tinygrad_llm.patches.search.cost.memory_access import number
from tinygrad_llm.quants.table import reference
from tinygrad_llm.weights import numerics
from tinygrad_llm.weights.expert_blocks import expert_blocks
from tinygrad_llm.weights.linear import ExpertLinear
from tinygrad_llm.weights.weight import Weight

# *** attention

class Asked(NamedTuple):
  """Prefill attention by two kernels. name, wmma (tensor-core products), threads of a workgroup: the first kernel's."""
  error: float
  name: str
  wmma: int
  threads: int

def kernels(case: Case, target: str) -> tuple[list[UOp], dict[str, int]]:
  """The kernel calls of an attention as compiled for a target, and the variables."""
  before = flash_decoding.fits
  def fits(ren: Renderer, depth: int, width: int, many: bool) -> bool:
    return before(gpu_renderers.named(target), depth, width, many)
  with mock.patch.multiple(flash_decoding, has_vectors=lambda ren: False, fits=fits):
    linear, variables = Problem(case).tensor().linear_with_vars()
  return list(linear.src), variables

def asked(case: Case, target: str) -> Asked:
  """Runs the attention's two kernels in numpy; the default device runs the kernels before them."""
  (*before, parts, combined), variables = kernels(case, target)
  if before: run_linear(compile_linear(UOp(Ops.LINEAR, src=tuple(before))), variables)
  stored, lowered = dict[object, np.ndarray](), [gpu_renderers.lowered(c.src[0], target) for c in (parts, combined)]
  for call, uops in zip((parts, combined), lowered):
    gpu_lockstep.run(uops, arguments(uops, call, variables, stored), variables)
  size = case.B * case.T * case.KVH * case.G * case.width
  name = next(u for u in lowered[0] if u.op is Ops.SINK).arg.name
  return Asked(attention.error(stored[combined.src[1].buffer][:size], case), name,
               sum(u.op is Ops.WMMA for u in lowered[0]), gpu_renderers.group(lowered[0]))

def all_asked(target: str, cases: list[dict]) -> list[Asked]: return [asked(Case(**c), target) for c in cases]

def parts(case: dict, target: str) -> int:
  """The number of kernels that compute parts of flash decoding."""
  return sum(Part.of(call.src[0]) is not None for call in kernels(Case(**case), target)[0])

def steps(cases: list[dict], target: str) -> list[list[int]]:
  """The number of position blocks, from the first one on, that each query block iterates over."""
  found = list[list[int]]()
  for case in cases:
    calls, variables = kernels(Case(**case), target)
    ast = next(call.src[0] for call in calls if Part.of(call.src[0]) is not None)
    loops = [u for u in gpu_renderers.lowered(ast, target) if u.op is Ops.RANGE]
    (loop, block), = [(u, x) for u in loops for x in u.src[0].toposort() if x.op is Ops.SPECIAL]
    found.append([number(loop.src[0].substitute({block: UOp.const(i)}), variables)
                  for i in range(number(block.src[0], variables))])
  return found

class Code(NamedTuple):
  """hmma: number of tensor-core instructions; stack: bytes of a thread's stack, as for spills."""
  hmma: int
  registers: int
  stack: int

def codes(target: str, cases: list[dict]) -> list[Code]:
  """The compiled code of prefill attention for an NVIDIA target."""
  from tinygrad_llm.analysis.programs import compiled
  from tinygrad_llm.device.cuda import resources, sass
  from tinygrad_llm.device.device import open_target
  open_target(target)
  found = []
  for case in cases:
    linear, _ = Problem(Case(**case)).tensor().linear_with_vars()
    call = next(call for call in linear.src if Part.of(call.src[0]) is not None)
    program = compiled(linear.replace(src=(call,))).src[0].src[0]
    (registers, stack), text = resources(program.src[3].arg), sass(program.src[3].arg)
    assert registers is not None and stack is not None and text is not None
    found.append(Code(len(re.findall(r"\bHMMA\b", text)), registers, stack))
  return found

# *** experts

class Product(NamedTuple):
  """An expert GEMM. block: BLOCK's arg; wmma: tensor-core products; ended: loops whose bound is loaded from memory."""
  block: list[int]
  wmma: int
  ended: int

class Experts(NamedTuple):
  """A prompt's MoE output: its error and its expert GEMMs."""
  error: float
  products: list[Product]

def _linear(name: str, m: int, count: int, rows: int, n: int) -> tuple[ExpertLinear, np.ndarray]:
  """Experts repacked for GPUs, and their weights in float64 (m, count, rows, n)."""
  qt, raw = quant_named(name), file_rows(quant_named(name), m * count * rows, n)
  packed, lay = held(qt, raw, n)
  made = ExpertLinear([Weight(qt, packed, (m, count, rows, n), lay)], [None] * m, [None] * m)
  made.q8, made.halves = [False], True
  return made, reference(qt, raw.reshape(-1), n).reshape(m, count, rows, n).astype(np.float64)

def _products(y: Tensor, target: str) -> list[Product]:
  """Computes y: kernels with a BLOCK in numpy as compiled for a target, all others on the default device."""
  linear, variables = y.linear_with_vars()
  found = list[Product]()
  for call in linear.src:
    uops = gpu_renderers.lowered(call.src[0], target) if call.src[0].op is Ops.SINK else []
    block = [opt for opt in gpu_renderers.opts(uops) if opt.op is ScheduleOps.BLOCK] if uops else []
    if not block:
      run_linear(compile_linear(linear.replace(src=(call,))), variables)
      continue
    gpu_lockstep.run(uops, args := arguments(uops, call, variables, {}), variables)
    stored = call.src[1].buffer.ensure_allocated().as_memoryview(force_zero_copy=True)
    np.frombuffer(stored, np.uint8)[:] = args[0].view(np.uint8)
    ended = sum(u.op is Ops.RANGE and u.src[0].op_in_backward_slice_with_self(Ops.LOAD) for u in uops)
    found.append(Product(list(block[0].arg), sum(u.op is Ops.WMMA for u in uops), ended))
  return found

def experts(name: str, target: str, tokens: int, used: int = 2) -> Experts:
  """Runs a prompt's MoE layer: gate and up, SiLU, and down, by the experts that each token chose."""
  count, rows, n, hidden, most, rng = 4, 80, 512, 256, 60, np.random.default_rng(5)
  (gate_up, of_gate_up), (down, of_down) = _linear(name, 2, count, hidden, n), _linear(name, 1, count, rows, hidden)
  x = rng.standard_normal((most, n)).astype(np.float32)
  ids = np.stack([rng.permutation(count)[:used] for _ in range(most)]).astype(np.int32)
  shares, of = rng.random((most, used)).astype(np.float32), Variable("tokens", 1, most).bind(tokens)
  lazy_x, lazy_ids, lazy_shares = (Tensor(a).realize()[:of] for a in (x, ids, shares))
  blocks = expert_blocks(lazy_ids, count, numerics.GPU_SLOTS)
  Tensor.realize(blocks.experts, blocks.tokens, blocks.slots)
  gate, up = gate_up.of_blocks(lazy_x, blocks)
  h = blocks.filled(down.multiplied(gate.silu() * up))
  y = blocks.of_tokens(blocks.filled(down.of_blocks(h, blocks)[0]), lazy_shares).contiguous()
  found = _products(y, target)
  gates, ups = np.einsum("mtkrn,tn->mtkr", of_gate_up[:, ids[:tokens]], x[:tokens].astype(np.float64))
  made = np.einsum("tkrn,tkn->tkr", of_down[0, ids[:tokens]], gates / (1 + np.exp(-gates)) * ups)
  wanted = (made * shares[:tokens, :, None]).sum(1)
  got = np.frombuffer(y.uop.base.buffer.as_memoryview(), np.float32)[:wanted.size].reshape(wanted.shape)
  return Experts(float(np.abs(got - wanted).max() / np.sqrt((wanted ** 2).mean())), found)

# *** elementwise kernels with a symbolic number of tokens

class Elements(NamedTuple):
  """error: the largest difference; opts: the kernel's; threads: of a workgroup."""
  error: float
  opts: list[str]
  threads: int

def elements(target: str, n: int, tokens: int = 5) -> Elements:
  """2 * x + 1 of n numbers of each token: a kernel of one range."""
  most, of = 12, Variable("tokens", 1, 12).bind(tokens)
  x = np.random.default_rng(n).standard_normal((most, n)).astype(np.float32)
  call = (Tensor(x).realize()[:of].reshape(of * n) * 2 + 1).contiguous().linear_with_vars()[0].src[-1]
  uops, variables = gpu_renderers.lowered(call.src[0], target), {"tokens": tokens}
  gpu_lockstep.run(uops, args := arguments(uops, call, variables, {}), variables)
  found, wanted = args[0][:tokens * n], x[:tokens].ravel() * 2 + 1
  return Elements(float(np.abs(found - wanted).max()), [opt.op.name for opt in gpu_renderers.opts(uops)],
                  gpu_renderers.group(uops))

def all_elements(target: str, sizes: list[int]) -> list[Elements]: return [elements(target, n) for n in sizes]
