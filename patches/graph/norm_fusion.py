"""
Norm fusion: a norm's sum is computed beside the products that it scales: sum_k w_k x_k f(s) = f(s) sum_k w_k x_k.

Why: an RMS norm in front of a matrix is a kernel that adds up x^2 with one workgroup, and the product waits for it.
  The scheduler stores the result of a sum before each row reads it.
How: a large sum may have a factor that is invariant in its loops and reads one stored number. If that number is a sum
  of values that the large sum loads anyway, the factor leaves the large sum. The number is computed beside it, over the
  same loops. That costs one more operation for each x and group of rows, and no load.
  If something else also reads the number, such as an elementwise kernel that stores its result, the number stays a
  kernel.
  Not on CPUs: each loop over rows would add up x^2 again there, and where CPUs multiply bytes, x is written with its
  norm once for all rows. Not for several tokens: a prompt's products are bound by operations, not by launches.
Rewrite:
  s = sum k: x[k] ** 2; y = sum k: w[k] * x[k] * f(s), two kernels
  --> y = f(sum k: x[k] ** 2) * (sum k: w[k] * x[k]), one kernel
Numbers: kernels of a decode step at depth 4,096, compiled for sm_90: 1B Llama 222 -> 189, qwen3moe of 2 layers 37 ->
  32, gpt-oss of 4 layers 68 -> 59, deepseek2 of 6 layers 116 -> 103. Products keep their schedules. In Q4_K they keep
  their 100 registers. Registers of gate and up in Q6_K: 96 -> 127; of gpt-oss's in Q8_0, whose 2,880 columns 30 threads
  share: 80 -> 138; in PTX, of qkv in Q4_K: 154 -> 168. On an H100 decode of a 1B Llama in Q4_K_M takes 1.055 times as
  long without it.
Upstream: not sent; it is a case of fusing sums over the same loops, which needs a cost model there.
"""
from __future__ import annotations
from collections.abc import Iterable
from tinygrad import Device
from tinygrad.dtype import dtypes
from tinygrad.helpers import partition
from tinygrad.renderer import Renderer
from tinygrad.schedule import rangeify
from tinygrad.uop.ops import Ops, PatternMatcher, UOp, UPat
from tinygrad_llm.patches import hooks, places
from tinygrad_llm.patches.graph.split_products import is_large
from tinygrad_llm.patches.ir.indices import size, steps, strides
from tinygrad_llm.patches.ir.sums import added, product

SEAMS = {
  "tinygrad.schedule.rangeify:get_kernel_graph": "410b0e3486ef",
  "tinygrad.schedule.rangeify:pm_limit_bufs": "46f09b443c11",
}

def _inside(us: Iterable[UOp]) -> list[UOp]:
  """All nodes that a kernel for `us` computes or reads; the search stops at stored values."""
  return list(UOp.sink(*us).toposort(lambda u: u.op not in (Ops.STAGE, Ops.AFTER)))

def _loads(us: Iterable[UOp]) -> list[UOp]: return [u for u in _inside(us) if u.op is Ops.INDEX]

def _sums(u: UOp) -> list[UOp]: return [s for s in _inside([u]) if s.op is Ops.REDUCE]

def _numbers(u: UOp) -> list[UOp]:
  """The stored scalars that u reads and that other kernels compute by sums."""
  stored = [i for i in _loads([u]) if i.src[0].op is Ops.STAGE and i.src[0].arg.removable]
  return [i for i in stored if all(r.op is Ops.CONST for r in i.src[0].src[1:]) and _sums(i.src[0].src[0])]

def _are_known(loops: tuple[UOp, ...]) -> bool:
  """Whether loops have constant lengths."""
  return all(r.op is Ops.RANGE and r.src[0].op is Ops.CONST for r in loops)

def _beside(number: UOp, red: UOp, loads: set[UOp]) -> UOp|None:
  """
  The value of a stored number, summed over the loops of `red`.

  None if its own loops differ in length from these, or if it loads anything that is not in `loads`.
  """
  value, inside = number.src[0].src[0], dict[UOp, UOp]()
  for s in _sums(value):
    if (s.arg, s.dtype) != (red.arg, red.dtype) or _sums(s.src[0]): return None
    if not _are_known(s.src[1:]) or [r.vmax for r in s.src[1:]] != [r.vmax for r in red.src[1:]]: return None
    inside[s] = s.replace(src=(s.src[0].substitute(dict(zip(s.src[1:], red.src[1:])), walk=True), *red.src[1:]))
  return value.substitute(inside, walk=True) if loads.issuperset(_loads(s.src[0] for s in inside.values())) else None

def _is_gpus(ren: Renderer) -> bool: return ren.has_local and ren.has_shared

def leaving(red: UOp) -> dict[UOp, UOp]:
  """{factor that leaves a sum: its value, computed beside the sum}; empty if none leaves."""
  if red.arg != (Ops.ADD, 0) or not dtypes.is_float(red.dtype) or not is_large(red): return {}
  if not _are_known(red.src[1:]) or not isinstance(red.device, str): return {}
  factors, found = list(red.src[0].split_uop(Ops.MUL)), dict[UOp, UOp]()
  rest = [f for f in factors if not set(red.src[1:]).isdisjoint(f.ranges)]
  loads = set(_loads(rest))
  for f in factors:
    if f in rest or not (numbers := _numbers(f)): continue
    made = {n: v for n in numbers if (v := _beside(n, red, loads)) is not None}
    if len(made) == len(numbers): found[f] = f.substitute(made, walk=True)
  return found if found and rest and _is_gpus(Device[red.device].renderer) else {}

def _without(red: UOp, factors: dict[UOp, UOp]) -> UOp:
  rest, out = partition(red.src[0].split_uop(Ops.MUL), lambda f: f not in factors)
  total = product(rest).reduce(*red.src[1:], arg=Ops.ADD)
  return product([factors[f] for f in out], total)

def _reached(sink: UOp, subs: dict[UOp, UOp]) -> set[UOp]:
  """The nodes of a graph after the substitution `subs`."""
  found, left = set[UOp](), [sink]
  while left:
    u = left.pop()
    if (u := subs.get(u, u)) in found: continue
    found.add(u)
    left += u.src
  return found

def fuse(sink: UOp) -> UOp|None:
  plan = {u: f for u in sink.toposort(enter_calls=False) if u.op is Ops.REDUCE and (f := leaving(u))}
  while plan:
    subs = {red: _without(red, factors) for red, factors in plan.items()}
    reached = _reached(sink, subs)
    kept = [red for red, factors in plan.items() if reached.isdisjoint(n for f in factors for n in _numbers(f))]
    if len(kept) == len(plan): return sink.substitute(subs)
    plan = {red: plan[red] for red in kept}
  return None

pm_fuse = PatternMatcher([(UPat(Ops.SINK, name="sink"), fuse)])

# *** the layout of the weights splits the loop of a product's sum; the norm's sum beside it gets the same loops

def _flat(index: UOp, loops: tuple[UOp, ...]) -> UOp|None:
  """The terms of an index that enumerate the steps of `loops` one by one; None if they do not."""
  found, at = {r: n for r, n in strides(index).items() if r in loops}, 1
  for r, n in sorted(found.items(), key=lambda item: item[1]):
    if n != at: return None
    at *= int(r.vmax) + 1
  if len(found) != len(loops): return None
  return added([t for t in index.split_uop(Ops.ADD) if not found.keys().isdisjoint(t.ranges)])

def _onto(red: UOp, main: UOp) -> UOp|None:
  """Rewrites a sum over one loop over the loops of `main`, by a load that both share; None if it does not fit."""
  if len(red.src) != 2 or len(main.src) <= 2 or red in main.backward_slice or main in red.backward_slice: return None
  if not _are_known((*red.src[1:], *main.src[1:])) or size(red.src[1]) != steps(main.src[1:]): return None
  for load in _loads([red.src[0]]):
    if _flat(load.src[1], red.src[1:]) is not red.src[1]: continue
    for other in _loads([main.src[0]]):
      if other.src[0] is load.src[0] and (place := _flat(other.src[1], main.src[1:])) is not None:
        return red.src[0].substitute({red.src[1]: place}, walk=True).reduce(*main.src[1:], arg=Ops.ADD)
  return None

def align(sink: UOp, ren: Renderer) -> UOp:
  if not _is_gpus(ren): return sink
  reds = [u for u in sink.toposort() if u.op is Ops.REDUCE and u.arg == (Ops.ADD, 0) and dtypes.is_float(u.dtype)]
  found = {red: new for red in reds for main in reds if (new := _onto(red, main)) is not None}
  return sink.substitute(found, walk=True) if found else sink

def install() -> None:
  places.rules(rangeify, "pm_limit_bufs", pm_fuse, first=True)
  hooks.before_opts.append(align)
