"""
SIMD lanes: 16 interleaved rows of a matrix, or 16 neighbouring elements of a sum.

Why: On the CPU a reduction is one strictly ordered chain of scalar additions, which no compiler may vectorise.
How: Where 16 rows are interleaved in memory, word by word, and the schedule unrolls them, the pass makes them a loop
  over lanes (a row tile). Each lane has an accumulator of its own, values that rows share stay scalars, and scales are
  unpacked 16 at once. Loops that only the other factor depends on, such as the tokens of a prompt, go inside the loop
  over row tiles. Otherwise 16 elements with stride 1 are split off the unrolled part of a reduction. They become its
  outermost loop, so everything inside is summed lane by lane, and the lanes are added up once at the end. vectorizer.py
  makes vector arithmetic of both.
Rewrite:
  for row in 16 UPCAST, w[.., row]: sum k: w[k, row] * x[k]
  --> row is a loop over lanes: sum k: vector w[k] * x[k]
  sum k: w[k] * x[k]  -->  sum lane: (sum k / 16: w[k, lane] * x[k, lane])
Numbers: Matvec 8192 x 2048, one core, GB/s, without and with. Elements of a sum: F16 1.9 -> 20, Q8_0 1.9 -> 17, Q4_K
  1.0 -> 8.9. Rows, with dot_int8_cpu.py: Q4_K 13 -> 43, Q6_K 16 -> 36, Q8_0 17 -> 60 (Zen 4, AVX-512, medians, in the
  cache). Decoding of a 1B model in Q4_K_M 30 -> 45 tok/s; a prompt of it 20 -> 48 tok/s.
Upstream: not sent; it needs an axis type for lanes, see vectorizer.
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
  """Whether interleaved rows become vectors for the target."""
  return has_vectors(ren) and is_on("lanes")

def side_by_side(loads: Iterable[UOp]) -> dict[UOp, UOp]:
  """{range of LANES steps: the load whose index has it with stride 1}."""
  return {r: u for u in loads for r, stride in strides(u.src[1].get_idx()).items()
          if stride == 1 and r.src[0].op is Ops.CONST and r.vmax + 1 == LANES}

def interleaved(loads: Iterable[UOp]) -> dict[UOp, UOp]:
  """side_by_side() without the loads that only give another load's place, such as an expert's number."""
  loads = [*loads]
  places = {v for u in loads for v in u.src[1].backward_slice}
  return side_by_side(u for u in loads if u not in places)

def _neighbours(red: UOp) -> list[tuple[UOp, int]]:
  """Unrolled ranges that count LANES contiguous elements of a buffer, or a multiple, and their strides; or []."""
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
  for r, stride in ranges:  # a range is part of the lane number, and part of a loop over the remaining elements
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
  Makes a loop over lanes of an unrolled output axis whose LANES elements are contiguous in memory.

  Loops that only the other factor depends on go inside the loops over such row tiles, so that caches hold a tile.
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
