"""
Attention of few queries on a CPU: online softmax, one block of positions after the other. Used by online_softmax.py.

Why: keys and values are read once, whatever the number of queries that share them. No intermediate result goes to
  memory: all of them fit a core's first-level cache.
How: threads share the heads, and the queries of a head where there are fewer heads than threads. For BLOCK positions at
  a time, a thread computes:
  - products with keys: vector accumulators for several queries and positions at a time, whose lanes are then added up
    together
  - maxima and exponentials, 16 positions at a time
  - products with values: accumulators of 16 columns a vector, as many as there are registers

  The running sums are rescaled by exp(old maximum - new maximum) (https://arxiv.org/abs/1805.02867). Positions beyond
  the last have weight 0.
"""
from __future__ import annotations
from tinygrad.codegen.opt import Opt
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import AxisType, KernelInfo, Ops, UOp
from tinygrad_llm.patches.attention.part import Part
from tinygrad_llm.patches.ir.actions import ScheduleOps, chosen
from tinygrad_llm.patches.ir.builder import Loops
from tinygrad_llm.patches.ir.indices import apart, divisor, ended, size, steps, until
from tinygrad_llm.patches.ir.targets import LANES, most_threads

# defaults of the schedule's POSITIONS, QUERIES and VECTORS
BLOCK = 64    # positions
QUERIES = 8   # that share each load of a key or value
VECTORS = 16  # accumulators at a time, in products with values
UNROLLED = 64 # elements of a product with a key
ACTIONS = {ScheduleOps.POSITIONS: BLOCK, ScheduleOps.QUERIES: QUERIES, ScheduleOps.VECTORS: VECTORS}

def _tiles(heads: int, queries: int, threads: int) -> int:
  """The number of a head's queries that a thread takes at a time, chosen to balance the threads' work."""
  def longest(tile: int) -> int: return -(-heads * (queries // tile) // threads) * (tile + 1)  # + 1: reading the keys
  return min((t for t in range(1, queries + 1) if queries % t == 0), key=lambda t: (longest(t), -t))

def on_cpu(part: Part, ren: Renderer, opts: tuple[Opt, ...] = ()) -> UOp|None:
  """The kernel; None if the part does not fit it, or the schedule `opts` does not."""
  if part.position.op is not Ops.RANGE: return None  # there is only one position
  D, W, G, n = part.depth, part.width, steps(part.group), part.position.src[0]
  if W % LANES or D % LANES or any(r.src[0].op is not Ops.CONST for r in part.heads): return None
  positions, queries, vectors = (chosen(opts, op, default) for op, default in ACTIONS.items())
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

  # running state over the previous positions: the maximum, 16 sums of exponentials, the sums of columns
  inside = [r for r in (turn, thread) if r.op is Ops.RANGE]
  tops, totals, sums = (array(k).after(*inside) for k in (mine, mine * LANES, mine * W))
  g, k, i = loop(mine), loop(mine * LANES), loop(mine * W)
  started = UOp.group(ended(tops.index(g).store(part.top.src[1]), g),
                      ended(totals.index(k).store(UOp.const(0.0)), k), ended(sums.index(i).store(UOp.const(0.0)), i))
  step, whole = loop((n + (positions - 1)) // positions), end is not None and n.vmax % positions == 0
  # blocks that no query of a head sees are skipped
  block = step if begin is None else step + begin.maximum(0) // positions
  if end is not None:
    n = (end + 1).maximum(1).minimum(n)
    if step.vmax > 0: block = until(block, n, positions)
  tops, totals, sums = (x.after(started, step) for x in (tops, totals, sums))
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

  # maxima, and the factors that rescale the running sums: 16 positions at a time, whose maxima are then joined
  g, k, lane = loop(mine), loop(positions // LANES, AxisType.REDUCE), loops.lane()
  j, most = k * LANES + lane, array(mine * LANES)
  top = score(dots.index(g * positions + j), g, j).reduce(k, arg=Ops.MAX)
  most = most.after(ended(most.index(g * LANES + lane).store(top), lane, g))
  g, u = loop(mine), loop(LANES, AxisType.UNROLL)
  now, scales = array(mine), array(mine)
  top = tops.index(g).maximum(most.index(g * LANES + u).reduce(u, arg=Ops.MAX))
  scale = ((tops.index(g) + top * -1) * part.slope).exp2()
  kept = ended(UOp.group(now.index(g).store(top), scales.index(g).store(scale)), g)
  now, scales = now.after(kept), scales.after(kept)

  # exponentials, and their sums in 16 lanes
  g, k, lane = loop(mine), loop(positions // LANES), loops.lane()
  j = k * LANES + lane
  weights = array(mine * positions)
  weight = ((score(dots.index(g * positions + j), g, j) + now.index(g) * -1) * part.slope).exp2()
  weights = weights.after(ended(weights.index(g * positions + j).store(weight), lane, k, g))
  g, k, lane = loop(mine), loop(positions // LANES, AxisType.REDUCE), loops.lane()
  more = weights.index(g * positions + k * LANES + lane).reduce(k, arg=Ops.ADD)
  at = totals.index(g * LANES + lane)
  known = [ended(at.store(at * scales.index(g) + more), lane, g)]
  g = loop(mine)
  known.append(ended(tops.after(scales).index(g).store(now.index(g)), g))

  # products with values
  wide = divisor(W // LANES, max(1, vectors // tile))
  t, c, lane = loop(mine // tile), loop(W // LANES // wide), loops.lane()
  g, v, j = loop(tile, AxisType.UPCAST), loop(wide, AxisType.UPCAST), loop(positions, AxisType.REDUCE)
  q, column = t * tile + g, (c * wide + v) * LANES + lane
  k = until(j, n - block * positions) if whole else j
  more = (weights.index(q * positions + k) * part.value(position(k), column)).reduce(j, arg=Ops.ADD)
  at = sums.index(q * W + column)
  known.append(ended(at.store(at * scales.index(q) + more), g, v, lane, c, t))
  tops, totals, sums = (x.buf_uop.after(ended(UOp.group(*known), step)) for x in (tops, totals, sums))

  g, g2, c, lane, u = loop(mine), loop(mine), loop(W // LANES), loops.lane(), loop(LANES, AxisType.UNROLL)
  column, total = c * LANES + lane, totals.index(g * LANES + u).reduce(u, arg=Ops.ADD)
  ends = [ended(UOp.group(part.out(first + g, UOp.const(W)).store(tops.index(g)),
                          part.out(first + g, UOp.const(W + 1)).store(total)), g),
          ended(part.out(first + g2, column).store(sums.index(g2 * W + column)), lane, c, g2)]
  name = f"attention_{'_'.join(str(size(r)) for r in part.heads)}_{G}_{D}_{W}_{int(n.vmax)}"
  sink = ended(UOp.group(*ends), turn, thread).sink(arg=KernelInfo(name, applied_opts=opts))
  return sink.substitute(heads, walk=True)
