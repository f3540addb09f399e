"""
A part of attention on a GPU: threads of a block share scores in shared memory. A part of online_softmax.py.

Why: a product with keys is a sum of 64 elements for each position and query, one with values a sum of as many positions
  as a part has for each column and query: two matrices, each to be read once for all queries of a group, 16 bytes a
  thread and side by side, and a softmax between them that few threads have work in.
How: the threads of a block are, one after the other,
  elements and positions: partial products of 8 elements with all queries, for several positions in turn
  queries and positions: of 4 positions each the sums, the scores, their maximum; then exponentials and their sum
  columns and positions: partial sums of up to 8 columns, for all queries; then those of all positions
  All that they exchange is in shared memory, of which two stages use the same; five barriers. Rows of partial products
  are shifted by 4 numbers, so that no two threads of a warp want the same bank. Where the queries of a group and what
  they exchange do not fit there, as those of latents, several blocks take some of them each, and read the keys again.
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

# unless the schedule's THREADS, LANES and QUERIES say otherwise
THREADS = 128   # of a block, twice as many for large groups
ELEMENTS = 8    # halves of 16 bytes
LANES = 8       # threads that share a position: 128 bytes of a key
GROUP = 16      # queries of a block, if they fit
ACTIONS = {ScheduleOps.THREADS: THREADS, ScheduleOps.LANES: LANES, ScheduleOps.QUERIES: GROUP}
SHARED = 32768  # bytes of a block: Apple's; NVIDIA's are 48 KB
EACH = 4        # scores of a thread
SUMS = 32       # of queries and columns that a thread holds
VALUES = 32     # that a thread loads at once
SHIFT = 4

def _power(n: int, most: int) -> int: return min(n & -n, most)

@dataclass
class DecodeBlock:
  """Threads, and the loops that they run."""
  part: Part
  ids: int = 0

  def loop(self, n: int, kind: AxisType = AxisType.WEAK) -> UOp:
    self.ids += 1
    return UOp.range(n, self.ids - 1, kind)
  def unrolled(self, n: int) -> UOp: return self.loop(n, AxisType.UPCAST)
  def shared(self, n: int, slot: int) -> UOp: return UOp.placeholder((n,), dtypes.float32, slot, AddrSpace.LOCAL)

def on_gpu(part: Part, opts: tuple[Opt, ...] = ()) -> UOp|None:
  """The kernel, or None where it, or what `opts` want of it, does not fit."""
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
  across = W // columns                 # threads of a row of values
  while across > threads and columns < 8 and W % (columns * 2) == 0: across, columns = across // 2, columns * 2
  if across > threads: return None
  slices = threads // across            # rows at a time
  b = DecodeBlock(part, next_loop(part.store))
  grid = {r: r.replace(arg=(i, AxisType.GLOBAL)) for i, r in enumerate(part.heads)}
  blocks = UOp.range(G // group, len(grid), AxisType.GLOBAL) if group < G else UOp.const(0)
  me = UOp.range(threads, len(grid) + 1, AxisType.LOCAL)
  def query(g: UOp) -> UOp: return blocks * group + g

  # queries, once
  asked = b.shared(-(-group * D // threads) * threads, 0)
  i = b.loop(-(-group * D // threads))
  at = i * threads + me
  asked = asked.after(asked.index(at).store(part.query(query((at // D).minimum(group - 1)), at % D)).end(i, me))

  # products with keys
  row = group * P + SHIFT
  outputs = -(-group * W // (threads * EACH))  # of a thread, EACH at a time
  rows = slices + (threads % across > 0)       # threads that are left over have one, too
  partial = b.shared(max((lanes - 1) * row + threads * EACH, (rows - 1) * group * W + outputs * threads * EACH), 1)
  lane, slot = me % lanes, me // lanes
  g, turn, e = b.unrolled(group), b.unrolled(P // slots), b.loop(elements, AxisType.UNROLL)
  position = turn * slots + slot
  over = [e] if elements * lanes == D else [b.loop(D // elements // lanes, AxisType.REDUCE), e]
  d = ((over[0] * lanes + lane) if len(over) > 1 else lane) * elements + e
  dot = (asked.index(g * D + d) * part.key(position, d)).reduce(*over, arg=Ops.ADD)
  stored = partial.index(lane * row + g * P + position).store(dot).end(g, turn, me)

  # scores, four a thread, and their maximum
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
