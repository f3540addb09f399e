"""
Attention of few queries on a GPU: the threads of a block share scores in shared memory. Used by online_softmax.py.

Why: a part multiplies two matrices. A product with keys sums 64 elements for each position and query; a product with
  values sums the part's positions for each column and query. Each matrix should be read once for all queries of a
  group, with coalesced loads of 16 bytes a thread. The softmax between the products has work for few threads.
How: the threads of a block change roles from stage to stage:
  - elements x positions: a thread computes partial products of 8 elements with all queries, for several positions in
    turn
  - queries x positions: a thread adds up the scores of 4 positions and takes their maximum, then computes the
    exponentials and their sum
  - columns x positions: a thread computes partial sums of up to 8 columns for all queries; then the partial sums of
    all positions are added up

  Threads exchange everything through shared memory, with five barriers; two stages reuse the same array. Rows of
  partial products are padded by 4 numbers to avoid bank conflicts. Where the queries of a group and their
  intermediate results do not fit in shared memory, as with latents, several blocks take some queries each and read
  the keys again.
Numbers: see online_softmax.py.
"""
from __future__ import annotations
from dataclasses import dataclass
from tinygrad.codegen.opt import Opt
from tinygrad.dtype import AddrSpace, dtypes
from tinygrad.uop.ops import AxisType, KernelInfo, Ops, UOp
from tinygrad_llm.patches.attention.part import Part
from tinygrad_llm.patches.ir.actions import ScheduleOps, chosen
from tinygrad_llm.patches.ir.builder import next_loop
from tinygrad_llm.patches.ir.indices import divisor, size, steps

# defaults of the schedule's THREADS, LANES and QUERIES
THREADS = 128   # threads of a block; twice as many for large groups
ELEMENTS = 8    # fp16 elements of a 16-byte load
LANES = 8       # threads that share a position: 128 bytes of a key
GROUP = 16      # most queries of a block; fewer if these do not fit
ACTIONS = {ScheduleOps.THREADS: THREADS, ScheduleOps.LANES: LANES, ScheduleOps.QUERIES: GROUP}
SHARED = 32768  # bytes of shared memory of a block: Apple's limit; NVIDIA's is 48 KB
EACH = 4        # scores of a thread
SUMS = 32       # accumulators of a thread: queries x columns
VALUES = 32     # values that a thread loads at once
SHIFT = 4       # numbers by which rows of partial products are padded

def _power(n: int, most: int) -> int: return min(n & -n, most)

@dataclass
class DecodeBlock:
  """The threads of a block, and the loops that they run."""
  part: Part
  ids: int = 0

  def loop(self, n: int, kind: AxisType = AxisType.WEAK) -> UOp:
    self.ids += 1
    return UOp.range(n, self.ids - 1, kind)
  def unrolled(self, n: int) -> UOp: return self.loop(n, AxisType.UPCAST)
  def shared(self, n: int, slot: int) -> UOp: return UOp.placeholder((n,), dtypes.float32, slot, AddrSpace.LOCAL)

def on_gpu(part: Part, opts: tuple[Opt, ...] = ()) -> UOp|None:
  """The kernel; None if the part does not fit it, or the schedule `opts` does not."""
  P, D, W, G = part.positions, part.depth, part.width, steps(part.group)
  elements = _power(D, ELEMENTS)
  most, lanes, queries = (chosen(opts, op, default) for op, default in ACTIONS.items())
  if min(most, lanes, queries) < 1: return None
  lanes = _power(D // elements, lanes)
  group = divisor(G, queries)
  while group > 1 and ((D + (lanes + 1) * P) * group * 4 > SHARED - 2048 or group * P // EACH > 2 * most):
    group = divisor(G, group - 1)
  threads = most if group * P // EACH <= most else 2 * most
  if group * P // EACH > threads or threads < lanes or P % (slots := threads // lanes): return None
  columns = next(n for n in (8, 4, 2, 1) if W % n == 0 and (group * n <= SUMS or n == 1))
  across = W // columns                 # threads that share a row of values
  while across > threads and columns < 8 and W % (columns * 2) == 0: across, columns = across // 2, columns * 2
  if across > threads: return None
  slices = threads // across            # rows of values at a time
  b = DecodeBlock(part, next_loop(part.store))
  grid = {r: r.replace(arg=(i, AxisType.GLOBAL)) for i, r in enumerate(part.heads)}
  blocks = UOp.range(G // group, len(grid), AxisType.GLOBAL) if group < G else UOp.const(0)
  me = UOp.range(threads, len(grid) + 1, AxisType.LOCAL)
  def query(g: UOp) -> UOp: return blocks * group + g

  # queries, loaded once
  asked = b.shared(-(-group * D // threads) * threads, 0)
  i = b.loop(-(-group * D // threads))
  at = i * threads + me
  asked = asked.after(asked.index(at).store(part.query(query((at // D).minimum(group - 1)), at % D)).end(i, me))

  # products with keys
  row = group * P + SHIFT
  outputs = -(-group * W // (threads * EACH))  # results of a thread, EACH at a time
  rows = slices + (threads % across > 0)       # left-over threads also write a row
  partial = b.shared(max((lanes - 1) * row + threads * EACH, (rows - 1) * group * W + outputs * threads * EACH), 1)
  lane, slot = me % lanes, me // lanes
  g, turn, e = b.unrolled(group), b.unrolled(P // slots), b.loop(elements, AxisType.UNROLL)
  position = turn * slots + slot
  over = [e] if elements * lanes == D else [b.loop(D // elements // lanes, AxisType.REDUCE), e]
  d = ((over[0] * lanes + lane) if len(over) > 1 else lane) * elements + e
  dot = (asked.index(g * D + d) * part.key(position, d)).reduce(*over, arg=Ops.ADD)
  stored = partial.index(lane * row + g * P + position).store(dot).end(g, turn, me)

  # scores, EACH a thread, and their maximum
  per = P // EACH
  g, first = (me // per).minimum(group - 1) if group * per < threads else me // per, me % per * EACH
  u, n = b.unrolled(EACH), b.loop(lanes, AxisType.UNROLL)
  dot = partial.after(stored).index(n * row + me * EACH + u).reduce(n, arg=Ops.ADD)
  score = part.masked(dot, query(g), first + u)
  tops, totals, weights = b.shared(threads, 2), b.shared(threads, 3), b.shared(threads * EACH, 4)
  stored = tops.index(me).store(score.reduce(u, arg=Ops.MAX)).end(me)
  n = b.loop(per, AxisType.UNROLL)
  top = tops.after(stored).index(g * per + n).reduce(n, arg=Ops.MAX).maximum(part.top.src[1])
  weight = ((score + top * -1) * part.slope).exp2()
  stored = UOp.group(weights.index(me * EACH + u).store(weight).end(u, me),
                     totals.index(me).store(weight.reduce(u, arg=Ops.ADD)).end(me))
  n = b.loop(per, AxisType.UNROLL)
  total = totals.after(stored).index(g * per + n).reduce(n, arg=Ops.ADD)
  is_first = (me % per).eq(0) & (me < group * per)
  def gated(index: UOp, gate: UOp) -> UOp: return index.replace(src=(index.src[0], index.src[1].valid(gate)))
  ends = [gated(part.out(query(g), UOp.const(W + k)), is_first).store(x).end(me) for k, x in enumerate((top, total))]

  # products with values
  lane, row_of = me % across, me // across
  g, c = b.unrolled(group), b.unrolled(columns)
  turns = -(-P // slices)
  fast = divisor(turns, VALUES // columns)
  over = [b.loop(fast, AxisType.UNROLL)]
  if fast < turns: over = [b.loop(turns // fast, AxisType.REDUCE), *over]
  step = over[0] if len(over) == 1 else over[0] * fast + over[1]
  position = step * slices + row_of
  weight = weights.after(stored).index(g * P + position)
  if P % slices or threads % across: weight = (position < P).where(weight, weight.const_like(0))
  acc = (weight * part.value(position, lane * columns + c)).reduce(*over, arg=Ops.ADD)
  stored = partial.index(row_of * (group * W) + g * W + lane * columns + c).store(acc).end(g, c, me)
  i, u, n = b.loop(outputs), b.unrolled(EACH), b.loop(slices, AxisType.UNROLL)
  at = (i * threads + me) * EACH + u
  acc = partial.after(stored).index(n * (group * W) + at).reduce(n, arg=Ops.ADD)
  ends.append(gated(part.out(query(at // W), at % W), at < group * W).store(acc).end(i, u, me))
  name = f"attention_{'_'.join(str(size(r)) for r in part.heads)}_{G}_{D}_{W}"
  sink = UOp.sink(*[e.end(*grid.values(), *([blocks] if group < G else [])) for e in ends],
                  arg=KernelInfo(name, applied_opts=opts))
  return sink.substitute(grid, walk=True)
