"""
Warp-level reduction by shuffles: the threads of a warp combine their partial sums or maxima by exchanging registers.

Why: In tinygrad's group reduction the threads write their partial results to shared memory and wait at a barrier. Then
  each of them adds up all of it: 32 loads and additions for every row. In a row of 2048 weights the additions are one
  operation in fifteen (Q4_0), and the loads come on top.
How: The pass looks for a group of threads, neighbours in one warp, that share a sum or several sums over the same
  loops. Each thread adds the value of the threads 1, 2, 4, 8 and 16 away. That is one instruction each, spelled for
  each renderer, or two for 64 bits. If a group has several warps, each warp does so and they share the rest by memory.
  Other groups, and targets without such an instruction, keep the shared memory. All threads of the group then have the
  same total; the first one stores it, as before. A sum that is the same for all rows of a product is exchanged after
  the rows' sums: 247 -> 100 registers (norm, gate and up).
Rewrite:
  shared[t] = s; barrier; total = sum t: shared[t]
  --> s += shuffle_xor(s, 1); .. 2; .. 4; .. 8; .. 16
Numbers: Additions of the exchange, a thread with 4 rows: 128 -> 20. Operations a weight, 6144 x 4096: Q4_0 6.23 ->
  6.02, F16 2.25 -> 2.04. On an H100 decode of a 1B Llama in Q4_K_M takes 1.06 times as long without it.
Upstream: not sent; there, a GROUP_REDUCE of at most a warp could lower to shuffles in the renderer's own rules.
"""
from __future__ import annotations
import itertools
from tinygrad import codegen
from tinygrad.codegen import maybe_load
from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import partition, prod
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import AxisType, Ops, PatternMatcher, UOp, UPat
from tinygrad_llm.patches import hooks, is_on, places
from tinygrad_llm.patches.ir.indices import steps
from tinygrad_llm.patches.ir.intrinsics import SHUFFLE, Intrinsic, Language
from tinygrad_llm.patches.ir.targets import THREADS, WARP

SEAMS = {
  "tinygrad.codegen:full_rewrite_to_sink": "a1124f83af03",
  "tinygrad.codegen:devectorizer2": "566768760ee6",
  "tinygrad.codegen:pm_add_loads": "22266df0cafa",
  "tinygrad.codegen.gpudims:add_gpudims": "a163fc8d94f8",
}

# {bit: the shuffle that reads a value of the thread whose number differs in that bit}
EXCHANGES = {bit: Intrinsic(f"exchange {bit}", SHUFFLE, {
  Language.CUDA: f"__shfl_xor_sync(0xffffffffu, {{0}}, {bit})",
  Language.METAL: f"simd_shuffle_xor({{0}}, {bit})",
  Language.PTX: f"shfl.sync.bfly.b32 {{d}}, {{0}}, {bit}, 31, 0xffffffff;"}) for bit in (1, 2, 4, 8, 16)}

def exchanges(ren: Renderer) -> bool:
  """Whether the threads of a warp are combined without shared memory."""
  return is_on("shuffle_reduce") and EXCHANGES[1].text(ren) is not None

def neighbours(group: list[UOp], others: list[UOp]) -> list[UOp]:
  """
  The group's ranges whose threads are neighbours in a warp.

  Empty if the warps would not be full, or if a warp would hold threads of the group that are not its neighbours.
  """
  # tinygrad numbers threads by the order of ranges; it merges the first of more than three, their last one fastest
  lanes = sorted(group, key=lambda r: r.arg[:-1])
  while steps(lanes) > WARP: lanes.pop()
  others = [r for r in (*group, *others) if r not in lanes]
  if steps(lanes) not in (2, 4, 8, 16, 32) or steps(lanes) * steps(others) % WARP: return []
  if any(r in group for r in others) and steps(lanes) != WARP: return []
  before = max(r.arg[:-1] for r in lanes) < min((r.arg[:-1] for r in others), default=(1 << 30,))
  return lanes if before and len(others) <= 2 else []

def run(sink: UOp, ren: Renderer) -> UOp:
  texts = {bit: text for bit, exchange in EXCHANGES.items() if (text := exchange.text(ren)) is not None}
  if not texts: return sink
  ops = sink.toposort()
  threads = [u for u in ops if u.op is Ops.RANGE and u.arg[-1] in THREADS]
  group, others = partition(threads, lambda r: r.arg[-1] is AxisType.GROUP_REDUCE)
  sums = [u for u in ops if u.op is Ops.REDUCE and any(r in group for r in u.src[1:])]
  if not sums or not (lanes := neighbours(group, others)): return sink
  if any(s.arg not in ((Ops.ADD, 0), (Ops.MAX, 0)) or not _is_word(s.dtype) or not set(group) <= set(s.src[1:])
         for s in sums): return sink
  parts = {s: _part(s, group) for s in sums}
  return sink.substitute({s: _exchanged(s, part, group, lanes, texts, [parts[t] for t in sums if _is_beside(s, t)])
                          for s, part in parts.items()})

def _is_word(dtype: DType) -> bool: return dtype is dtypes.float32 or dtypes.is_int(dtype) and dtype.itemsize in (4, 8)

def _part(total: UOp, group: list[UOp]) -> UOp:
  """Each thread's partial result of a reduction: its loops without the group's ranges."""
  loops = [r for r in total.src[1:] if r not in group]
  return total.src[0].reduce(*loops, arg=total.arg[0]) if loops else total.src[0]

def _is_beside(s: UOp, other: UOp) -> bool:
  """Whether `other` has rows that s does not depend on: s is exchanged after it, else all of x stays live."""
  return set(s.ranges) < set(other.ranges) and s not in other.backward_slice

def _other(u: UOp, after: list[UOp], text: str) -> UOp:
  """The value of u in another thread, as registers of 32 bits. after: ordering alone."""
  if u.dtype.itemsize == 8:
    low, high = (_other(half.cast(dtypes.uint32), after, text) for half in (u, u.alu(Ops.SHR, u.const_like(32))))
    return low.cast(u.dtype).alu(Ops.OR, high.cast(u.dtype).alu(Ops.SHL, u.const_like(32)))
  if dtypes.is_int(u.dtype) and u.dtype is not dtypes.uint32:
    return _other(u.bitcast(dtypes.uint32), after, text).bitcast(u.dtype)
  return UOp(Ops.CUSTOM, u.dtype, (u, *after), text)

def _exchanged(s: UOp, part: UOp, group: list[UOp], lanes: list[UOp], texts: dict[int, str], after: list[UOp]) -> UOp:
  """A reduction's total in all threads of a group: shuffles in each warp, after `after`, then shared memory."""
  bit = steps(lanes) // 2
  while bit:
    part = part.alu(s.arg[0], _other(part, after, texts[bit]))
    bit, after = bit // 2, []
  rest = [r for r in group if r not in lanes]
  return part.reduce(*rest, arg=s.arg[0]) if rest else part

def _elements(u: UOp) -> list[UOp]:
  return [u.index(*at) for at in itertools.product(*[[UOp.const(i) for i in range(n)] for n in u.shape])]

def _each(x: UOp) -> UOp|None:
  """Splits a CUSTOM on vectors into one for each element. Operands that only order it may have other shapes."""
  if x.dtype is dtypes.void or all(s.shape == () for s in x.src): return None
  if any(s.shape != x.shape for s in x.src):
    if prod(x.src[0].shape) != 1 or "{1}" in x.arg: return None
    one = x.replace(src=tuple(e for s in x.src for e in _elements(s)))
    return UOp.stack(*[one] * prod(x.shape)).reshape(x.shape)
  each = zip(*map(_elements, x.src))
  return UOp.stack(*[x.replace(src=of) for of in each]).reshape(x.shape)

pm_each = PatternMatcher([(UPat(Ops.CUSTOM, name="x"), _each)])
pm_load = PatternMatcher([
  (UPat(Ops.CUSTOM, (dtypes.float32, dtypes.uint32), name="x"), lambda x: x.replace(src=tuple(map(maybe_load, x.src)))),
])

def install() -> None:
  hooks.after_opts.append(run)
  places.rules(codegen, "pm_add_loads", pm_load)
  places.rules(codegen, "devectorizer2", pm_each)
