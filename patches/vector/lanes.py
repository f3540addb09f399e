"""
SIMD lanes: 16 interleaved rows of a matrix, or 16 neighbouring elements of a sum.

Why: on the CPU a sum is one strictly ordered chain of scalar additions, which no compiler may vectorise.
How: where 16 rows lie side by side in memory, word by word, and the schedule unrolls them, they become a loop over
  lanes: each is a sum of its own, what they share is one number for all, and scales are unpacked 16 at once. Loops over
  what only the other factor depends on, as the tokens of a prompt, go inside of that over such tiles of rows. Else
  16 elements with stride 1 are split off the unrolled part of a sum and become its outermost loop, so that everything
  inside of it is summed lane by lane, and added up once at the end. vectorizer.py makes vector arithmetic of both.
Rewrite:
  for row in 16 UPCAST, w[.., row]: sum k: w[k, row] * x[k]
  --> row is a loop over lanes: sum k: vector w[k] * x[k]
  sum k: w[k] * x[k]  -->  sum lane: (sum k / 16: w[k, lane] * x[k, lane])
Numbers: matvec 8192 x 2048, one core, GB/s, without and with: elements of a sum: F16 1.9 -> 20, Q8_0 1.9 -> 17, Q4_K
  1.0 -> 8.9; rows, with dot_int8_cpu.py: Q4_K 13 -> 43, Q6_K 16 -> 36, Q8_0 17 -> 60 (Zen 4, AVX-512, medians, in the
  cache). Decoding of a 1B model in Q4_K_M 30 -> 45 tok/s; a prompt of it 20 -> 48 tok/s
Upstream: not sent.
"""
from __future__ import annotations
from collections.abc import Iterable
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import AxisType, Ops, PatternMatcher, UOp, UPat, graph_rewrite
from tinygrad_llm.patches import is_on, hooks
from tinygrad_llm.patches.ir.builder import lanes, next_loop
from tinygrad_llm.patches.ir.indices import strides
from tinygrad_llm.patches.ir.sums import added
from tinygrad_llm.patches.ir.targets import LANES, has_vectors

SEAMS = {
  "tinygrad.codegen:full_rewrite_to_sink": "a1124f83af03",
}

def available(ren: Renderer) -> bool:
  """Whether rows side by side become vectors for a target."""
  return has_vectors(ren) and is_on("lanes")

def side_by_side(loads: Iterable[UOp]) -> dict[UOp, UOp]:
  """The ranges of LANES steps that one of the loads follows with stride 1, and that load."""
  return {r: u for u in loads for r, stride in strides(u.src[1].get_idx()).items()
          if stride == 1 and r.src[0].op is Ops.CONST and r.vmax + 1 == LANES}

def _neighbours(red: UOp) -> list[tuple[UOp, int]]:
  """Unrolled ranges of a sum with strides 1, its size, .. in one of the indices, of LANES elements or a multiple."""
  unrolled = {r for r in red.src[1:] if r.arg[-1] is AxisType.UNROLL}
  for u in red.src[0].toposort():
    if u.op is not Ops.INDEX or u.src[0].op not in (Ops.PARAM, Ops.AFTER): continue
    if not all(r in u.ranges for r in red.src[1:]): continue
    found: list[tuple[UOp, int]] = []
    of, stride = {s: r for r, s in strides(u.src[1].get_idx()).items() if r in unrolled}, 1
    while stride < LANES and LANES % stride == 0 and stride in of:
      found.append((of[stride], stride))
      stride *= int(of[stride].vmax) + 1
    if stride % LANES == 0: return found
  return []

def pull_lanes(red: UOp) -> UOp|None:
  if not all(r.op is Ops.RANGE for r in red.src[1:]) or not (ranges := _neighbours(red)): return None
  lane = lanes(LANES, next_loop(red.src[0]))
  subs, rest = dict[UOp, UOp](), [r for r in red.src[1:] if r not in [f for f, _ in ranges]]
  for r, stride in ranges:  # a range is a part of the lane, and of what remains
    end = stride * (int(r.vmax) + 1)
    parts = [lane // stride if end >= LANES else lane // stride % (end // stride)]
    if end > LANES:
      rest.append(new := r.replace(src=(r.src[0].const_like(end // LANES),)))
      parts.append(new * (LANES // stride))
    subs[r] = added(parts)
  body = red.src[0].substitute(subs)
  return (body.reduce(*rest, arg=Ops.ADD) if rest else body).reduce(lane, arg=Ops.ADD)

def rows(sink: UOp) -> UOp:
  """
  An unrolled output axis of LANES elements that lie side by side in memory becomes a loop over lanes. Loops that only
  the other factor depends on go inside of those over such tiles, which caches then hold.
  """
  ops = sink.toposort()
  stores = {r for u in ops if u.op is Ops.END for r in u.src[1:]}
  loads = side_by_side(u for u in ops if u.op is Ops.INDEX and u.src[0].op is Ops.PARAM)
  found = {r: u for r, u in loads.items() if r.arg[-1] is AxisType.UPCAST and r in stores}
  if len(found) != 1: return sink
  (tile, load), id = next(iter(found.items())), next_loop(sink)
  inside = [r for r in stores if r.arg[-1] is AxisType.WEAK and r not in load.ranges]
  subs = {r: r.replace(arg=(id + i, *r.arg[1:])) for i, r in enumerate(sorted(inside, key=lambda r: r.arg))}
  return sink.substitute({tile: lanes(LANES, id + len(inside), AxisType.WEAK), **subs})

pm_pull_lanes = PatternMatcher([(UPat(Ops.REDUCE, arg=(Ops.ADD, 0), name="red"), pull_lanes)])

def run(sink: UOp, ren: Renderer) -> UOp:
  if not has_vectors(ren): return sink
  return made if (made := rows(sink)) is not sink else graph_rewrite(sink, pm_pull_lanes, name="lanes")

def install() -> None: hooks.after_opts.append(run)
