"""
Loads in memory order with software prefetch: a streaming loop reads memory in order and requests it early.

Why: A hardware prefetcher follows ascending addresses. The C compiler moves loads to where registers are free: in a
  block whose fields lie apart it alternates between two places, and the prefetcher loses both. The prefetcher also does
  not look far enough ahead, because a core unpacks and multiplies between two cache lines.
How: The pass looks at innermost loops over a buffer that is larger than a cache. It sorts the vector loads by address
  and makes them volatile, which fixes their order. live_ranges.py places the computations between them. Each load
  prefetches what lies AHEAD bytes further, or the distance of a schedule's action PREFETCH; 0 leaves everything to the
  compiler. The distance must exceed a core's bandwidth times the memory's latency: 35 GB/s and 100 ns are 3.5 KB.
Rewrite:
  loads of a block in the compiler's order
  --> volatile loads in the order of addresses, each with prefetch(address + AHEAD)
Numbers: Matvec 151936 x 2048 in Q6_K, 258 MB, 2 threads, AMD EPYC with AVX-512, medians in turns, GB/s. In clang's
  order 25.9, in memory order 23.1. In memory order with a prefetch 0.5, 1, 2, 4, 8 KB ahead 23.8, 25.9, 32.9, 37.2,
  38.7; reading alone has 48.9. With 4 KB ahead but not in order 22.4, where both have 31.0. Without all of this a 1B
  shape of 2 layers decodes at 0.72 of the speed in Q6_K, 0.56 in MXFP4, 0.91 in F16, 0.95 in Q8_0. Shorter live ranges,
  8192 x 2048, one core of a Zen 4, new / old time from memory and from a cache. One row: Q6_K 0.85, 0.68, Q5_K 0.82,
  0.86, IQ4_XS 0.89, 0.78, Q4_K 0.94, 0.95, Q8_0 0.90, 0.91, MXFP4 0.92, 1.01. With 4 rows: Q6_K 0.47, 0.61, Q5_K 0.61,
  0.69, Q4_K 0.87, 0.93. With 8 rows: Q6_K 0.65, Q5_K 0.57, Q4_K 0.91. The prefetch's target, Q6_K, 2 cores, ms: without
  a prefetch, 8 KB ahead to the first cache, to the second, 1 KB ahead. With 4 rows 0.50, 0.48, 0.41, 0.68; with one row
  0.39, 0.44, 0.46, 0.41. Time with 8 KB by time with 1 KB, 8192 x 2048, 2 cores of a Zen 5 at 49 to 68 GB/s: Q4_K 0.85,
  Q6_K 0.85, F16 0.80, BF16 0.92; with 2 rows Q4_K 0.74, Q6_K 0.72. 2 and 4 KB are in between, 16 KB is no better.
Upstream: not sent; there, its linearize could order loads by a priority, without volatile.
"""
from __future__ import annotations
from tinygrad.codegen.opt import Opt, check
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.renderer import Renderer
from tinygrad.renderer.cstyle import ClangRenderer
from tinygrad.uop.ops import Ops, PatternMatcher, UOp, UPat
from tinygrad_llm.patches import hooks, places
from tinygrad_llm.patches.ir.actions import ScheduleOps, check_amount, chosen
from tinygrad_llm.patches.ir.targets import has_vectors, registers
from tinygrad_llm.patches.vector.live_ranges import innermost, shortened

SEAMS = {
  "tinygrad.codegen.opt.postrange:Scheduler": "35256edac7fb",
  "tinygrad.renderer.cstyle:base_rewrite": "ef3d9dfef266",
}

LARGEST = 1 << 19  # bytes: caches hold a buffer of this size anyway
WIDTH = 16         # bytes: smaller loads are left alone
AHEAD = 8192       # prefetch distance in bytes
CACHE = 2          # locality argument of __builtin_prefetch: into the core's second-level cache
STREAM = "stream"  # first part of such a load's tag; the second is its prefetch distance
FARTHEST = 1 << 16  # bytes: the largest distance of PREFETCH

def _is_number(u: UOp) -> bool: return u.op is Ops.CAST and u.src[0].op is Ops.CONST

def offset(idx: UOp) -> int:
  """The constant part of an index."""
  return sum(t.src[0].val for t in idx.split_uop(Ops.ADD) if _is_number(t))

def _base(idx: UOp) -> frozenset[UOp]:
  """The other terms of an index."""
  return frozenset(t for t in idx.split_uop(Ops.ADD) if not _is_number(t))

def order(sink: UOp, ren: Renderer) -> UOp:
  tokens = chosen(sink.arg.applied_opts, ScheduleOps.TOKENS, 1)
  ahead = chosen(sink.arg.applied_opts, ScheduleOps.PREFETCH, AHEAD)
  if not has_vectors(ren) or not ahead: return sink
  # {ranges: {(buffer, base): {constant offset: load}}}
  loops: dict[frozenset[UOp], dict[tuple[UOp, frozenset[UOp]], dict[int, UOp]]] = {}
  for u in sink.toposort():
    if u.op is not Ops.LOAD or len(u.src) != 1 or u.src[0].op is not Ops.SHRINK: continue
    buf, idx = u.src[0].src[:2]
    if buf.op is not Ops.PARAM or buf.max_numel() * buf.dtype.itemsize <= LARGEST: continue
    if u.max_numel() * u.dtype.itemsize < WIDTH or innermost(idx) is None: continue
    loops.setdefault(frozenset(idx.ranges), {}).setdefault((buf, _base(idx)), {})[offset(idx)] = u
  if not loops: return sink
  chains = [in_turns(list(streams.values())) for streams in loops.values()]
  return shortened(sink, chains, (STREAM, ahead), tokens, registers(ren))

def in_turns(streams: list[dict[int, UOp]]) -> list[UOp]:
  """Merges the loads of several streams, sorted by their distance from the start of their own stream."""
  return [u for _, _, u in sorted(((at - min(stream), i, u) for i, stream in enumerate(streams)
                                   for at, u in stream.items()), key=lambda row: row[:2])]

def render(ctx: ClangRenderer, load: UOp) -> str|None:
  if not isinstance(load.tag, tuple) or load.tag[0] != STREAM: return None
  value = ctx.render_access(load.src[0])
  in_order = value.replace("*((", "*((volatile ", 1)
  return f"(__builtin_prefetch((char*)&{value}+{load.tag[1]},0,{CACHE}),{in_order})"

pm_render_in_order = PatternMatcher([(UPat(Ops.LOAD, name="load"), render)])

def apply(k: Scheduler, opt: Opt) -> bool:
  """Accepts PREFETCH, a stream's prefetch distance in bytes, as hand-written kernels have one. Else KernelOptError."""
  check(has_vectors(k.ren), "only vectors are loaded in order")
  check_amount(k, opt, 0, FARTHEST)
  return True

def install() -> None:
  hooks.actions[ScheduleOps.PREFETCH] = apply
  places.rules(ClangRenderer, "string_rewrite", pm_render_in_order, first=True)
  hooks.before_linearize.append(order)
