"""
Attention of few queries on a CPU: online softmax, one block of positions after the other. Used by online_softmax.py.

Why: keys and values are read once, whatever the number of queries that share them. No intermediate result goes to
  memory: all of them fit a core's first-level cache.
How: threads share the heads, and the queries of a head where there are fewer heads than threads. For BLOCK positions at
  a time, a thread computes:
  - products with keys: vector accumulators for several queries and positions at a time, whose lanes are then added up
    together
  - masks, maxima and exponentials (exponentials.py), 16 positions at a time
  - products with values: accumulators of 16 columns a vector, in half of the registers

  Keys and values AHEAD bytes further are prefetched. The running sums are rescaled by exp(old maximum - new maximum)
  (https://arxiv.org/abs/1805.02867). Positions beyond the last have weight 0, and the last value is read in their
  place: a loop that ends early makes clang keep its accumulators on the stack.
Numbers: keys and values of 4,096 positions, GB/s of two cores (AMD EPYC, Zen 5), the fastest of 400 runs; memory alone
  gives 64 to 76. First from memory, then from a cache. With AVX-512, 8 heads of 64 elements, 4 queries each: 45 -> 62
  and 54 -> 78. One head of 256, 4 queries: 22 -> 44 and 73 -> 105. With AVX2, the 8 heads: 32 -> 37 and 34 -> 42. With
  AVX-512, 3 heads of 3 queries, from a cache: 44 -> 62, and 82 with shares of positions (flash_decoding.py). That was
  with a prefetch of 8 KB. With 2 KB, steps of SmolLM2-135M take 0.96, 1.00, 1.02 of the time at depth 16, 256, 1,500;
  steps of 8 layers with 8 KV heads of 128 elements 0.96, 0.95 at 16 and 1,500 (20 and 14 rounds in turns).
"""
from __future__ import annotations
from tinygrad.codegen.opt import Opt
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import AxisType, KernelInfo, Ops, UOp
from tinygrad_llm.patches.attention.exponentials import exp2
from tinygrad_llm.patches.attention.part import Part
from tinygrad_llm.patches.ir.actions import ScheduleOps, action, chosen
from tinygrad_llm.patches.ir.builder import Loops
from tinygrad_llm.patches.ir.indices import apart, divisor, ended, lesser, size, steps, until
from tinygrad_llm.patches.ir.targets import LANES, most_threads, registers

BLOCK = 64     # positions
QUERIES = 8    # that share each load of a key or value
UNROLLED = 64  # elements of a product with a key
AHEAD = 2048   # bytes to prefetch ahead: 16 keys of 64 elements

def actions(ren: Renderer) -> dict[ScheduleOps, int]:
  """
  The defaults of the schedule's actions.

  VECTORS: accumulators at a time, in products with values. They take half of the registers: with more, they were
  stored and loaded for each position. PREFETCH: see vector/ordered_loads.py.
  """
  return {ScheduleOps.POSITIONS: BLOCK, ScheduleOps.QUERIES: QUERIES, ScheduleOps.VECTORS: registers(ren) // 2,
          ScheduleOps.PREFETCH: AHEAD}

def _tiles(heads: int, queries: int, threads: int) -> int:
  """The number of a head's queries that a thread takes at a time, chosen to balance the threads' work."""
  def longest(tile: int) -> int: return -(-heads * (queries // tile) // threads) * (tile + 1)  # + 1: reading the keys
  return min((t for t in range(1, queries + 1) if queries % t == 0), key=lambda t: (longest(t), -t))

def on_cpu(part: Part, ren: Renderer, opts: tuple[Opt, ...] = ()) -> UOp|None:
  """The kernel; None if the part does not fit it, or the schedule `opts` does not."""
  if part.position.op is not Ops.RANGE: return None  # there is only one position
  D, W, G, n = part.depth, part.width, steps(part.group), part.position.src[0]
  if W % LANES or D % LANES or any(r.src[0].op is not Ops.CONST for r in part.heads): return None
  positions, queries, vectors, ahead = (chosen(opts, op, default) for op, default in actions(ren).items())
  if positions % LANES or not positions or not queries or not vectors: return None
  loops = Loops(part.store)
  loop, array = loops.loop, loops.array

  # work partition: a unit is some queries of a head
  threads = most_threads(ren)
  mine = _tiles(steps(part.heads), G, threads)
  units = steps(part.heads) * (G // mine)
  threads = min(threads, units)
  thread = loop(threads, AxisType.THREAD)
  turn = loop(-(-units // threads))
  begin, end = part.bounds({r: UOp.const(0) for r in part.group}, {r: UOp.const(size(r) - 1) for r in part.group})
  # rows of several sequences may be of unequal lengths: neighbouring units then go to different threads
  unit = thread * -(-units // threads) + turn if end is None else turn * threads + thread
  if units % threads: unit = (unit < units).where(unit, UOp.const(units - 1))
  heads, first = apart(unit // (G // mine), part.heads), unit % (G // mine) * mine

  # queries
  asked, i = array(mine * D), loop(mine * D)
  asked = asked.after(ended(asked.index(i).store(part.query(first + i // D, i % D)), i))

  # running state over the previous positions: the maxima; the sums of columns, then 16 sums of exponentials a query
  inside = [r for r in (turn, thread) if r.op is Ops.RANGE]
  tops, sums = (array(k).after(*inside) for k in (mine, mine * (W + LANES)))
  g, i = loop(mine), loop(mine * (W + LANES))
  started = UOp.group(ended(tops.index(g).store(part.top.src[1]), g), ended(sums.index(i).store(UOp.const(0.0)), i))
  step, whole = loop((n + (positions - 1)) // positions), end is not None and n.vmax % positions == 0
  # blocks that no query of a head sees are skipped
  block = step if begin is None else step + begin.maximum(0) // positions
  if end is not None:
    n = (end + 1).maximum(0).minimum(n)
    if step.vmax > 0: block = until(block, n, positions)
  tops, sums = (x.after(started, step) for x in (tops, sums))
  def position(j: UOp) -> UOp:
    # blocks are whole in memory: what is read beyond the last position counts for nothing
    if whole: return block * positions + j
    return (block * positions + j < n).where(block * positions + j, n - 1)
  def score(dot: UOp, g: UOp, j: UOp) -> UOp:
    value = part.masked(dot, first + g, position(j))
    return (block * positions + j < n).where(value, value.const_like(-float("inf")))

  # products with keys
  tile = divisor(mine, queries)
  many = divisor(positions, max(1, LANES // tile))
  t, b, i, g = loop(mine // tile), loop(positions // many), loop(many, AxisType.UPCAST), loop(tile, AxisType.UPCAST)
  j = b * many + i
  e = loop(min(UNROLLED, D & -D), AxisType.UNROLL)
  over = [e] if size(e) == D else [loop(D // size(e), AxisType.REDUCE), e]
  d = over[0] * size(e) + e if len(over) > 1 else e
  dot = (asked.index((t * tile + g) * D + d) * part.key(position(j), d)).reduce(*over, arg=Ops.ADD)
  dots = array(mine * positions)
  dots = dots.after(ended(dots.index((t * tile + g) * positions + j).store(dot), g, i, b, t))

  # scores, masked once
  i, lane, scores = loop(mine * positions // LANES), loops.lane(), array(mine * positions)
  at = i * LANES + lane
  scores = scores.after(ended(scores.index(at).store(score(dots.index(at), at // positions, at % positions)), lane, i))

  # maxima, and the factors that rescale the running sums: 16 positions at a time, whose maxima are then joined
  g, k, lane = loop(mine), loop(positions // LANES, AxisType.REDUCE), loops.lane()
  j, most = k * LANES + lane, array(mine * LANES)
  top = scores.index(g * positions + j).reduce(k, arg=Ops.MAX)
  most = most.after(ended(most.index(g * LANES + lane).store(top), lane, g))
  g, u = loop(mine), loop(LANES, AxisType.UNROLL)
  now, scales = array(mine), array(mine)
  top = tops.index(g).maximum(most.index(g * LANES + u).reduce(u, arg=Ops.MAX))
  scale = exp2((tops.index(g) + top * -1) * part.slope)
  kept = ended(UOp.group(now.index(g).store(top), scales.index(g).store(scale)), g)
  now, scales = now.after(kept), scales.after(kept)

  # exponentials, and their sums in 16 lanes
  i, lane, weights = loop(mine * positions // LANES), loops.lane(), array(mine * positions)
  at = i * LANES + lane
  weight = exp2((scores.index(at) + now.index(at // positions) * -1) * part.slope)
  weights = weights.after(ended(weights.index(at).store(weight), lane, i))
  g, k, lane = loop(mine), loop(positions // LANES, AxisType.REDUCE), loops.lane()
  more = weights.index(g * positions + k * LANES + lane).reduce(k, arg=Ops.ADD)
  at = sums.index(mine * W + g * LANES + lane)
  known = [ended(at.store(at * scales.index(g) + more), lane, g)]
  g = loop(mine)
  known.append(ended(tops.after(scales).index(g).store(now.index(g)), g))

  # products with values
  tile = divisor(mine, min(queries, vectors))
  wide = divisor(W // LANES, max(1, vectors // tile))
  t, c, lane = loop(mine // tile), loop(W // LANES // wide), loops.lane()
  g, v, j = loop(tile, AxisType.UPCAST), loop(wide, AxisType.UPCAST), loop(positions, AxisType.REDUCE)
  q, column = t * tile + g, (c * wide + v) * LANES + lane
  k = lesser(j, n - block * positions - 1) if whole else j
  more = (weights.index(q * positions + j) * part.value(position(k), column)).reduce(j, arg=Ops.ADD)
  at = sums.index(q * W + column)
  known.append(ended(at.store(at * scales.index(q) + more), g, v, lane, c, t))
  tops, sums = (x.buf_uop.after(ended(UOp.group(*known), step)) for x in (tops, sums))

  g, g2, c, lane, u = loop(mine), loop(mine), loop(W // LANES), loops.lane(), loop(LANES, AxisType.UNROLL)
  column, total = c * LANES + lane, sums.index(mine * W + g * LANES + u).reduce(u, arg=Ops.ADD)
  ends = [ended(UOp.group(part.out(first + g, UOp.const(W)).store(tops.index(g)),
                          part.out(first + g, UOp.const(W + 1)).store(total)), g),
          ended(part.out(first + g2, column).store(sums.index(g2 * W + column)), lane, c, g2)]
  name = f"attention_{'_'.join(str(size(r)) for r in part.heads)}_{G}_{D}_{W}_{int(n.vmax)}"
  opts = (*(o for o in opts if o.op is not ScheduleOps.PREFETCH), action(ScheduleOps.PREFETCH, ahead))
  sink = ended(UOp.group(*ends), turn, thread).sink(arg=KernelInfo(name, applied_opts=opts))
  return sink.substitute(heads, walk=True)
