"""
Loads in memory order, and prefetches: a loop that streams through memory reads it in order and asks for it early.

Why: a processor's prefetcher follows addresses that ascend. The C compiler moves loads to where their registers are
  free: of a block with fields apart from each other it reads two places in turns, and the prefetcher loses both. Nor
  does it look far enough ahead: between two lines a core unpacks and multiplies.
How: in the innermost loop over a buffer that is larger than a cache, loads of vectors are put in the order of their
  addresses, and are volatile, which keeps them there; what is done with them comes between them (live_ranges.py). With
  each, what lies AHEAD of it is asked for, or as far ahead as the action PREFETCH of a schedule says: 0 leaves all to
  the compiler. Where nearly all time is memory's, it is asked for just before: the processor's prefetcher does the
  rest.
Rewrite:
  loads of a block in the compiler's order
  --> volatile loads in the order of addresses, each with prefetch(address + AHEAD)
Numbers: matvec 151936 x 2048 in Q6_K, 258 MB, 2 threads, GB/s: as clang orders it 25.9, in order 23.1, in order and
  0.5, 1, 2, 4, 8 KB ahead 23.8, 25.9, 32.9, 37.2, 38.7, where reading has 48.9; 4 KB ahead but not in order 22.4, where
  both have 31.0 (AMD EPYC with AVX-512, medians in turns). Without all of this a 1B shape of 2 layers decodes at 0.72
  of the speed in Q6_K, 0.56 in MXFP4, 0.91 in F16, 0.95 in Q8_0. 8192 x 2048, one core of a Zen 4, times before live
  ranges were shortened, from memory and from a cache: one row in Q6_K 0.85, 0.68, Q5_K 0.82, 0.86, IQ4_XS 0.89, 0.78,
  Q4_K 0.94, 0.95, Q8_0 0.90, 0.91, MXFP4 0.92, 1.01; 4 rows in Q6_K 0.47, 0.61, Q5_K 0.61, 0.69, Q4_K 0.87, 0.93; 8
  rows in Q6_K 0.65, Q5_K 0.57, Q4_K 0.91. 4 rows in Q6_K, 2 cores, ms: nothing asked for 0.50, 8 KB ahead in the first
  cache 0.48, in the second 0.41, 1 KB ahead 0.68; one row 0.39, 0.44, 0.46, 0.41.
Upstream: not sent.
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

LARGEST = 1 << 19  # bytes of a buffer that caches hold anyway
WIDTH = 16         # bytes of a load, at least
AHEAD, NEAR = 8192, 1024  # bytes from a load to what is asked for with it; where there is little else to do
OWN = 16           # registers for each token with which memory is slower than what is done with what is loaded
CACHE = 2          # what is asked for comes to a core's second one, in the words of __builtin_prefetch
STREAM = "stream"  # the tag of such a load, with how far ahead it asks
FARTHEST = 1 << 16  # bytes

def _is_number(u: UOp) -> bool: return u.op is Ops.CAST and u.src[0].op is Ops.CONST

def offset(idx: UOp) -> int:
  """The numbers in an address."""
  return sum(t.src[0].val for t in idx.split_uop(Ops.ADD) if _is_number(t))

def _base(idx: UOp) -> frozenset[UOp]:
  """What else is in it."""
  return frozenset(t for t in idx.split_uop(Ops.ADD) if not _is_number(t))

def order(sink: UOp, ren: Renderer) -> UOp:
  tokens = chosen(sink.arg.applied_opts, ScheduleOps.TOKENS, 1)
  ahead = chosen(sink.arg.applied_opts, ScheduleOps.PREFETCH, NEAR if OWN * tokens <= registers(ren) else AHEAD)
  if not has_vectors(ren) or not ahead: return sink
  # loops -> (buffer, base) -> the loads, by their constant offset
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
  """Loads of several streams, each in the order of their offsets, beside those that are as far into the others."""
  return [u for _, _, u in sorted(((at - min(stream), i, u) for i, stream in enumerate(streams)
                                   for at, u in stream.items()), key=lambda row: row[:2])]

def render(ctx: ClangRenderer, load: UOp) -> str|None:
  if not isinstance(load.tag, tuple) or load.tag[0] != STREAM: return None
  value = ctx.render_access(load.src[0])
  in_order = value.replace("*((", "*((volatile ", 1)
  return f"(__builtin_prefetch((char*)&{value}+{load.tag[1]},0,{CACHE}),{in_order})"

pm_render_in_order = PatternMatcher([(UPat(Ops.LOAD, name="load"), render)])

def apply(k: Scheduler, opt: Opt) -> bool:
  """With PREFETCH: software prefetches of a stream, as hand-written kernels have them, at a distance of its own."""
  check(has_vectors(k.ren), "only vectors are loaded in order")
  check_amount(k, opt, 0, FARTHEST)
  return True

def install() -> None:
  hooks.actions[ScheduleOps.PREFETCH] = apply
  places.rules(ClangRenderer, "string_rewrite", pm_render_in_order, first=True)
  hooks.before_linearize.append(order)
