"""
Parts of buffers: kernels that differ only in the part of a buffer that they use are lowered once.

Why: a prompt's chunks of linear attention are one kernel, with other constants in its indices for each chunk. Those
  kernels of 16 chunks took as long to lower and compile as the rest of a delta net's layer.
How: before a schedule is compiled, the constant that all indices into an argument have in common becomes the start of a
  view, which a launch passes as another address. That is done only where kernels become the same by it, so all others
  stay as they are. A view starts at a multiple of 64 bytes, which keeps wide loads aligned.
Rewrite:
  launch k0(x): .. x[i + 4096] ..; launch k1(x): .. x[i + 8192] ..
  --> launch k(x[4096:]), launch k(x[8192:]): .. x[i] ..
Numbers: a prompt of 512 tokens of a Qwen 3.5 shape has 53 programs instead of 80. Processor seconds to lower and
  compile them: 36.8 -> 26.1 (2-core AMD EPYC)
Upstream: could be sent as it is; it belongs between the memory planner and the compiler.
"""
from __future__ import annotations
import functools
from collections.abc import Callable
from tinygrad.engine import realize
from tinygrad.schedule.rangeify import pm_mops
from tinygrad.uop.ops import KernelInfo, Ops, UOp, graph_rewrite
from tinygrad_llm.patches import places
from tinygrad_llm.patches.ir.indices import flat_uses, last_use

SEAMS = {
  "tinygrad.engine.realize:lower_and_compile": "bced2cdfd2f2",
}

ALIGNED = 64  # bytes: the widest vector of a CPU, and more than any load of a GPU

_lower_and_compile: Callable[[UOp], UOp]  # the function before this patch

def _moved(index: UOp, start: int) -> UOp:
  """An index expression, possibly with a condition, of the same element in a buffer that begins `start` later."""
  rest, constant = _constant(index.get_idx())
  moved = rest if constant == start else rest + (constant - start)
  return moved.valid(index.get_valid()) if index.op is Ops.WHERE else moved

def _constant(index: UOp) -> tuple[UOp, int]:
  """An index expression as another one plus a constant."""
  rest, constant = (index.const_like(0), index.val) if index.op is Ops.CONST else index.pop_const()
  return rest, int(constant)

@functools.lru_cache(4096)
def apart(ast: UOp) -> tuple[UOp, dict[int, int]]:
  """A kernel whose parameters begin where its indices do, and {slot: the element where the parameter begins now}."""
  ast = graph_rewrite(ast, pm_mops, name="views into indices", bottom_up=True)
  new, starts = dict[UOp, UOp](), dict[int, int]()
  for p, nodes in flat_uses(ast).items():
    aligned = max(1, ALIGNED // p.element_size())
    start = min(_constant(u.src[1].get_idx())[1] for u in nodes) // aligned * aligned
    if start <= 0: continue
    starts[p.arg.slot] = start
    part = p.replace(src=(p.src[0].const_like(last_use(nodes) + 1 - start),))
    new |= {u: u.replace(src=(part, _moved(u.src[1], start))) for u in nodes}
  return (ast.substitute(new, walk=True) if new else ast), starts

def _candidate(call: UOp) -> bool:
  """Whether a call's kernel is not lowered yet, and its arguments may be views."""
  ast, buffers = call.src[0], realize.get_call_arg_uops(call)
  if call.op is not Ops.CALL or ast.op is not Ops.SINK or not isinstance(ast.arg, KernelInfo): return False
  return (ast.arg.opts_to_apply is None and all(
    isinstance(b.device, str) and not b.device.startswith(("WEBGPU", "CL", "DISK")) for b in buffers))

def lower_and_compile(linear: UOp) -> UOp:
  """Lowers kernels that differ in the parts of buffers as one."""
  found, kernels = dict[UOp, tuple[UOp, dict[int, int]]](), dict[UOp, set[UOp]]()
  for call in filter(_candidate, linear.src):
    same, starts = apart(call.src[0])
    if not all(_may_move(call.src[1 + slot]) for slot in starts): continue
    found[call] = same, starts
    kernels.setdefault(same, set()).add(call.src[0])
  def one(call: UOp) -> UOp:
    same, starts = found[call]
    return call.replace(src=(same, *(_from(b, starts.get(i, 0)) for i, b in enumerate(call.src[1:]))))
  joined = {call: one(call) for call, (same, _) in found.items() if len(kernels[same]) > 1}
  return _lower_and_compile(linear.replace(src=tuple(joined.get(call, call) for call in linear.src)))

def _may_move(buffer: UOp) -> bool:
  """Whether an argument is memory that a view may begin in, not an input that is known when the schedule runs."""
  return (view := buffer.contiguous_view()) is not None and view[0].op is Ops.BUFFER

def _from(buffer: UOp, start: int) -> UOp:
  """An argument from an element on."""
  if not start: return buffer
  flat = buffer.reshape((n := buffer.max_numel(),))
  return flat.shrink(((start, n),))

def install() -> None:
  global _lower_and_compile
  _lower_and_compile = places.wrap(realize, "lower_and_compile", lower_and_compile)
