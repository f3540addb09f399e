"""
Loads in memory order, and prefetches: a loop that streams through memory reads it in order and asks for it early.

Why: a processor's prefetcher follows addresses that ascend. The C compiler moves loads to where their registers are
  free: of a block with fields apart from each other it reads two places in turns, and the prefetcher loses both. Nor
  does it look far enough ahead: between two lines a core unpacks and multiplies.
How: in the innermost loop over a buffer that is larger than a cache, loads of vectors are put in the order of their
  addresses, and are volatile, which keeps them there; with each, what lies AHEAD of it is asked for, or as far ahead as
  the action PREFETCH of a schedule says: 0 leaves all to the compiler. Such loads divide the code: all numbers that are
  multiplied by what they load would be in registers before the first, and then on the stack. Each is loaded after what
  it meets; of several tokens after all that a sum takes, so that the instruction that multiplies loads it, too.
Numbers: matvec 151936 x 2048 in Q6_K, 258 MB, 2 threads, GB/s: as clang orders it 25.9, in order 23.1, in order and
  0.5, 1, 2, 4, 8 KB ahead 23.8, 25.9, 32.9, 37.2, 38.7, where reading has 48.9; 4 KB ahead but not in order 22.4, where
  both have 31.0. 2048 x 8192, 8 KB ahead against 4, six rounds of 25: Q6_K 1.08, MXFP4 1.03, Q4_K 1.01, Q8_0 1.00 (AMD
  EPYC with AVX-512, medians in turns). Without all of this a 1B shape of 2 layers decodes at 0.72 of the speed in Q6_K,
  0.56 in MXFP4, 0.91 in F16, 0.95 in Q8_0. 8 rows by 128256 x 2048 in Q6_K, where they share what is unpacked, lines
  asked for in the first cache and in the second: 18.0 and 14.5 ms; one row 7.1 and 8.0 (Zen 4). With activations loaded
  after weights, tokens a second: 1B shape of 16 layers, Q4_K_M 34.9 -> 41.5, Q6_K 26.5 -> 29.8, MXFP4 29.9 -> 39.8, of
  4 layers, Q5_K 64.9 -> 92.8, IQ4_XS 73.1 -> 107, Q8_0 57 -> 60 (Zen 4, 2 threads, medians of three turns).
Upstream: not sent.
"""
from __future__ import annotations
from collections.abc import Callable
from typing import Any
from tinygrad.codegen.opt import Opt, check
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.renderer import Renderer
from tinygrad.renderer.cstyle import ClangRenderer
from tinygrad.uop.ops import Ops, PatternMatcher, UOp, UPat, axis_to_pos
from tinygrad_llm.patches import passes
from tinygrad_llm.patches.opts import ScheduleOps, check_amount, chosen
from tinygrad_llm.patches.passes import has_vectors
from tinygrad_llm.patches.vector.vector_width import registers

SEAMS = {
  "tinygrad.codegen.opt.postrange:Scheduler": "35256edac7fb",
  "tinygrad.renderer.cstyle:base_rewrite": "ef3d9dfef266",
}

LARGEST = 1 << 19  # bytes of a buffer that caches hold anyway
WIDTH = 16         # bytes of a load, at least
AHEAD = 8192       # bytes from a load to what is asked for with it
NEAR, FAR = 3, 2   # the cache it is asked for: a core's first, and its second
STREAM = "stream"  # the tag of such a load, with how far ahead it asks, and for which cache
FARTHEST = 1 << 16  # bytes
MET = 4  # loads in order for each register, at most, where numbers are loaded after what they meet

def _innermost(u: UOp) -> UOp|None:
  loops = [r for r in u.ranges if r.op is Ops.RANGE]
  return max(loops, key=lambda r: (axis_to_pos[r.arg[-1]], r.arg[:-1])) if loops else None

def _is_read(u: UOp) -> bool:
  """Whether it is a number that is loaded from memory."""
  return u.op is Ops.LOAD and len(u.src) == 1 and u.src[0].op is Ops.INDEX and u.src[0].src[0].op is Ops.PARAM

def _is_number(u: UOp) -> bool: return u.op is Ops.CAST and u.src[0].op is Ops.CONST

def offset(idx: UOp) -> int:
  """The numbers in an address."""
  return sum(t.src[0].val for t in idx.split_uop(Ops.ADD) if _is_number(t))

def _base(idx: UOp) -> frozenset[UOp]:
  """What else is in it."""
  return frozenset(t for t in idx.split_uop(Ops.ADD) if not _is_number(t))

def order(sink: UOp, ren: Renderer) -> UOp:
  ahead = chosen(sink.arg.applied_opts, ScheduleOps.PREFETCH, AHEAD)
  if not has_vectors(ren) or not ahead: return sink
  # what is unpacked together is asked for at once, of more lines than the first cache waits for
  cache = FAR if chosen(sink.arg.applied_opts, ScheduleOps.TILES, 0) else NEAR
  # (buffer, innermost loop, base) -> the loads, by their constant offset
  streams: dict[tuple[UOp, UOp, frozenset[UOp]], dict[int, UOp]] = {}
  for u in sink.toposort():
    if u.op is not Ops.LOAD or len(u.src) != 1 or u.src[0].op is not Ops.SHRINK: continue
    buf, idx = u.src[0].src[:2]
    if buf.op is not Ops.PARAM or buf.max_numel() * buf.dtype.itemsize <= LARGEST: continue
    if u.max_numel() * u.dtype.itemsize < WIDTH or (loop := _innermost(idx)) is None: continue
    streams.setdefault((buf, loop, _base(idx)), {})[offset(idx)] = u
  subs: dict[UOp, UOp] = {}
  for (buf, *_), loads in streams.items():
    before: UOp|None = None
    for _, u in sorted(loads.items()):
      place = u.src[0].replace(src=(buf if before is None else buf.after(before), *u.src[0].src[1:]))
      before = subs[u] = u.replace(src=(place,), tag=(STREAM, ahead, cache))
  if not subs: return sink
  together = chosen(sink.arg.applied_opts, ScheduleOps.TOKENS, 1) > 1
  # of more loads than that most are on the stack in any case
  if len(subs) > MET * registers(ren): return sink.substitute(subs)
  return sink.substitute({**subs, **beside(sink, subs, together)})

def beside(sink: UOp, streams: dict[UOp, UOp], together: bool) -> dict[UOp, UOp]:
  """
  Numbers that meet what is loaded in order, each loaded after that, in its loop. streams: these loads, and what they
  become; together: after all that a sum of products of bytes takes.
  """
  ops, order, number = sink.toposort(), list(streams), {u: i for i, u in enumerate(streams)}
  users, last = dict[UOp, list[UOp]](), dict[UOp, int]()  # last: of the loads in order that a value is computed from
  numbers, met = dict[UOp, set[UOp]](), dict[UOp, list[UOp]]()  # of a value without any; what each number meets
  for u in ops:
    for s in u.src: users.setdefault(s, []).append(u)
    if u.op in (Ops.STORE, Ops.AFTER, Ops.END, Ops.GROUP, Ops.SINK, Ops.RANGE): continue
    of = set().union(*[numbers.get(s, set()) for s in u.src])
    if u in number or any(s in last for s in u.src):
      last[u] = max([number.get(u, 0), *[last[s] for s in u.src if s in last]])
      if u.op is not Ops.LOAD:
        for x in of: met.setdefault(x, []).append(u)
    else: numbers[u] = {u} if _is_read(u) else of
  def where(u: UOp) -> int:
    while together and u.op is Ops.CUSTOMI and len(by := users[u]) == 1 and by[0].op is Ops.CUSTOMI: u = by[0]
    return last[u]
  places, subs = {s for u in streams for s in u.src[0].backward_slice}, dict[UOp, UOp]()
  for x, us in met.items():
    before, (buf, *index) = order[min(map(where, us))], x.src[0].src
    if x in places or _innermost(index[0]) is not _innermost(before.src[0].src[1]): continue
    subs[x] = x.replace(src=(x.src[0].replace(src=(buf.after(streams[before]), *index)),))
  return subs

def render(ctx: ClangRenderer, load: UOp) -> str|None:
  if not isinstance(load.tag, tuple) or load.tag[0] != STREAM: return None
  value = ctx.render_access(load.src[0])
  in_order = value.replace("*((", "*((volatile ", 1)
  return f"(__builtin_prefetch((char*)&{value}+{load.tag[1]},0,{load.tag[2]}),{in_order})"

pm_render_in_order = PatternMatcher([(UPat(Ops.LOAD, name="load"), render)])

_apply_opt: Callable[..., Any]  # what it was before this patch

def apply_opt(self: Scheduler, opt: Opt, append_opt: bool = True) -> Any:
  """With PREFETCH: software prefetches of a stream, as hand-written kernels have them, at a distance of its own."""
  if opt.op is not ScheduleOps.PREFETCH: return _apply_opt(self, opt, append_opt)
  check(has_vectors(self.ren), "only vectors are loaded in order")
  check_amount(self, opt, 0, FARTHEST)
  if append_opt: self.applied_opts.append(opt)

def install() -> None:
  global _apply_opt
  _apply_opt, Scheduler.apply_opt = Scheduler.apply_opt, apply_opt  # type: ignore[method-assign]
  ClangRenderer.string_rewrite = pm_render_in_order + ClangRenderer.string_rewrite
  passes.before_linearize.append(order)
