"""
Tiled matmul on a GPU: thread blocks dequantise a tile of weights into shared memory, and tensor cores multiply it.

Why: with one thread per token and row, a prefill GEMM unpacks the weights again for each token and multiplies them one
  by one. Stock tinygrad's tensor-core rule needs two loads of halves, one reduction loop and a constant token count.
How: the action BLOCK (ir/actions.py) sets the tokens, rows and weights of a row for a block's step, and the tokens and
  rows of each warp. Each thread of the block unpacks some weights, and reads x in runs. It converts both to halves and
  stores them in shared memory. After a barrier, each warp multiplies its part by fragments (fragments.py) and keeps its
  sums in registers. The order of k in a tile is free as long as both operands share it: a thread's next elements are
  contiguous. If tokens or rows are no multiple of the block's, the last one is computed again and not stored.
Rewrite:
  for token, row: sum k: q(w[row, k]) * x[token, k]
  --> for a block of tokens and rows: for a tile of k: shared = half(q(w)), half(x); barrier;
      each warp: sums += mma(its part of shared)
Numbers: products of a layer of a 1B shape in Q4_K with 512 tokens, estimates for an H100 in us: q, k, v 4,425 -> 80,
  output 3,042 -> 52, gate and up 24,419 -> 301, down 50,150 -> 197. On sm_80 and sm_90, with half x, kernels for Q4_K,
  Q6_K, Q8_0, F16 and MXFP4 have 96 to 128 registers. Their loops have 64 tensor instructions among 142 (F16) to 521
  (MXFP4), so unpacking limits them. Errors with halves are up to 1.4e-3 of the results' root mean square. On an H100 a
  prompt of 480 tokens (1B, Q4_K_M) takes 14.5 ms, 83 times as long without it.
Upstream: not sent; there, its TC action could take the sizes of a block and of a warp as amounts.
"""
from __future__ import annotations
import functools, itertools, operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from tinygrad.codegen.opt import Opt, check
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.dtype import AddrSpace, dtypes
from tinygrad.helpers import ceildiv, prod
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import AxisType, Ops, UOp
from tinygrad_llm.patches import hooks
from tinygrad_llm.patches.ir.actions import ScheduleOps
from tinygrad_llm.patches.ir.builder import Slot, next_loop
from tinygrad_llm.patches.ir.indices import apart, divisor, size, strides
from tinygrad_llm.patches.ir.matmuls import Matmul, Product, divided, find, loads
from tinygrad_llm.patches.ir.sums import added
from tinygrad_llm.patches.ir.targets import WARP
from tinygrad_llm.patches.tiles import fragments
from tinygrad_llm.patches.tiles.fragments import A, B, BYTES, C, Core, Layout

SEAMS = {
  "tinygrad.codegen.opt.postrange:Scheduler": "35256edac7fb",
  "tinygrad.codegen:full_rewrite_to_sink": "a1124f83af03",
  "tinygrad.codegen:expander2": "da05356de025",
}

MOST = 65504.  # the largest half

@dataclass(frozen=True)
class Block:
  """Sizes of a thread block's step: tokens, rows, weights of a row. warp_tokens, warp_rows: the part of each warp."""
  tokens: int
  rows: int
  weights: int
  warp_tokens: int
  warp_rows: int

  @property
  def threads(self) -> int: return self.tokens // self.warp_tokens * (self.rows // self.warp_rows) * WARP

  @property
  def arg(self) -> tuple[int, ...]: return self.tokens, self.rows, self.weights, self.warp_tokens, self.warp_rows

def available(ren: Renderer) -> bool:
  """Whether a device has tensor cores for halves."""
  return (core := fragments.core(ren)) is not None and core.tc is not None

def core_of(m: Matmul, ren: Renderer) -> Core|None:
  """Returns the core for a matmul. Float32 weights are not converted to halves: a router would choose differently."""
  core = fragments.core(ren)
  floats = any(p.loads[0].dtype is dtypes.float32 for p in m.products)
  return fragments.without() if core is not None and floats else core

def apply(k: Scheduler, opt: Opt) -> bool:
  check(isinstance(opt.arg, tuple) and len(opt.arg) == 5, "BLOCK is of five numbers")
  assert isinstance(opt.arg, tuple)
  made = find(ast := divided(k.ast))
  check(not isinstance(made, str), str(made))
  assert isinstance(made, Matmul)
  check((core := core_of(made, k.ren)) is not None, "no shared memory")
  assert core is not None
  check(fits(made, Block(*opt.arg), core, k.ren), "no block of that size")
  k.ast = ast
  return True

# *** the weights that a thread unpacks together, and a block in a step

@dataclass(frozen=True)
class Digit:
  """A part of a loop: `size` steps that are `step` of the loop's steps apart."""
  loop: UOp
  step: int
  size: int

@dataclass(frozen=True)
class Turn:
  """Digits of a block's step: `unit`, which a thread unpacks together, and `others`. rest: digits of further steps."""
  unit: tuple[Digit, ...]
  others: tuple[Digit, ...]
  rest: tuple[Digit, ...]

def _moves(u: UOp, loops: Sequence[UOp]) -> dict[UOp, int]:
  """Returns the loops of a sum that a load follows with a constant stride, ascending."""
  found = {r: n for r, n in strides(u.src[1].get_idx()).items() if r in loops}
  return dict(sorted(found.items(), key=lambda item: item[1]))

def _turn(p: Product, loops: Sequence[UOp], weights: int) -> Turn|None:
  """Returns a step of `weights` weights of a row. None if the loops cannot be cut so."""
  main = p.loads[0]
  order = _moves(main, loops)
  if set(order) != {r for r in loops if r in main.ranges}: return None
  left, unit, others = {r: size(r) for r in loops}, list[Digit](), list[Digit]()
  def take(r: UOp, n: int, found: list[Digit]) -> None:
    found.append(Digit(r, size(r) // left[r], n))
    left[r] //= n
  for r in loops:  # fields of a word
    if r not in order: take(r, left[r], unit)
  together = 1
  for r, stride in order.items():
    fields = prod(d.size for d in unit)
    most = min(BYTES // main.dtype.itemsize // together, weights // fields)
    if stride != together or most < 1 or (n := divisor(left[r], most)) == 1: break
    while weights % (fields * n): n = divisor(left[r], n - 1)
    take(r, n, unit)
    together *= n
    if left[r] > 1: break
  if weights % (found := prod(d.size for d in unit)): return None
  for r in order:
    n = next(n for n in range(min(left[r], weights // found), 0, -1) if left[r] % n == 0 and weights // found % n == 0)
    if n > 1: take(r, n, others)
    found *= n
  if found != weights: return None
  return Turn(tuple(unit), tuple(others), tuple(Digit(r, size(r) // n, n) for r, n in left.items() if n > 1))

def fits(m: Matmul, block: Block, core: Core, ren: Renderer) -> bool:
  """Whether a block consists of whole warps and instructions, all sums have the same steps, and its tiles fit."""
  if any(n < 1 for n in block.arg) or block.tokens % block.warp_tokens or block.rows % block.warp_rows: return False
  if block.warp_tokens % core.tokens or block.warp_rows % core.rows or block.weights % core.k: return False
  if block.threads > prod(ren.local_max or (1024,)) or block.threads > 1024: return False
  turns = {_turn(p, m.loops, block.weights) for p in m.products}
  if len(turns) != 1 or None in turns: return False
  xs = len({p.x for p in m.products})
  nbytes = (block.tokens * xs + block.rows * len(m.products)) * block.weights * core.dtype.itemsize
  if block.warp_tokens * block.warp_rows == core.tokens * core.rows: return False  # tinygrad needs several
  return nbytes <= ren.shared_max

# *** the kernel

def _at(digits: Iterable[tuple[UOp|int, int]]) -> UOp:
  return added([n * step for n, step in digits], UOp.const(0))

def _parts(flat: UOp, sizes: Sequence[int]) -> list[UOp]:
  """Returns the digits of a number; the first changes fastest."""
  counts = [*itertools.accumulate(sizes, operator.mul, initial=1)]
  return [flat // count % n for count, n in zip(counts, sizes)]

def _is_half(value: UOp) -> bool: return dtypes.half in (value.dtype, *(s.dtype for s in value.src[:1]))

class Tiles:
  """A kernel of thread blocks: its loops, and the arrays of its tiles in shared memory."""
  def __init__(self, sink: UOp, m: Matmul, block: Block, core: Core, device: str):
    self.m, self.block, self.core, self.device = m, block, core, device
    self.ids = itertools.count(next_loop(sink))
    self.slots = itertools.count(Slot.MMA_TILES)
    turn = _turn(m.products[0], m.loops, block.weights)
    assert turn is not None
    self.turn = turn
    self.lies = [Layout(core, of, lines, block.weights) for of, lines in ((A, block.tokens), (B, block.rows))]
    # the block's place: blocks that read the same weights follow each other
    row_blocks = self.loop(ceildiv(m.n_rows, block.rows), AxisType.GLOBAL)
    blocks = (m.n_tokens + (block.tokens - 1)) // block.tokens
    token_blocks = UOp.range(blocks, next(self.ids), AxisType.GLOBAL)
    self.first_token, self.first_row = token_blocks * block.tokens, row_blocks * block.rows
    self.me = self.loop(block.threads, AxisType.LOCAL)
    # a block that stores nothing multiplies nothing: its outermost loop has no step
    stored = functools.reduce(operator.or_, [end.src[0].src[0].src[1].get_valid() for end in sink.src])
    known = stored.op is Ops.CONST or {*m.tokens, *m.rows}.intersection(stored.ranges)
    sizes = [UOp.const(d.size) if i or known else stored.where(UOp.const(d.size), UOp.const(0))
             for i, d in enumerate(turn.rest)]
    self.steps = {d: UOp.range(n, next(self.ids), AxisType.REDUCE) for d, n in zip(turn.rest, sizes)}
    in_x = _moves(next((u for u in loads(m.products[0].x) if _moves(u, m.loops)), UOp.const(0)), m.loops)
    # k in a tile has the order of x in memory
    digits = sorted((*turn.unit, *turn.others), key=lambda d: in_x.get(d.loop, 0) * d.step)
    self.counts = dict(zip(digits, itertools.accumulate([d.size for d in digits], operator.mul, initial=1)))
    run = 1
    for d, count in self.counts.items():
      if in_x.get(d.loop, 0) * d.step != count: break
      run *= d.size
    self.width = next(n for n in (8, 4, 2, 1) if run % n == 0)

  def loop(self, n: int, kind: AxisType) -> UOp: return UOp.range(n, next(self.ids), kind)

  def token(self, t: UOp) -> UOp: return (self.first_token + t).minimum(self.m.n_tokens - 1)
  def row(self, r: UOp) -> UOp:
    row = self.first_row + r
    return row if self.m.n_rows % self.block.rows == 0 else row.minimum(self.m.n_rows - 1)

  def _k(self, at: dict[Digit, UOp]) -> dict[UOp, UOp]:
    """Returns the step of each of the sums' loops."""
    digits = {**self.steps, **at}
    return {r: _at((digits[d], d.step) for d in digits if d.loop is r) for r in self.m.loops}

  def _array(self, value: UOp, lies: Layout, line: UOp, k: UOp, loops: Sequence[UOp]) -> tuple[UOp, UOp]:
    array = UOp.placeholder((lies.lines * lies.k,), self.core.dtype, next(self.slots), AddrSpace.LOCAL)
    if value.op is Ops.CAST and value.src[0].dtype is self.core.dtype: value = value.src[0]
    return array, array.index(lies.written(line, k)).store(value.cast(self.core.dtype)).end(*loops, self.me)

  def _fill(self, lies: Layout, per: int, near: int, kind: AxisType) -> tuple[UOp, UOp, list[UOp]]:
    """
    Divides the writes of a tile among the threads. Returns a thread's part of a line's k, the line, and the loops.

    - per: parts of a line
    - near: parts of one line that neighbouring threads have before they go on to the next line
    - kind: kind of the loop over a thread's turns
    """
    groups = (lines := lies.lines // lies.together) * per
    turn = self.loop(ceildiv(groups, self.block.threads), kind)
    own = self.loop(lies.together, AxisType.UPCAST)
    group = turn * self.block.threads + self.me
    if groups % self.block.threads: group = group.minimum(groups - 1)
    part = group % near + group // (near * lines) * near
    return part, lies.line(group // near % lines, own), [turn, own]

  def of_x(self, x: UOp) -> tuple[UOp, UOp]:
    """Returns the array of a tile of x, and the stores that fill it."""
    lies, per = self.lies[A], self.block.weights // self.width
    # an x that is more than a load is computed in a loop, not unrolled: few values at a time
    loaded = x.op is Ops.INDEX or x.op is Ops.CAST and x.src[0].op is Ops.INDEX
    part, t, loops = self._fill(lies, per, max(1, (1 << len(lies.bits)) // self.width),
                                AxisType.UPCAST if loaded else AxisType.WEAK)
    i = self.loop(self.width, AxisType.UPCAST)
    k = part * self.width + i
    at = dict(zip(self.counts, _parts(k, [d.size for d in self.counts])))
    value = x.substitute({**apart(self.token(t), self.m.tokens), **self._k(at)})
    # values beyond a half's range are clamped to it: infinities could make NaN of a sum
    if self.core.dtype is dtypes.half and not _is_half(value): value = value.maximum(-MOST).minimum(MOST)
    return self._array(value, lies, t, k, [*loops, i])

  def of_weights(self, w: UOp) -> tuple[UOp, UOp]:
    """Returns the array of a tile of weights, and the stores that fill it."""
    lies, per = self.lies[B], prod(d.size for d in self.turn.others)
    part, row, loops = self._fill(lies, per, per, AxisType.UPCAST)
    at = dict(zip(self.turn.others, _parts(part, [d.size for d in self.turn.others])))
    at |= (own := {d: self.loop(d.size, AxisType.UPCAST) for d in self.turn.unit})
    k = _at((n, self.counts[d]) for d, n in at.items())
    value = w.substitute({**apart(self.row(row), self.m.rows), **self._k(at)})
    return self._array(value, lies, row, k, [*loops, *own.values()])

  def kernel(self, sink: UOp) -> UOp:
    core, block, m = self.core, self.block, self.m
    xs = {x: self.of_x(x) for x in dict.fromkeys(p.x for p in m.products)}
    ws = {p.w: self.of_weights(p.w) for p in m.products}
    filled = [end for _, end in (*xs.values(), *ws.values())]
    lane, warp = self.me % WARP, self.me // WARP
    across = block.rows // block.warp_rows
    physical = fragments.physical(core, lane, lambda n: self.loop(n, AxisType.UPCAST))
    tiles = [of * (n // size) + self.loop(n // size, AxisType.UPCAST) for of, n, size in (
      (warp // across, block.warp_tokens, core.tokens), (warp % across, block.warp_rows, core.rows))]
    def operands(p: Product, k: UOp|int) -> list[UOp]:
      return [array.after(*filled).index(lies.read(tile, k, physical))
              for (array, _), lies, tile in zip((xs[p.x], ws[p.w]), self.lies, tiles)]
    # all sums share their loops: otherwise each sum would fill the tiles in loops of its own
    over, new = fragments.loops(core, block.weights, self.lies[A].steps, self.loop), dict[UOp, UOp]()
    for p in m.products:
      total = fragments.product(core, self.device, block.weights, over, functools.partial(operands, p), physical)
      new[p.red] = total.reduce(*self.steps.values(), *over, arg=Ops.ADD).cast(p.red.dtype)
    t, r = (tile * size + core.at(C, dim, physical) for tile, size, dim in zip(tiles, (core.tokens, core.rows), "mn"))
    token, row = self.first_token + t, self.first_row + r
    stored = dict[UOp, UOp]()
    for end in sink.src:
      at = end.src[0].src[0]
      valid = functools.reduce(operator.and_, [
        *([token < m.n_tokens] if m.n_tokens.divides(block.tokens) is None else []),
        *([row < m.n_rows] if m.n_rows % block.rows else [])], at.src[1].get_valid())
      stored[at] = at.replace(src=(at.src[0], at.src[1].get_idx().valid(valid)))
    loops = {**apart(self.token(t), m.tokens), **apart(self.row(r), m.rows)}
    return sink.substitute(stored).substitute({**new, **loops}, walk=True)

def run(sink: UOp, ren: Renderer) -> UOp:
  opt = next((opt for opt in sink.arg.applied_opts if opt.op is ScheduleOps.BLOCK), None)
  if opt is None or isinstance(m := find(sink), str) or (core := core_of(m, ren)) is None: return sink
  return Tiles(sink, m, Block(*opt.arg), core, ren.target.device).kernel(sink)

# *** the epilogue's loads come after the sums: else they would take registers in all steps of the sums

def wait(sink: UOp, ren: Renderer) -> UOp:
  if all(opt.op is not ScheduleOps.BLOCK for opt in sink.arg.applied_opts): return sink
  ops = sink.toposort()
  ends = [u for u in ops if u.op is Ops.END and any(r.arg[-1] is AxisType.REDUCE for r in u.ended_ranges)]
  inside = {u for end in ends for u in end.toposort()}
  late = {u.src[0] for u in ops if u.op is Ops.LOAD and u.src[0].src[0].op is Ops.PARAM and u not in inside}
  last = [end for end in ends if not any(end in other.backward_slice for other in ends)]
  return sink.substitute({at: at.replace(src=(at.src[0].after(*last), *at.src[1:])) for at in late}, walk=True)

def install() -> None:
  hooks.actions[ScheduleOps.BLOCK] = apply
  hooks.after_opts.append(run)
  hooks.before_linearize.append(wait)
