"""
Attention of a prompt's queries on a GPU: tiled online softmax on tensor cores. Used by online_softmax.py.

Why: with many queries for the same keys, both products are GEMMs. Stored scores would take queries x positions numbers
  of memory.
How: a block has TILE queries of the heads that share keys. For KEYS positions at a time its threads put keys and values
  into shared memory as fragments (fragments.py). A warp multiplies its queries by the keys. The threads of a row
  exchange their maxima, and each stores its exponentials as fragments of the second product. Sums of values stay in
  registers and are rescaled by exp(old maximum - new maximum). Blocks of positions that no query of the block sees are
  skipped. If values are wide, warps split the columns between them, and each uses all scores.
Numbers: 32 heads of 64 elements, 8 of keys, 512 tokens of a prompt, estimates for an H100 in us: five kernels 5,540 ->
  one of 18 and one that divides by the sums. Errors up to 5e-3 of the results' root mean square, with scores of a few
  dozens. With decode_gpu.py, an H100 reads a prompt of 480 tokens (1B) 4.9 times as fast.
"""
from __future__ import annotations
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from tinygrad.codegen.opt import Opt
from tinygrad.dtype import AddrSpace, DType, dtypes
from tinygrad.helpers import ceildiv, round_up
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import AxisType, KernelInfo, Ops, UOp
from tinygrad_llm.patches.attention.part import Part
from tinygrad_llm.patches.ir.actions import ScheduleOps, chosen
from tinygrad_llm.patches.ir.builder import next_loop
from tinygrad_llm.patches.ir.indices import divisor, size, steps
from tinygrad_llm.patches.ir.sums import added
from tinygrad_llm.patches.ir.targets import WARP
from tinygrad_llm.patches.tiles import fragments
from tinygrad_llm.patches.tiles.fragments import A, B, C, Core, Layout

TILE = 64      # queries of a block
KEYS = 64      # positions at a time
ROWS = 16      # queries of a warp
COLUMNS = 128  # most columns of values of a warp
DEEPEST, WIDEST = 576, 512  # most elements of a key and of a value
AT_ONCE = 4    # column tiles whose values are loaded together
RUN = 8        # elements of one row that a thread loads together

# defaults of the schedule's QUERIES and POSITIONS
ACTIONS = {ScheduleOps.QUERIES: TILE, ScheduleOps.POSITIONS: KEYS}

@dataclass(frozen=True)
class Shape:
  """
  The tile of a block in one step.

  queries, keys: their numbers; depth: elements of a key that are in shared memory together.
  """
  queries: int
  keys: int
  depth: int

def _shape(core: Core, ren: Renderer, depth: int, width: int, opts: tuple[Opt, ...] = ()) -> Shape|None:
  """The first shape that fits shared memory, of the defaults or of the one that `opts` asks for; None if none does."""
  small = (TILE // 2, KEYS // 2)
  sizes = [(TILE, KEYS), (TILE, KEYS // 2), small, (TILE // 2, ROWS), (ROWS, ROWS)]
  if opts:
    queries, keys = small = (chosen(opts, ScheduleOps.QUERIES, TILE), chosen(opts, ScheduleOps.POSITIONS, KEYS))
    if min(small) < ROWS or queries % ROWS or keys % ROWS: return None
    sizes = [small]
  for part in [depth // n for n in range(1, depth // ROWS + 1) if depth % (n * ROWS) == 0]:
    for queries, keys in sizes if part == depth else [small]:
      elements = queries * (part + keys) + keys * (part + width)
      if elements * core.dtype.itemsize + queries * WARP * ceildiv(width, COLUMNS) <= ren.shared_max:
        return Shape(queries, keys, part)
  return None

def fits(ren: Renderer, depth: int, width: int) -> bool:
  """Whether there is a kernel for keys of `depth` elements and values of `width`."""
  if (core := fragments.core(ren)) is None or depth > DEEPEST or width > WIDEST: return False
  return depth % ROWS == 0 and width % ROWS == 0 and _shape(core, ren, depth, width) is not None

class PrefillBlock:
  """Loops and arrays of a kernel, numbered in the order in which they are made."""
  def __init__(self, part: Part, core: Core, threads: int):
    self.core, self.ids = core, itertools.count(next_loop(part.store))
    self.slots, self.threads = itertools.count(), threads
    self.me = self.loop(threads, AxisType.LOCAL)

  def loop(self, n: UOp|int, kind: AxisType = AxisType.WEAK) -> UOp: return UOp.range(n, next(self.ids), kind)
  def unrolled(self, n: int) -> UOp: return self.loop(n, AxisType.UPCAST)
  def array(self, n: int, space: AddrSpace, dtype: DType = dtypes.float32) -> UOp:
    return UOp.placeholder((n,), dtype, next(self.slots), space)

  def tile(self, lies: Layout) -> UOp: return self.array(lies.lines * lies.k, AddrSpace.LOCAL, self.core.dtype)

  def filled(self, array: UOp, lies: Layout, value: Callable[[UOp, UOp], UOp], by_line: bool = False,
             kind: AxisType = AxisType.UPCAST) -> UOp:
    """
    The store that fills a tile with value(line, k).

    by_line: lines, not elements k, are neighbours in memory; kind: axis type of the loop over a thread's turns.
    """
    lines, ks = (RUN if by_line else lies.together), RUN
    while by_line and lines > 2 and lies.lines // lines * (lies.k // ks) < self.threads: lines //= 2
    n = lies.lines // lines * (lies.k // ks)
    turn, own, i = self.loop(ceildiv(n, self.threads), kind), self.unrolled(lines), self.unrolled(ks)
    group = turn * self.threads + self.me
    if n % self.threads: group = group.minimum(n - 1)
    if by_line:
      line, k = group % (lies.lines // lines) * lines + own, group // (lies.lines // lines) * ks + i
    else: line, k = lies.line(group // (lies.k // ks), own), group % (lies.k // ks) * ks + i
    found = value(line, k)
    if found.op is Ops.CAST and found.src[0].dtype is self.core.dtype: found = found.src[0]
    return array.index(lies.written(line, k)).store(found.cast(self.core.dtype)).end(turn, own, i, self.me)

def _product(core: Core, device: str, operands: Callable[[UOp|int], Sequence[UOp]], n: int, block: PrefillBlock,
             physical: Mapping[str, UOp], fast: int, outer: Sequence[UOp] = ()) -> UOp:
  """A product of fragments over n elements, summed over `outer` loops as well."""
  over = [*outer, *(inner := fragments.loops(core, n, fast, block.loop))]
  total = fragments.product(core, device, n, inner, operands, physical)
  return total.reduce(*over, arg=Ops.ADD) if over else total

def on_gpu(part: Part, ren: Renderer, opts: tuple[Opt, ...] = ()) -> UOp|None:
  """The kernel; None if the part does not fit it, or the schedule `opts` does not."""
  D, W, n = part.depth, part.width, part.position.src[0]
  if (core := fragments.core(ren)) is None or (tokens := part.tokens) is None or not fits(ren, D, W): return None
  if any(r.src[0].op is not Ops.CONST for r in part.heads): return None
  if (shape := _shape(core, ren, D, W, opts)) is None: return None
  rows, keys = shape.queries, shape.keys
  device = ren.target.device

  # work partition; if the number of tokens is not a multiple of `some`, the last ones are computed more than once
  grouped = steps([r for r in part.group if r is not tokens])
  some = max(1, rows // grouped)
  queries = some * grouped
  rows = min(rows, round_up(queries, ROWS))
  across = ceildiv(W, COLUMNS)
  while W % (across * core.rows): across += 1
  b = PrefillBlock(part, core, rows // ROWS * across * WARP)
  me = b.me
  grid = {r: r.replace(arg=(i, AxisType.GLOBAL)) for i, r in enumerate(part.heads)}
  turn = b.loop((tokens.src[0] + (some - 1)) // some, AxisType.GLOBAL)
  tile = b.loop(ceildiv(queries, rows), AxisType.GLOBAL)
  inner = b.loop(some)
  part = part.some_tokens((turn * some + inner).minimum(tokens.src[0] - 1), inner)
  def query(q: UOp) -> UOp: return (tile * rows + q).minimum(queries - 1)

  lane, warp = me % WARP, me // WARP
  warp_row, warp_column = warp // across, warp % across
  physical = fragments.physical(core, lane, b.unrolled)
  of_q, of_k = Layout(core, A, rows, shape.depth), Layout(core, B, keys, shape.depth)
  of_p, of_v = Layout(core, A, rows, keys), Layout(core, B, W, keys)
  row_tile = b.unrolled(ROWS // core.tokens)
  # warps with columns of the same rows share their scores; tinygrad needs several instructions of each warp
  own_tiles = keys // across // core.rows * (ROWS // core.tokens)
  sharing = across if keys % (across * core.rows) == 0 and own_tiles > 1 else 1
  key_tiles = keys // sharing // core.rows
  own_keys = b.unrolled(key_tiles)
  key_tile = warp_column * key_tiles + own_keys if sharing > 1 else own_keys
  column_tiles = W // across // core.rows
  some_tiles = b.unrolled(divisor(column_tiles, AT_ONCE))
  q_tile = warp_row * (ROWS // core.tokens) + row_tile
  own_rows = [physical[name] for bit, name in core.carriers[C].items() if bit[0] == "m" and name[0] != "l"]
  own_columns = [physical[name] for bit, name in core.carriers[C].items() if bit[0] == "n" and name[0] != "l"]
  mates = [physical[name] for bit, name in core.carriers[C].items() if bit[0] == "n" and name[0] == "l"]
  def number(bits: Sequence[UOp]) -> UOp:
    return added([bit * (1 << i) for i, bit in enumerate(bits)], UOp.const(0))
  row = q_tile * core.tokens + core.at(C, "m", physical)
  held = row_tile * (1 << len(own_rows)) + number(own_rows)  # a row's number among the thread's rows
  n_held, n_mates = ROWS // core.tokens << len(own_rows), 1 << len(mates)

  # queries: loaded once, if they fit
  asked, deep = b.tile(of_q), [b.loop(D // shape.depth, AxisType.REDUCE)] if shape.depth < D else []
  def element(d: UOp) -> UOp: return added([r * shape.depth for r in deep], d)
  fill = b.filled(asked, of_q, lambda q, d: part.query(query(q), element(d)), kind=AxisType.WEAK)
  if not deep: asked = asked.after(fill)

  # running state over the previous positions: maxima, sums of exponentials of a thread's columns, sums of values
  tops, totals = b.array(n_held, AddrSpace.REG), b.array(n_held, AddrSpace.REG)
  n_sums = column_tiles << len(own_columns)
  sums = b.array(n_held * n_sums, AddrSpace.REG)
  i, j, k = b.unrolled(n_held), b.unrolled(n_held), b.unrolled(n_held * n_sums)
  started = UOp.group(tops.index(i).store(part.top.src[1]).end(i), totals.index(j).store(UOp.const(0.0)).end(j),
                      sums.index(k).store(UOp.const(0.0)).end(k))
  # blocks of positions that no query sees are skipped
  begin, end = part.bounds({inner: UOp.const(0)}, {inner: UOp.const(some - 1)})
  skipped = UOp.const(0) if begin is None else begin.maximum(0) // keys
  last = n if end is None else (end + 1).minimum(n)
  step = b.loop(((last + (keys - 1)) // keys - skipped).maximum(1), AxisType.REDUCE)
  first = (step + skipped) * keys
  tops, totals, sums = (x.after(started, step) for x in (tops, totals, sums))
  def position(p: UOp) -> UOp:
    # the number of a block of a table does not depend on p, so that it is read once
    return first + p.minimum(n - 1 - first).maximum(0) if part.paged else (first + p).minimum(n - 1)

  ks, vs = b.tile(of_k), b.tile(of_v)
  of_keys = [b.filled(ks, of_k, lambda j, d: part.key(position(j), element(d))), *([fill] if deep else [])]
  of_all = [b.filled(vs, of_v, lambda c, j: part.value(position(j), c), by_line=True), *([] if deep else of_keys)]

  # scores; each step loads the queries again, else registers would hold them throughout
  asked, ks = (x.after(*(of_keys if deep else of_all)) for x in (asked, ks))
  def of_scores(k: UOp|int) -> list[UOp]:
    return [asked.index(of_q.read(q_tile, k, physical)), ks.index(of_k.read(key_tile, k, physical))]
  dot = _product(core, device, of_scores, shape.depth, b, physical, of_q.steps, deep)
  p = key_tile * core.rows + core.at(C, "n", physical)
  score = part.masked(dot, query(row), position(p))
  score = (first + p < n).where(score, score.const_like(-float("inf")))

  # maxima: of a thread's columns, then over all threads of a row
  tellers = b.array(rows * across * n_mates, AddrSpace.LOCAL)
  place = (warp_column * rows + row) * n_mates
  told = tellers.index(place + number(mates)).store(score.reduce(own_keys, *own_columns, arg=Ops.MAX)).end(
    row_tile, *own_rows, me)
  def of_row(array: UOp, op: Ops) -> UOp:
    """Reduces the numbers that all threads of a row have written to an array."""
    m = b.loop(n_mates, AxisType.UNROLL)
    if sharing == 1: return array.index(place + m).reduce(m, arg=op)
    c = b.loop(across, AxisType.UNROLL)
    return array.index((c * rows + row) * n_mates + m).reduce(m, c, arg=op)
  top = of_row(tellers.after(told), Ops.MAX).maximum(tops.index(held))
  scale = ((tops.index(held) - top) * part.slope).exp2()
  weight = ((score - top) * part.slope).exp2()

  # products with values
  ps = b.tile(of_p)
  stored = ps.index(of_p.written(row, p)).store(weight.cast(core.dtype)).end(
    row_tile, own_keys, *own_rows, *own_columns, me)
  ps, vs = ps.after(stored), vs.after(*of_all, stored)
  def number_of(column_tile: UOp) -> UOp:
    """The index of a sum in the thread's array."""
    found: UOp = held * n_sums + column_tile * (1 << len(own_columns)) + number(own_columns)
    return found
  summed = list[UOp]()
  for first_tile in range(0, column_tiles, size(some_tiles)):
    # ordered after the previous tiles' sums: otherwise all values would be loaded first
    column_tile, later = first_tile + some_tiles, vs.after(*summed[-1:]) if summed else vs
    def of_values(k: UOp|int, vs: UOp = later, tile: UOp = warp_column * column_tiles + column_tile) -> list[UOp]:
      return [ps.index(of_p.read(q_tile, k, physical)), vs.index(of_v.read(tile, k, physical))]
    more = _product(core, device, of_values, keys, b, physical, of_p.steps)
    at = sums.index(number_of(column_tile))
    summed.append(at.store(at * scale + more).end(row_tile, some_tiles, *own_rows, *own_columns))
  total = totals.index(held) * scale + weight.reduce(own_keys, *own_columns, arg=Ops.ADD)
  counted = totals.index(held).store(total).end(row_tile, *own_rows)
  topped = tops.after(*summed, counted).index(held).store(top).end(row_tile, *own_rows)
  done = UOp.group(*summed, counted, topped).end(step)
  tops, totals, sums = (x.buf_uop.after(done) for x in (tops, totals, sums))

  # sums of exponentials over all threads of a row
  shared = b.array(rows * across * n_mates, AddrSpace.LOCAL)
  told = shared.index(place + number(mates)).store(totals.index(held)).end(row_tile, *own_rows, me)
  total = of_row(shared.after(told), Ops.ADD)
  column_tile = b.unrolled(column_tiles)
  column = (warp_column * column_tiles + column_tile) * core.rows + core.at(C, "n", physical)
  ends = [part.out(query(row), UOp.const(W + k)).store(x).end(row_tile, *own_rows, me)
          for k, x in enumerate((tops.index(held), total))]
  ends.append(part.out(query(row), column).store(sums.index(number_of(column_tile))).end(
    row_tile, column_tile, *own_rows, *own_columns, me))
  name = f"attention_{'_'.join(str(size(r)) for r in part.heads)}_{rows}_{D}_{W}_{int(n.vmax)}"
  sink = UOp.sink(*[e.end(*grid.values(), turn, tile) for e in ends], arg=KernelInfo(name, applied_opts=opts))
  return sink.substitute(grid, walk=True)
