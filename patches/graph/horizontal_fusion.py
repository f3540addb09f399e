"""
Horizontal fusion: products that read the same input, and not each other's output, are one launch on a CPU.

Why: matrices of one type that share an input lie in memory as one matrix. In mixed files such as Q4_K_M some have
  another type. The product with such a matrix is a launch of its own, and all threads wait for each other once more.
How: two consecutive calls whose loops have known lengths become two stages of one kernel without a barrier between
  them. Each thread does its share of the first stage and then its share of the second.
Rewrite:
  launch y = a @ x; launch z = b @ x
  --> launch (thread t: its rows of y; its rows of z), no barrier between
Numbers: kernels of a decode step of a 1B model in Q4_K_M, in which every second layer has another type for v:
  173 -> 165
Upstream: not sent; a scheduler that knows which kernels are independent could also use it for a GPU's queues.
"""
from __future__ import annotations
import functools
from collections.abc import Callable
from dataclasses import replace
from math import prod
from tinygrad import Device, codegen, schedule
from tinygrad.dtype import AddrSpace
from tinygrad.helpers import NOOPT
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import AxisType, KernelInfo, Ops, UOp
from tinygrad_llm.patches import hooks, places
from tinygrad_llm.patches.graph.kernel_chains import Chain, changed, chain_of, fits, joined, renumbered
from tinygrad_llm.patches.ir import labels
from tinygrad_llm.patches.ir.targets import has_vectors
from tinygrad_llm.patches.schedule.cpu_threads import one_thread

SEAMS = {
  "tinygrad.schedule:create_schedule": "6d62571e1f8d",
  "tinygrad.codegen:full_rewrite_to_sink": "a1124f83af03",
}

BESIDE = "beside"  # name of a kernel whose stages have no barrier between them, until it is lowered

# the functions that this patch wraps
_create_schedule: Callable[[UOp], UOp]
_full_rewrite_to_sink: Callable[..., UOp]

def kernels_of(ast: UOp) -> tuple[UOp, ...]:
  """
  The kernels of a launch that are scheduled independently: the kernel itself, or stages without barriers between them.

  Empty for a chain (kernel_chains.py).
  """
  stages = tuple(s for s in ast.src if s.op is Ops.SINK)
  return (ast,) if not stages else stages if ast.arg.name == BESIDE else ()

def _is_product(call: UOp) -> bool:
  """Whether a call is a CPU kernel with a sum whose loops all have known lengths."""
  ast = call.src[0]
  if ast.op is not Ops.SINK or not isinstance(ast.arg, KernelInfo) or ast.arg.opts_to_apply is not None: return False
  if ast.tag is not None or any(s.op is Ops.SINK for s in ast.src): return False
  devices = {b.device for b in call.src[1:]}
  if len(devices) != 1 or not isinstance(device := devices.pop(), str) or not has_vectors(Device[device].renderer):
    return False
  ops = ast.toposort()
  if any(u.op in (Ops.CUSTOM, Ops.CUSTOMI, Ops.BUFFER) or u.op is Ops.PARAM and u.addrspace is not AddrSpace.GLOBAL
         for u in ops): return False
  loops = [u for u in ops if u.op is Ops.RANGE]
  return any(u.op is Ops.REDUCE for u in ops) and all(
    r.src[0].op is Ops.CONST and r.arg[-1] in (AxisType.WEAK, AxisType.REDUCE) for r in loops)

def _beside(a: Chain, b: Chain) -> bool:
  if a.small or b.small or len(a.calls) > 1 or not _is_product(a.calls[0]) or not _is_product(b.calls[0]): return False
  read = (a.uses - a.writes) & (b.uses - b.writes)
  return bool(read) and not a.conflicts(b) and fits(a, b)

def create_schedule(sink: UOp) -> UOp:
  linear, chains = _create_schedule(sink), list[Chain]()
  if NOOPT: return linear
  for call in linear.src:
    chain = chain_of(call)
    if chains and _beside(chains[-1], chain): chains[-1].add(chain)
    else: chains.append(chain)
  def one(chain: Chain) -> UOp:
    call = joined(chain)
    if len(chain.calls) == 1: return call
    return call.replace(src=(call.src[0].replace(arg=KernelInfo(BESIDE)), *call.src[1:]))
  return linear.replace(src=tuple(map(one, chains)))

def _threads(lower: Callable[[], UOp]) -> int:
  """The number of threads of the kernel that lower() lowers."""
  loops = [u for u in hooks.chosen(lower).toposort() if u.op is Ops.RANGE and u.arg[-1] is AxisType.THREAD]
  return prod(int(u.vmax) + 1 for u in loops)

def full_rewrite_to_sink(ast: UOp, ren: Renderer, optimize: bool = True) -> UOp:
  if not isinstance(ast.arg, KernelInfo) or ast.arg.name != BESIDE: return _full_rewrite_to_sink(ast, ren, optimize)
  threads = {_threads(functools.partial(_full_rewrite_to_sink, stage, ren, optimize)) for stage in ast.src}
  if len(threads - {1}) > 1:
    alone = [stage.replace(arg=replace(stage.arg, opts_to_apply=None)) for stage in ast.src]
    with one_thread(): stages = [_full_rewrite_to_sink(stage, ren, optimize) for stage in alone]
  else: stages = [_full_rewrite_to_sink(stage, ren, optimize) for stage in ast.src]
  stages = [renumbered(stage, i) for i, stage in enumerate(stages)]
  buffers = {u.arg.slot for stage in stages for u in stage.toposort()
             if u.op is Ops.PARAM and u.addrspace is AddrSpace.GLOBAL}
  def numbered(u: UOp) -> UOp:  # the thread's number takes the slot after all buffers
    is_variable = u.op is Ops.PARAM and u.addrspace is AddrSpace.ALU
    return u.replace(arg=replace(u.arg, slot=len(buffers))) if is_variable else u
  stages = [changed(stage, numbered) for stage in stages]
  return labels.of_stages("p", stages, [s for stage in stages for s in stage.src])

def install() -> None:
  global _create_schedule, _full_rewrite_to_sink
  _create_schedule = places.wrap(schedule, "create_schedule", create_schedule)
  _full_rewrite_to_sink = places.wrap(codegen, "full_rewrite_to_sink", full_rewrite_to_sink)
