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
from tinygrad.dtype import AddrSpace
from tinygrad.engine import realize
from tinygrad.schedule.rangeify import pm_mops
from tinygrad.uop.ops import KernelInfo, Ops, UOp, graph_rewrite
from tinygrad_llm.patches import places

SEAMS = {
  "tinygrad.engine.realize:lower_and_compile": "bced2cdfd2f2",
}

ALIGNED = 64  # bytes: the widest vector of a CPU, and more than any load of a GPU

_lower_and_compile: Callable[[UOp], UOp]  # the function before this patch

def _parameters(ast: UOp) -> dict[int, list[UOp]]:
  """The nodes that index each parameter, by its slot; without parameters that are used otherwise."""
  found, otherwise = dict[int, list[UOp]](), set[int]()
  for u in ast.toposort():
    for i, s in enumerate(u.src):
      if s.op is not Ops.PARAM or s.addrspace is not AddrSpace.GLOBAL: continue
      if u.op is Ops.INDEX and i == 0 and len(u.src) == 2: found.setdefault(s.arg.slot, []).append(u)
      else: otherwise.add(s.arg.slot)
  return {slot: nodes for slot, nodes in found.items()
          if slot not in otherwise and len({u.src[0] for u in nodes}) == 1}

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
  for slot, nodes in _parameters(ast).items():
    p, indices = nodes[0].src[0], [u.src[1].get_idx() for u in nodes]
    if len(p.src) != 1 or p.src[0].op is not Ops.CONST or any(i.vmin < 0 for i in indices): continue
    aligned = max(1, ALIGNED // p.element_size())
    if not (start := min(_constant(i)[1] for i in indices) // aligned * aligned) > 0: continue
    starts[slot] = start
    end = max(int(i.vmax) for i in indices) + 1
    q = p.replace(src=(p.src[0].const_like(end - start),))
    new |= {u: u.replace(src=(q, _moved(u.src[1], start))) for u in nodes}
  return (ast.substitute(new, walk=True) if new else ast), starts

def _candidate(call: UOp) -> bool:
  """Whether a call's kernel is not lowered yet, and its arguments may be views."""
  ast, buffers = call.src[0], realize.get_call_arg_uops(call)
  if call.op is not Ops.CALL or ast.op is not Ops.SINK or not isinstance(ast.arg, KernelInfo): return False
  return (ast.arg.opts_to_apply is None and all(
    isinstance(b.device, str) and not b.device.startswith(("WEBGPU", "CL", "DISK")) for b in buffers))

def lower_and_compile(linear: UOp) -> UOp:
  """Lowers kernels that differ in the parts of buffers as one."""
  alike = dict[UOp, dict[UOp, dict[int, int]]]()
  for call in linear.src:
    if not _candidate(call): continue
    same, starts = apart(call.src[0])
    if all(_may_move(call.src[1 + slot]) for slot in starts): alike.setdefault(same, {})[call.src[0]] = starts
  new = {ast: (same, starts) for same, kernels in alike.items() if len(kernels) > 1 for ast, starts in kernels.items()}
  def one(call: UOp) -> UOp:
    if not _candidate(call) or (found := new.get(call.src[0])) is None: return call
    same, starts = found
    return call.replace(src=(same, *(_from(b, starts.get(i, 0)) for i, b in enumerate(call.src[1:]))))
  return _lower_and_compile(linear.replace(src=tuple(map(one, linear.src))) if new else linear)

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
