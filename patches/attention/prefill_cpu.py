"""
Attention of a prompt's queries on a CPU: tiled online softmax whose lanes are queries. Used by online_softmax.py.

Why: with many queries for the same keys, a product is a GEMM: accumulators stay in registers, and no lanes are added
  up.
How: threads share the heads if these divide evenly, else the tokens. A thread takes TILE queries at a time, and the 16
  lanes of a vector are 16 queries. It converts a block of keys and values to float32 once for all of them, in arrays
  that fit a core's cache. Each score sums over the elements of a key, and all lanes share each element. Maxima and sums
  over positions work on whole vectors. The running sums are rescaled by exp(old maximum - new maximum), as in
  decode_cpu.py.
"""
from __future__ import annotations
from collections.abc import Callable
from tinygrad.codegen.opt import Opt
from tinygrad.helpers import ceildiv
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import AxisType, KernelInfo, Ops, UOp
from tinygrad_llm.patches.attention.part import Part
from tinygrad_llm.patches.ir.actions import ScheduleOps, chosen
from tinygrad_llm.patches.ir.builder import Loops
from tinygrad_llm.patches.ir.indices import apart, divisor, ended, size, steps, until
from tinygrad_llm.patches.ir.targets import LANES, most_threads

TILE = 32      # queries at a time
BLOCK = 64     # positions: the default of the schedule's POSITIONS
KEYS = 8       # positions whose scores are accumulated in registers together
UNROLLED = 4   # elements of a key
QUERIES = 8    # queries whose sums of values are accumulated in registers together
WIDE = 2       # vectors of values for each of these queries

def on_cpu(part: Part, ren: Renderer, opts: tuple[Opt, ...] = ()) -> UOp|None:
  """The kernel; None if the part does not fit it, or the schedule `opts` does not."""
  D, W, n, positions = part.depth, part.width, part.position.src[0], chosen(opts, ScheduleOps.POSITIONS, BLOCK)
  if (tokens := part.tokens) is None or W % LANES or D % LANES or positions % KEYS: return None
  if any(r.src[0].op is not Ops.CONST for r in part.heads): return None
  loops = Loops(part.store)
  loop, lane, array = loops.loop, loops.lane, loops.array
  vectors = TILE // LANES

  # work partition; if the number of tokens is not a multiple of `some`, the last ones are computed more than once
  some = max(1, TILE // steps([r for r in part.group if r is not tokens]))
  threads = most_threads(ren)
  heads = steps(part.heads)
  by_head = heads % threads == 0
  thread = loop(threads, AxisType.THREAD)
  head = loop(heads // threads if by_head else heads)
  turns = (tokens.src[0] + (some - 1)) // some
  turn = loop(turns if by_head else (turns + (threads - 1)) // threads)
  inner = loops.range(some)
  token = ((turn if by_head else turn * threads + thread) * some + inner).minimum(tokens.src[0] - 1)
  part = part.some_tokens(token, inner)
  of_head = apart(thread * (heads // threads) + head if by_head else head, part.heads)
  queries = steps(part.group)
  tile = loop(ceildiv(queries, TILE))
  def query(q: UOp) -> UOp: return (tile * TILE + q).minimum(queries - 1) if queries % TILE else tile * TILE + q
  inside = [r for r in (thread, head, turn, tile) if r.op is Ops.RANGE]

  # queries, transposed: an element of all queries is contiguous
  asked, d, q = array(D * TILE), loop(D), loop(TILE)
  asked = asked.after(ended(asked.index(d * TILE + q).store(part.query(query(q), d)), q, d))

  # running state over the previous positions: the maximum, the sum of exponentials, the sums of columns
  tops, totals, sums = (array(k).after(*inside) for k in (TILE, TILE, TILE * W))
  q, q2, i = loop(TILE), loop(TILE), loop(TILE * W)
  started = UOp.group(ended(tops.index(q).store(part.top.src[1]), q),
                      ended(totals.index(q2).store(UOp.const(0.0)), q2), ended(sums.index(i).store(UOp.const(0.0)), i))
  # blocks of positions that no query sees are skipped
  begin, end = part.bounds({inner: UOp.const(0)}, {inner: UOp.const(some - 1)})
  skipped = UOp.const(0) if begin is None else begin.maximum(0) // positions
  step = loop((n + (positions - 1)) // positions)
  block = step + skipped
  # a single block of positions has no loop to leave early
  if end is not None and step.vmax > 0: block = until(block, (end + 1).minimum(n), positions)
  tops, totals, sums = (x.after(started, step) for x in (tops, totals, sums))
  def position(j: UOp) -> UOp: return (block * positions + j).minimum(n - 1)

  # keys and values of a block
  def converted(width: int, value: Callable[[UOp, UOp], UOp]) -> UOp:
    made, j, c, i = array(positions * width), loop(positions), loop(width // LANES), lane()
    return made.after(ended(made.index(j * width + c * LANES + i).store(value(position(j), c * LANES + i)), i, c, j))
  keys = converted(D, part.key)

  # scores
  b, u, v, i = loop(positions // KEYS), loop(KEYS, AxisType.UPCAST), loop(vectors, AxisType.UPCAST), lane()
  j, q = b * KEYS + u, v * LANES + i
  e, f = loop(D // UNROLLED, AxisType.REDUCE), loop(UNROLLED, AxisType.UNROLL)
  d = e * UNROLLED + f
  dot = (asked.index(d * TILE + q) * keys.index(j * D + d)).reduce(e, f, arg=Ops.ADD)
  score = part.masked(dot, query(q), position(j))
  score = (block * positions + j < n).where(score, score.const_like(-float("inf")))
  scores = array(positions * TILE)
  scores = scores.after(ended(scores.index(j * TILE + q).store(score), v, u, i, b))

  # maxima, and the factors that rescale the running sums
  v, i, j = loop(vectors, AxisType.UPCAST), lane(), loop(positions, AxisType.REDUCE)
  q = v * LANES + i
  top = tops.index(q).maximum(scores.index(j * TILE + q).reduce(j, arg=Ops.MAX))
  now = array(TILE)
  now = now.after(ended(now.index(q).store(top), v, i))
  v, i = loop(vectors, AxisType.UPCAST), lane()
  q = v * LANES + i
  scales = array(TILE)
  scales = scales.after(ended(scales.index(q).store(((tops.index(q) - now.index(q)) * part.slope).exp2()), v, i))

  # exponentials
  j, v, i = loop(positions), loop(vectors, AxisType.UPCAST), lane()
  q = v * LANES + i
  weights = array(positions * TILE)
  weight = ((scores.index(j * TILE + q) - now.index(q)) * part.slope).exp2()
  weights = weights.after(ended(weights.index(j * TILE + q).store(weight), v, i, j))
  v, i, j = loop(vectors, AxisType.UPCAST), lane(), loop(positions, AxisType.REDUCE)
  q = v * LANES + i
  total = totals.index(q) * scales.index(q) + weights.index(j * TILE + q).reduce(j, arg=Ops.ADD)
  known = [ended(totals.index(q).store(total), v, i)]
  q = loop(TILE)
  known.append(ended(tops.after(scales).index(q).store(now.index(q)), q))

  # products with values
  values = converted(W, part.value)
  wide = divisor(W // LANES, WIDE)
  t, c, i = loop(TILE // QUERIES), loop(W // LANES // wide), lane()
  u, v, j = loop(QUERIES, AxisType.UPCAST), loop(wide, AxisType.UPCAST), loop(positions, AxisType.REDUCE)
  q, column = t * QUERIES + u, (c * wide + v) * LANES + i
  more = (weights.index(j * TILE + q) * values.index(j * W + column)).reduce(j, arg=Ops.ADD)
  at = sums.index(q * W + column)
  known.append(ended(at.store(at * scales.index(q) + more), u, v, i, c, t))
  tops, totals, sums = (x.buf_uop.after(ended(UOp.group(*known), step)) for x in (tops, totals, sums))

  q, q2, q3, c, i = loop(TILE), loop(TILE), loop(TILE), loop(W // LANES), lane()
  column = c * LANES + i
  ends = [ended(part.out(query(q), UOp.const(W)).store(tops.index(q)), q),
          ended(part.out(query(q2), UOp.const(W + 1)).store(totals.index(q2)), q2),
          ended(part.out(query(q3), column).store(sums.index(q3 * W + column)), i, c, q3)]
  name = f"attention_{'_'.join(str(size(r)) for r in part.heads)}_{queries}_{D}_{W}_{int(n.vmax)}"
  sink = ended(UOp.group(*ends), tile, turn, head, thread).sink(arg=KernelInfo(name, applied_opts=opts))
  return sink.substitute(of_head, walk=True)
