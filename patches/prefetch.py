"""
A loop that streams through memory asks for what it reads next.

Why: one core has few outstanding misses, and the hardware's prefetcher stops at a page's end and starts anew with each
  stream. llama.cpp's kernels prefetch by hand.
How: in the innermost loop over a buffer that is larger than a cache and read in order, each cache line that one step
  reads is asked for DISTANCE bytes ahead. A prefetch beyond the buffer is harmless: it never faults.
Numbers: Q4_K matvec 8192 x 8192, one core: 5.80 -> 7.02 GB/s (Zen 4, clang 20, medians of 15, interleaved)
Upstream: not sent.
"""
from __future__ import annotations
from tinygrad.dtype import dtypes
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import Ops, UOp, axis_to_pos
from tinygrad_llm.patches import passes
from tinygrad_llm.patches.vectors import has_vectors

SEAMS = {"tinygrad.renderer.cstyle:base_rewrite": "ef3d9dfef266"}

DISTANCE = 2048   # bytes
LINE = 64         # bytes
LARGEST = 1 << 19 # bytes of a buffer that caches hold anyway
PREFETCH = "__builtin_prefetch({0});"

def _step(idx: UOp, loop: UOp) -> int|None:
  """How far an index moves with each step of a loop, if by a constant."""
  step = 0
  for term in idx.split_uop(Ops.ADD):
    if loop not in term.ranges: continue
    if term is loop: step += 1
    elif term.op in (Ops.MUL, Ops.SHL) and term.src[0] is loop and (by := term.src[1].src[0] if term.src[1].op is Ops.CAST else term.src[1]).op is Ops.CONST:
      step += by.val if term.op is Ops.MUL else 1 << by.val
    else: return None
  return step

def prefetch(sink: UOp, ren: Renderer) -> UOp:
  if not has_vectors(ren): return sink
  ops = sink.toposort()
  streams: dict[tuple[UOp, UOp], dict[int, UOp]] = {}  # (buffer, innermost loop) -> the loads, by their constant offset
  for u in ops:
    if u.op is not Ops.LOAD or len(u.src) != 1 or u.src[0].op not in (Ops.INDEX, Ops.SHRINK): continue
    buf, idx = u.src[0].src[:2]
    if buf.op is not Ops.PARAM or buf.max_numel() * buf.dtype.itemsize <= LARGEST: continue
    loops = [r for r in idx.ranges if r.op is Ops.RANGE]
    if not loops: continue
    inner = max(loops, key=lambda r: (axis_to_pos[r.arg[-1]], r.arg[:-1]))
    const = sum(t.src[0].val for t in idx.split_uop(Ops.ADD) if t.op is Ops.CAST and t.src[0].op is Ops.CONST)
    streams.setdefault((buf, inner), {})[const] = u
  subs: dict[UOp, UOp] = {}
  for (buf, loop), loads in streams.items():
    first = loads[min(loads)]
    at, size = first.src[0].src[1], buf.dtype.itemsize
    step = _step(at, loop)
    if step is None or not LINE // 4 <= abs(step) * size <= DISTANCE: continue
    span = (max(loads) - min(loads)) * size + LINE - 1
    asks = [UOp(Ops.CUSTOM, dtypes.void, (buf.index(at + UOp.cconst((DISTANCE + line) // size, at.dtype)),), PREFETCH)
            for line in range(0, min(span, abs(step) * size), LINE)]
    subs[first] = first.replace(src=(first.src[0].replace(src=(buf.after(*asks), *first.src[0].src[1:])),))
  return sink.substitute(subs) if subs else sink

def install() -> None: passes.before_linearize.append(prefetch)
