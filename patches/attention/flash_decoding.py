"""
Flash-decoding: attention of few queries in one pass over keys and values, in parts, and a kernel that combines them.

Why: a softmax over positions is a maximum, a sum and a product with the values, each over all positions. The
  scheduler stores whatever several sums read. So scores, their maximum, their exponentials and the sum are kernels of
  their own.
  A sum over positions offers only heads and columns as parallel axes. On a GPU the maximum was one block of 8 threads,
  and the product with the values was 4 blocks.
How: the scores are read by a maximum and by sums of exp(score - maximum) times something. Such sums over parts of the
  positions can be combined later. So the pass cuts positions into parts of PART. For each part one kernel stores the
  maximum m, the sum l of exp(score - m), and the sums of exp(score - m) * values. A sum over positions becomes a sum
  over parts, of exp(m - maximum) * l or exp(m - maximum) * sums. The maximum over all m is exact to the bit.
  For a prompt's queries, all positions are one part. On CPUs a row has as few parts as give all threads equal work: one
  for 8 heads and 2 threads, two for 3 heads. Their number does not depend on other rows.
  Rows of several sequences end at their own last position, which their mask holds. A part beyond it reads the row's
  last block again, with weight 0: memory beyond a row's end may hold NaN. Parts begin at the block where a window does.
  Otherwise the rule does not look into scores and values, so these may contain sinks, softcaps, windows, masks,
  latents, block tables and packed values. A batch, or a few queries at a time, are outputs like the heads.
  online_softmax.py computes the scores of a part once for all columns. Without it the kernel of a part is right but
  slow, so each of the two passes needs the other (pipeline.py).
Rewrite:
  m = max n: s[n]; e[n] = exp(s[n] - m); y = (sum n: e[n] * v[n]) / (sum n: e[n])
  --> for each part p: m[p] = max of its s; l[p] = sum exp(s - m[p]); o[p] = sum exp(s - m[p]) * v
      m = max p: m[p]; y = (sum p: exp(m[p] - m) * o[p]) / (sum p: exp(m[p] - m) * l[p])
Cost: PART positions are read where fewer are there (the last is read again, with weight 0); m, l and the sums of a part
  are written and read: 4 * (columns + 4) bytes a query head, 3% of the keys and values of 4 heads that share them.
Numbers: see online_softmax.py.
Upstream: not sent; there it is a rule beside split_reduceop, and needs a search for PART.
"""
from __future__ import annotations
import math
from dataclasses import dataclass
from tinygrad import Device
from tinygrad.renderer import Renderer
from tinygrad.schedule import rangeify
from tinygrad.schedule.indexing import BufferizeOpts
from tinygrad.uop.ops import AxisType, Ops, PatternMatcher, UOp, UPat
from tinygrad_llm.patches import is_on, places
from tinygrad_llm.patches.attention import prefill_gpu
from tinygrad_llm.patches.attention.bounds import visible
from tinygrad_llm.patches.graph.split_products import sums
from tinygrad_llm.patches.hooks import PARTS
from tinygrad_llm.patches.ir.builder import next_loop
from tinygrad_llm.patches.ir.indices import flat, size, steps
from tinygrad_llm.patches.ir.sums import product
from tinygrad_llm.patches.ir.targets import LANES, has_vectors, most_threads

SEAMS = {
  "tinygrad.schedule.rangeify:get_kernel_graph": "410b0e3486ef",
  "tinygrad.schedule.rangeify:pm_limit_bufs": "46f09b443c11",
  "tinygrad.schedule.indexing:BufferizeOpts": "e931bd7ff25e",
}

PART = 64       # positions
QUERIES = 1024  # most heads times queries on a GPU; above, tinygrad's product of matrices computes the scores
LOWEST = -math.inf
WIDEST = 1024   # most columns of values on a GPU; each thread has 8
SHARES = 16     # most parts of a row's positions on a CPU
COST = 0.01     # of a part on a CPU, which is combined with others, as a fraction of a head's work
EXTRA = 4       # numbers of a part after its columns: m, l, and two that keep rows aligned to 16 bytes
FLOOR = -3.4e38 # m of a fully masked part, so that exp(-inf - m) is 0, not NaN

def _apart(at: UOp, ranges: list[UOp]) -> dict[UOp, UOp]:
  """{range: its step} of a flat index: the inverse of flat()."""
  ret: dict[UOp, UOp] = {}
  for r in reversed(ranges):
    ret[r] = at % size(r)
    at = at // size(r)
  return ret

@dataclass(frozen=True)
class Exponentials:
  """
  A sum over positions of exp2(exponent) * factors.

  exponent: slope * score + a term without the position; score: the load of the score.
  """
  total: UOp
  score: UOp
  exponent: UOp
  slope: float
  factors: tuple[UOp, ...]

def _slope(u: UOp, x: UOp) -> float|None:
  """a of u = a * x + b, where b may be anything without x; None if u is not linear in x."""
  if u is x: return 1.0
  if x not in u.backward_slice: return 0.0
  if u.op is Ops.MUL and u.src[1].op is Ops.CONST:
    return None if (of_x := _slope(u.src[0], x)) is None else of_x * u.src[1].val
  if u.op is not Ops.ADD: return None
  a, b = (_slope(s, x) for s in u.src)
  return None if a is None or b is None else a + b

def _exponentials(total: UOp, score: UOp) -> Exponentials|None:
  factors = list(total.src[0].split_uop(Ops.MUL))
  having = [f for f in factors if score in f.backward_slice]
  if len(having) != 1 or having[0].op is not Ops.EXP2: return None
  exponent = having[0].src[0]
  if not (slope := _slope(exponent, score)) or slope < 0: return None
  rest = exponent.substitute({score: score.const_like(0)})
  if set(total.src[1:]) & set(rest.ranges): return None
  return Exponentials(total, score, exponent, slope, tuple(f for f in factors if f is not having[0]))

@dataclass(frozen=True)
class Softmax:
  """
  A softmax over positions, and the sums that read it.

  scores: the STAGE that stores them; at: which of its ranges counts positions; top: the maximum; total: the sum of
  exponentials; values: the sum of exponentials times values.
  """
  scores: UOp
  at: int
  top: UOp
  total: Exponentials
  values: Exponentials

  @property
  def position(self) -> UOp: return self.scores.src[1 + self.at]
  @property
  def outer(self) -> list[UOp]: return [r for r in self.scores.src[1:] if r.op is Ops.RANGE and r is not self.position]
  @property
  def outputs(self) -> list[UOp]:
    """The output ranges of the sums with values."""
    return sorted(self.values.total.ranges, key=lambda r: r.arg)
  @property
  def width(self) -> int: return steps(self.outputs) // steps(self.outer)
  @property
  def many(self) -> bool:
    """
    Whether the number of queries is symbolic, as in a prompt.

    A tile of these queries then goes over all positions: there are no parts.
    """
    return any(r.src[0].op is not Ops.CONST for r in (*self.outer, *self.outputs))

  @property
  def heads(self) -> list[UOp]:
    """The outer ranges that keys depend on: rows and heads."""
    factors = sums(_fused(self.scores.src[0]))[0].src[0].split_uop(Ops.MUL)
    keys = [f for f in factors if self.position in f.ranges]
    return [r for r in self.outer if any(r in k.ranges for k in keys)]

  def seen(self) -> tuple[UOp|None, UOp|None, int|None]:
    """
    The first and the last position that masks leave to a row, and the most positions that a row sees.

    None: no bound. Only a last position that is read from memory counts: rows of several sequences have one each.
    Queries that share keys have common bounds, from the first query's first position to the last query's last.
    """
    value = _fused(self.scores.src[0])
    first, last = visible(value, self.position)
    if last is None or not last.op_in_backward_slice_with_self(Ops.INDEX): return None, None, None
    shared = [r for r in self.outer if r not in self.heads]
    last = last.substitute({r: r.src[0] - 1 for r in shared}, walk=True)
    end = last.maximum(0).minimum(self.position.src[0] - 1)
    if first is None: return None, end, None
    first = first.substitute({r: UOp.const(0) for r in shared}, walk=True)
    return first.maximum(0).minimum(end), end, int((last - _least(first)).simplify().vmax) + 1

  def outer_of(self, load: UOp) -> list[UOp]:
    """The indices of a load of scores, without the position."""
    return [i for r, i in zip(self.scores.src[1:], load.src[1:]) if r.op is Ops.RANGE and r is not self.position]
  def outputs_at(self, outer: list[UOp], column: UOp) -> dict[UOp, UOp]:
    """{output range: its index} for a column of a head."""
    at = flat(self.outer, outer) * self.width + column
    return {r: i.simplify() for r, i in _apart(at, self.outputs).items()}

def _least(first: UOp) -> UOp:
  """At most `first`, without the start of a chunk: x // n * n is at least x - (n - 1)."""
  chunks = [u for u in first.toposort() if u.op is Ops.MUL and u.src[0].op is Ops.FLOORDIV and
            u.src[1].op is Ops.CONST and u.src[1] is u.src[0].src[1]]
  return first.substitute({u: u.src[0].src[0] - (u.src[1].val - 1) for u in chunks})

def _softmax(top: UOp, ops: dict[UOp, None], readers: dict[UOp, list[UOp]]) -> Softmax|None:
  load, r = top.src[0], top.src[1]
  if load.op is not Ops.INDEX or (scores := load.src[0]).op is not Ops.STAGE or r not in load.src: return None
  at = load.src.index(r) - 1
  if scores.src[1 + at].op is not Ops.RANGE or len(sums(scores.src[0])) != 1: return None
  found = []
  for other in readers[scores]:
    if other is load: continue
    if other.op is not Ops.INDEX or (position := other.src[1 + at]).op is not Ops.RANGE: return None
    totals = [u for u in ops if u.op is Ops.REDUCE and position in u.src[1:]]
    if len(totals) != 1 or totals[0].arg != (Ops.ADD, 0) or len(totals[0].src) != 2: return None
    if (exps := _exponentials(totals[0], other)) is None: return None
    found.append(exps)
  found.sort(key=lambda e: len(e.factors))
  if len(found) != 2 or found[0].factors or not found[1].factors or found[0].slope != found[1].slope: return None
  ret = Softmax(scores, at, top, *found)
  if not isinstance(scores.arg.device, str): return None
  ren = Device[scores.arg.device].renderer
  if not fits(ren, steps(sums(scores.src[0])[0].src[1:]), ret.width, ret.many): return None
  if not has_vectors(ren) and not ret.many and steps(ret.outer) > QUERIES: return None
  # the outputs must be the columns of one head after the other, whatever ranges count them
  head, column = [UOp.range(size(r), -1 - i) for i, r in enumerate(ret.outer)], UOp.range(ret.width, 0)
  outputs = ret.outputs_at(head, column)
  found_at = [i.substitute(outputs, walk=True).simplify() for i in ret.outer_of(ret.values.score)]
  return ret if ret.width > 1 and all(i is h for i, h in zip(found_at, head)) else None

def fits(ren: Renderer, depth: int, width: int, many: bool) -> bool:
  """Whether online_softmax.py can schedule keys of `depth` elements and values of `width`. many: a prompt's queries."""
  if has_vectors(ren): return depth % LANES == 0 and width % LANES == 0
  if many: return is_on("mma_tiles") and prefill_gpu.fits(ren, depth, width)
  return ren.has_local and ren.has_shared and width <= WIDEST

def _shares(softmax: Softmax, threads: int) -> int:
  """The parts of a row's positions on a CPU, at most SHARES, that spread the heads' work evenly over its threads."""
  # rows have ends of their own; shares do not depend on their number, so that neither do a row's results
  end = softmax.seen()[1]
  heads = steps(r for r in softmax.heads if end is None or r not in end.ranges)
  most = min(SHARES, -(-int(softmax.position.src[0].vmax) // PART))
  def longest(parts: int) -> float: return -(-heads * parts // threads) / parts * (1 + COST * parts)
  return min(range(1, most + 1), key=longest)

def _fresh(u: UOp, first: int) -> dict[UOp, UOp]:
  """{loop of a sum in u: a new loop}, numbered from `first`."""
  loops = [r for red in sums(u) for r in red.src[1:]]
  return {r: r.replace(arg=(first + i, *r.arg[1:])) for i, r in enumerate(loops)}

def _fused(value: UOp) -> UOp:
  """Inlines elementwise kernels into a value, so that decoded keys or values are not stored."""
  while True:
    loads = [u for u in value.toposort(lambda u: u.op is not Ops.STAGE) if u.op is Ops.INDEX]
    loads = [u for u in loads if u.src[0].op is Ops.STAGE and u.src[0].arg.removable and not sums(u.src[0].src[0])]
    if not loads: return value
    value = value.substitute({u: u.src[0].src[0].substitute(
      {r: i for r, i in zip(u.src[0].src[1:], u.src[1:]) if r.op is Ops.RANGE}, walk=True) for u in loads}, walk=True)

class Parts:
  """The kernel of a softmax's parts: the values that it stores, and loads of them."""
  def __init__(self, softmax: Softmax, first: int):
    self.softmax, self.length, self._next = softmax, softmax.position.src[0], first
    self.device = softmax.scores.arg.device
    on_cpu = has_vectors(ren := Device[self.device].renderer)
    self.shares = _shares(softmax, most_threads(ren)) if on_cpu and not softmax.many else 1
    self.whole = on_cpu and self.shares == 1 or softmax.many
    self.first, self.last, most = (None, None, None) if self.whole else softmax.seen()
    if self.shares > 1: self.count = UOp.const(self.shares)
    else: self.count = UOp.const(1) if self.whole else ((self.length + (PART - 1)) // PART).simplify()
    if most is not None and most < self.length.vmax and self.shares == 1:
      self.count = self.count.minimum((most - 2) // PART + 2).simplify()  # a window's first block is not whole
    self.width = softmax.width
    self.outer = [self.loop(r.src[0]) for r in softmax.outer]
    at = dict(zip(softmax.outer, self.outer))
    self.first, self.last = (None if u is None else u.substitute(at, walk=True) for u in (self.first, self.last))
    self.part, self.column = self.loop(self.count), self.loop(self.width + EXTRA)
    ranges = [r for r in (*self.outer, self.part, self.column) if r.op is Ops.RANGE]
    self.stage = UOp(Ops.STAGE, src=(self._value(), *ranges),
                     arg=BufferizeOpts(device=self.device, removable=False), tag=PARTS)

  def loop(self, size: UOp|int, kind: AxisType = AxisType.WEAK) -> UOp:
    """A loop of `size` steps; the constant 0 if that is 1."""
    if (size if isinstance(size, int) else size.vmax) == 1: return UOp.const(0)
    self._next += 1
    return UOp.range(size, self._next - 1, kind)

  def read(self, load: UOp, part: UOp, column: UOp|int) -> UOp:
    """The number in `column` of a part, for the same head and query as a load of a score."""
    parts = [part] if part.op is Ops.RANGE else []
    column = column if isinstance(column, UOp) else UOp.const(column)
    return self.stage.index(*self.softmax.outer_of(load), *parts, column)

  def _position(self) -> tuple[UOp, UOp|None, UOp]:
    """
    A loop over a part, whether its position exists, and the position, clamped to the last one.

    The second is None if all positions exist. In shares of a row, it is whether the position does not exist.

    Where a row has its own last position, the loop does not decide which block of PART positions is read: a table of
    blocks is read once.
    """
    if self.whole: return (j := self.loop(self.length, AxisType.REDUCE)), None, j
    if self.shares > 1: return self._share()
    j, part = self.loop(PART, AxisType.REDUCE), self.part
    if self.last is None:
      at = part * PART + j
      return j, (there := at < self.length), there.where(at, self.length - 1)
    if self.first is not None: part = part + self.first // PART
    block = part.minimum(self.last // PART)
    return j, part * PART + j <= self.last, block * PART + j.minimum(self.last - block * PART).maximum(0)

  def _share(self) -> tuple[UOp, UOp, UOp]:
    """The same for one of `shares` parts of what a row sees: blocks of PART positions, as many in each."""
    def blocks(last: UOp) -> UOp: return last // PART // self.shares + 1
    j = self.loop((blocks(self.length - 1) * PART).simplify(), AxisType.REDUCE)
    last = self.length - 1 if self.last is None else self.last
    first = UOp.const(0) if self.first is None else self.first // PART
    own = blocks(last - first * PART)
    first = first + self.part * own
    end = (last - first * PART).minimum(own * PART - 1)
    return j, end < j, (first + j // PART).minimum(last // PART) * PART + j % PART

  def _score(self, there: UOp|None, position: UOp) -> UOp:
    s, value = self.softmax, _fused(self.softmax.scores.src[0])
    fresh = _fresh(value, self._next)
    self._next += len(fresh)
    value = value.substitute({s.position: position, **dict(zip(s.outer, self.outer)), **fresh}, walk=True)
    lowest = value.const_like(LOWEST)
    if self.shares > 1 and there is not None: return there.where(lowest, value)  # as masks are, for bounds.py
    return value if there is None else there.where(value, lowest)

  def _value(self) -> UOp:
    s = self.softmax
    j, there, position = self._position()
    top = self._score(there, position).reduce(j, arg=Ops.MAX).maximum(FLOOR)
    def exponentials(there: UOp|None, position: UOp) -> UOp:
      return ((self._score(there, position) + top * -1) * s.values.slope).exp2()
    j, there, position = self._position()
    total = exponentials(there, position).reduce(j, arg=Ops.ADD)
    j, there, position = self._position()
    values = _fused(product(s.values.factors))
    column = self.loop(self.width)
    values = values.substitute(s.outputs_at(self.outer, column), walk=True).simplify()
    column_or_none = (self.column < self.width).where(self.column, UOp.const(0))
    values = values.substitute({s.values.score.src[1 + s.at]: position, column: column_or_none}, walk=True)
    weighted = (exponentials(there, position) * values).reduce(j, arg=Ops.ADD)
    rest = self.column.eq(self.width).where(top, total)
    return (self.column < self.width).where(weighted, rest)

def _combined(softmax: Softmax, parts: Parts) -> dict[UOp, UOp]:
  """{a sum or the maximum over positions: the same over parts}."""
  width, s = parts.width, softmax
  over = parts.loop(parts.count, AxisType.REDUCE)
  ret: dict[UOp, UOp] = {}
  for e, column in ((s.total, UOp.const(width + 1)), (s.values, (flat(s.outputs) % width).simplify())):
    exponent = e.exponent.substitute({e.score: parts.read(e.score, over, width)}, walk=True)
    ret[e.total] = _over(exponent.exp2() * parts.read(e.score, over, column), over, Ops.ADD)
  over = parts.loop(parts.count, AxisType.REDUCE)
  ret[s.top] = _over(parts.read(s.top.src[0], over, width), over, Ops.MAX)
  return ret

def _over(value: UOp, part: UOp, op: Ops) -> UOp: return value.reduce(part, arg=op) if part.op is Ops.RANGE else value

def _inlined(sink: UOp, parts: UOp, columns: set[UOp]) -> UOp:
  """Inlines the kernels that would store a head's maximum, or sum, over the parts."""
  def stages() -> list[UOp]:
    return [u for u in sink.toposort() if u.op is Ops.STAGE and not any(columns & set(i.ranges) for i in u.src[1:]) and
            parts in u.src[0].toposort(lambda s: s.op is not Ops.STAGE or s is parts) and u is not parts]
  while found := stages():
    stage = found[0]
    subs = {u: stage.src[0].substitute({r: i for r, i in zip(stage.src[1:], u.src[1:]) if r.op is Ops.RANGE}, walk=True)
            for u in sink.toposort() if u.op is Ops.INDEX and u.src[0] is stage}
    if not subs: break
    sink = sink.substitute(subs, walk=True)
  return sink

def _is_one(u: UOp) -> bool:
  """Whether u is exp2((m - m) * slope), which occurs with one part: its maximum is the overall maximum."""
  if u.op is not Ops.EXP2 or u.src[0].op is not Ops.MUL: return False
  if (difference := u.src[0].src[0]).op is not Ops.ADD: return False
  a, b = difference.src
  return b.op is Ops.MUL and b.src[0] is a and b.src[1].op is Ops.CONST and b.src[1].val == -1

def _found(sink: UOp) -> Softmax|None:
  """A softmax of a graph; None if there is none."""
  ops = sink.toposort()
  tops = [u for u in ops if u.op is Ops.REDUCE and u.arg == (Ops.MAX, 0) and len(u.src) == 2]
  if not tops: return None
  readers: dict[UOp, list[UOp]] = {}
  for u in ops:
    for s in u.src:
      if s.op is Ops.STAGE: readers.setdefault(s, []).append(u)
  return next((softmax for top in tops if (softmax := _softmax(top, ops, readers)) is not None), None)

def _unstored(sink: UOp) -> UOp:
  """Inlines stored exponentials into the sums that read them."""
  loads = [u for u in sink.toposort() if u.op is Ops.INDEX and u.src[0].op is Ops.STAGE and u.src[0].arg.removable and
           u.src[0].src[0].op is Ops.EXP2 and not sums(u.src[0].src[0])]
  if not loads: return sink
  at = {u: {r: i for r, i in zip(u.src[0].src[1:], u.src[1:]) if r.op is Ops.RANGE} for u in loads}
  return sink.substitute({u: u.src[0].src[0].substitute(at[u], walk=True) for u in loads}, walk=True)

def split(sink: UOp) -> UOp|None:
  made = sink
  while True:
    if (softmax := _found(made)) is None:
      if (unstored := _unstored(made)) is made or (softmax := _found(unstored)) is None: break
      made = unstored
    parts = Parts(softmax, next_loop(made))
    combined = _combined(softmax, parts)
    top = combined.pop(softmax.top)
    made = made.substitute(combined, walk=True).substitute({softmax.top: top}, walk=True)
    made = _inlined(made, parts.stage, set(softmax.outputs))
    made = made.substitute({u: u.const_like(1) for u in made.toposort() if _is_one(u)}, walk=True)
  return None if made is sink else made

pm_split = PatternMatcher([(UPat(Ops.SINK, name="sink"), split)])

def install() -> None:
  places.rules(rangeify, "pm_limit_bufs", pm_split)
