"""
Loads in memory order, for the hardware prefetcher: a loop that streams through memory reads it in order.

Why: a processor's prefetcher follows addresses that ascend. The C compiler moves loads to where their registers are
  free: of a block with fields apart from each other it reads two places in turns, and the prefetcher loses both.
How: in the innermost loop over a buffer that is larger than a cache, loads of vectors are put in the order of their
  addresses, and are volatile, which keeps them there.
Numbers: matvec 65536 x 2048, one core, GB/s: Q5_K 9.5 -> 20.4, Q6_K 9.8 -> 23.8, Q4_K 29 -> 26, Q8_0 31 -> 31. To ask
  for lines ahead (__builtin_prefetch) instead halves Q4_K and does not help Q6_K (Zen 4, medians of 11, interleaved)
Upstream: not sent.
"""
from __future__ import annotations
from tinygrad.renderer import Renderer
from tinygrad.renderer.cstyle import ClangRenderer
from tinygrad.uop.ops import Ops, PatternMatcher, UOp, UPat, axis_to_pos
from tinygrad_llm.patches import passes
from tinygrad_llm.patches.passes import has_vectors

SEAMS = {
  "tinygrad.renderer.cstyle:base_rewrite": "ef3d9dfef266",
}

LARGEST = 1 << 19  # bytes of a buffer that caches hold anyway
WIDTH = 16         # bytes of a load, at least

def _innermost(u: UOp) -> UOp|None:
  loops = [r for r in u.ranges if r.op is Ops.RANGE]
  return max(loops, key=lambda r: (axis_to_pos[r.arg[-1]], r.arg[:-1])) if loops else None

def offset(idx: UOp) -> int:
  """The numbers in an address."""
  return sum(t.src[0].val for t in idx.split_uop(Ops.ADD) if t.op is Ops.CAST and t.src[0].op is Ops.CONST)

def order(sink: UOp, ren: Renderer) -> UOp:
  if not has_vectors(ren): return sink
  streams: dict[tuple[UOp, UOp], dict[int, UOp]] = {}  # (buffer, innermost loop) -> the loads, by their constant offset
  for u in sink.toposort():
    if u.op is not Ops.LOAD or len(u.src) != 1 or u.src[0].op is not Ops.SHRINK: continue
    buf, idx = u.src[0].src[:2]
    if buf.op is not Ops.PARAM or buf.max_numel() * buf.dtype.itemsize <= LARGEST: continue
    if u.max_numel() * u.dtype.itemsize < WIDTH or (loop := _innermost(idx)) is None: continue
    streams.setdefault((buf, loop), {})[offset(idx)] = u
  subs: dict[UOp, UOp] = {}
  for (buf, _), loads in streams.items():
    before: UOp|None = None
    for _, u in sorted(loads.items()):
      place = u.src[0].replace(src=(buf if before is None else buf.after(before), *u.src[0].src[1:]))
      before = subs[u] = u.replace(src=(place,))
  return sink.substitute(subs) if subs else sink

pm_render_in_order = PatternMatcher([
  # what comes after another load
  (UPat(Ops.LOAD, src=(UPat(Ops.SHRINK, src=(UPat(Ops.AFTER, src=(UPat(Ops.PARAM), UPat(Ops.LOAD))), UPat(), UPat()),
                            name="place"),)),
   lambda ctx, place: f"({ctx.render_access(place).replace('*((', '*((volatile ', 1)})"),
])

def install() -> None:
  ClangRenderer.string_rewrite = pm_render_in_order + ClangRenderer.string_rewrite
  passes.before_linearize.append(order)
