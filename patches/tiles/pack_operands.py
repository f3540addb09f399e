"""
Operand packing of GEMM: tiles of a quantised matrix are unpacked to bytes once and reused for all tokens of a prompt.

Why: with a token loop around it, a block of weights is unpacked again for every few tokens.
How: the action TILES (ir/actions.py) says how many tiles of 16 rows are unpacked together. Their weights go, as bytes,
  into an array that a core's cache holds. It has four neighbours of each of 16 rows, then the next four, in the order
  of multiplication, so that one loop counts through it. Scales go into arrays of floats. So do the numbers that are
  subtracted from groups of weights (minimums), which multiply activation sums. Activation sums are stored beside x
  (ir/byte_groups.py). If the same number is subtracted from all weights, a group's products start from its activation
  sum. Without VNNI, products are of 7-bit weights, or of signed bytes.
  Few tokens use each weight once. If it is not unpacked in registers then (schedule/gemv_cpu.py), AT_ONCE weights of a
  row are unpacked at a time: their products hide the reads from memory.
Rewrite:
  for token: for k: q(w[row, k]) * x[token, k]
  --> for k: b[k] = q(w[row, k]); for token: for k: b[k] * x[token, k], b in a core's cache
Numbers: 512 tokens by 8192 x 2048, 10^9 products a second, 2 threads, before and with register_tiles.py: Q4_K
  82 -> 285, Q6_K 60 -> 240 (Intel with AVX-512, medians). One thread, ms, for three changes together: Q6_K 34.0 ->
  25.5, 2048 x 8192 38.8 -> 26.2, Q4_K 31.0 -> 28.0, Q8_0 28.6 -> 24.0; 256 tokens with AVX2, Q4_K 110 -> 37, Q6_K 120
  -> 40, Q8_0 109 -> 48 (the same). Before these changes, activation sums were added up again for each block of tokens,
  each part of a sum had a loop, and VNNI was assembler. Groups of x of 16 and of 32, 256 tokens by 8192 x 2048, 10^9
  products a second, 2 threads: Q4_K 245 -> 291, Q8_0 268 -> 316, Q6_K 264 -> 281 (Zen 4).
Upstream: not sent; it needs local arrays that outlive a loop's step, and loops over lanes.
"""
from __future__ import annotations
import functools, itertools, operator
from collections.abc import Iterable, Sequence
from tinygrad.codegen.opt import Opt, check
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.dtype import AddrSpace, dtypes
from tinygrad.helpers import ceildiv
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import AxisType, Ops, UOp
from tinygrad_llm.patches import hooks
from tinygrad_llm.patches.ir import byte_groups
from tinygrad_llm.patches.ir.actions import ScheduleOps, check_amount, chosen
from tinygrad_llm.patches.ir.builder import Slot, is_lanes, lanes, next_loop
from tinygrad_llm.patches.ir.byte_groups import SIGN, Group
from tinygrad_llm.patches.ir.indices import (
  apart, choosing, divisor, evaluate, flat, size, steps, strides, while_true)
from tinygrad_llm.patches.ir.packed_bytes import BYTES, with_offset
from tinygrad_llm.patches.ir.sums import added, frees_a_factor, product
from tinygrad_llm.patches.ir.targets import LANES, adds_pairs, has_vectors, multiplies_bytes
from tinygrad_llm.patches.ir.value_bounds import bounds
from tinygrad_llm.patches.isa.dot_int8_cpu import is_int8, words
from tinygrad_llm.patches.vector.vectorizer import Vectorizer, vector_rules

SEAMS = {
  "tinygrad.codegen.opt.postrange:Scheduler": "35256edac7fb",
  "tinygrad.codegen:full_rewrite_to_sink": "a1124f83af03",
}

UNROLLED = 32   # most unrolled steps of the sum over unpacked weights: a group of x
AT_ONCE = 256   # weights of a row that are unpacked together if few tokens use them
MOST = 64       # most tiles

def apply(k: Scheduler, opt: Opt) -> bool:
  check(has_vectors(k.ren), "only rows that are lanes are unpacked together")
  check_amount(k, opt, 1, MOST)
  return True

def _in_turn(loops: Iterable[UOp]) -> list[UOp]: return sorted(loops, key=lambda r: r.arg)

# *** the factors of a product of x and a weight

class Byte:
  """
  An int8 of x that is one byte of a word. ValueError if x is none.

  amount: the word's shift in bits. steps: for each of the four shifts, the steps of its loops. strides: strides of the
  loops in the loads of x.
  """
  def __init__(self, x: UOp):
    ops = x.toposort()
    if (amount := next((u.src[1] for u in ops if u.op is Ops.SHR), None)) is None: raise ValueError
    loops = _in_turn(amount.ranges)
    if steps(loops) > BYTES: raise ValueError
    many = [dict(zip(loops, at)) for at in itertools.product(*[range(size(r)) for r in loops])]
    self.amount, self.steps = amount, {int(evaluate(amount, {**at})): at for at in many}
    if self.steps.keys() != {8 * i for i in range(BYTES)}: raise ValueError
    self.strides = {r: stride for u in ops if u.op is Ops.INDEX and u.src[0].op is Ops.PARAM
                    for r, stride in strides(u.src[1].get_idx()).items()}

class PackedProduct:
  """
  A product of x and a weight. ValueError if the factors are something else.

  - xs: the factors that do not depend on the row
  - whole: the weight's integer, None if it is 1
  - offset: the constant that is added to `whole`
  - scale: the product of the other factors, None if there are none
  - byte: the int8 of x
  """
  def __init__(self, factors: Sequence[UOp], lane: UOp):
    self.xs = tuple(f for f in factors if lane not in f.ranges and f.op is not Ops.CONST)
    rest = [f for f in factors if f not in self.xs]
    self.byte = Byte(next((f for f in self.xs if f.op is Ops.CAST and is_int8(f.src[0])), UOp.const(0)))
    wholes = [f for f in rest if with_offset(f)[0] is not None and set(self.byte.amount.ranges) <= set(f.ranges)]
    found: tuple[UOp|None, int] = with_offset(wholes[0]) if wholes else (None, 0)
    self.whole, self.offset = found
    scales = [f for f in rest if f not in wholes[:1]]
    if not scales and not wholes or any(set(self.byte.amount.ranges) & set(f.ranges) for f in scales): raise ValueError
    self.dtype = rest[0].dtype
    self.scale = product(scales) if scales else None

# *** the arrays

class Packing:
  """
  The arrays of one kernel.

  - lane: its loop over 16 rows
  - tile: its loop over tiles that are unpacked together, None if there is none
  - block: its loop over tokens whose sums are computed together, None if there is none
  - ids: numbers for new loops
  - again: the condition under which the (expert) matrix changed since the step before; None if there is one matrix
  - parts: for a loop of a sum, the loops over parts and within a part. An array then holds a part, so that memory is
    read while other parts are multiplied. None: an array holds a whole sum.
  - vnni: whether weights may have all 8 bits
  - pairs: whether products of weights of fewer bits are added as int16
  """
  def __init__(self, lane: UOp, tile: UOp|None, block: UOp|None, ids: Iterable[int], again: UOp|None = None,
               parts: dict[UOp, tuple[UOp, UOp]]|None = None, vnni: bool = False, pairs: bool = False):
    self.lane, self.tile, self.block, self.ids, self.again, self.parts = lane, tile, block, iter(ids), again, parts
    self.vnni, self.pairs = vnni, pairs
    self.slots, self.made = itertools.count(Slot.PACK_OPERANDS), dict[UOp, UOp]()

  def _loop(self, n: int, kind: AxisType) -> UOp: return UOp.range(n, next(self.ids), kind)

  def _array(self, value: UOp, loops: list[UOp], by_row: bool) -> UOp:
    """
    Stores a value for each step of some loops in an array beforehand. Returns the load from it.

    by_row: the array is filled in lanes of rows, and unrolled loops stay unrolled. ValueError if the value depends on
    other unrolled loops.
    """
    if value in self.made: return self.made[value]
    if any(r.arg[-1] is AxisType.UPCAST and r not in loops for r in value.ranges): raise ValueError
    # with several matrices, an array is filled tile by tile: memory is read while other tiles are multiplied
    here = [self.tile] if by_row and self.again is not None and self.tile in loops else []
    fresh = {r: self._loop(size(r), AxisType.UPCAST if by_row and r.arg[-1] is AxisType.UNROLL else AxisType.WEAK)
             for r in loops if r not in here}
    if by_row:
      loops = [*loops, self.lane]
      fresh[self.lane] = lanes(LANES, next(self.ids), AxisType.WEAK)
    at, rolled = dict(fresh), [r for r, new in fresh.items() if new.arg[-1] is AxisType.WEAK and r is not self.lane]
    if here and self.again is not None and rolled: at[rolled[0]] = while_true(self.again, fresh[rolled[0]])
    array = UOp.placeholder((steps(loops),), value.dtype, next(self.slots), AddrSpace.REG)
    filled = array.index(flat(loops, [at.get(r, r) for r in loops])).store(value.substitute(at, walk=True))
    self.made[value] = array.after(filled.end(*fresh.values())).index(flat(loops))
    return self.made[value]

  def in_parts(self, red: UOp, order: list[UOp]) -> tuple[UOp, list[UOp], UOp|None]:
    """
    Splits the loop of largest stride, so that only a part of the sum is unpacked at once.

    Returns the sum by the split loop, the loops within a part, and the loop over parts (None: not split). order: the
    sum's loops, by stride in x.
    """
    rolled = [r for r in order if r.arg[-1] is AxisType.REDUCE]
    if self.parts is None or not rolled: return red, order, None
    if (r := rolled[-1]) not in self.parts:
      n = divisor(size(r), max(1, AT_ONCE // steps(other for other in order if other is not r)))
      self.parts[r] = (self._loop(size(r) // n, r.arg[-1]), self._loop(n, r.arg[-1]))
    part, inner = self.parts[r]
    return (red.substitute({r: part * size(inner) + inner}), [inner if other is r else other for other in order], part)

  def _by_row(self, value: UOp, loops: Iterable[UOp]) -> UOp:
    own = [r for r in reversed(list(loops)) if r in value.ranges]
    return self._array(value, [self.tile, *own] if self.tile is not None else own, True)

  def one(self, run: Sequence[UOp]) -> dict[UOp, UOp]:
    """Merges loops that count on from each other, ascending. Returns the step of each by the merged loop."""
    if len(run) == 1: return {run[0]: run[0].replace(arg=(*run[0].arg[:-1], AxisType.REDUCE))}
    return apart(self._loop(steps(run), AxisType.REDUCE), run[::-1])

  def scales(self, scale: UOp, loops: Iterable[UOp]) -> UOp: return self._by_row(scale, loops)

  def weights(self, whole: UOp, loops: Iterable[UOp], byte: Byte) -> UOp:
    """Stores the weights' integers as bytes (their low 8 bits). The four that meet a word of x are a word, too."""
    four = [(whole.substitute({r: r.const_like(n) for r, n in at.items()}, walk=True) & 255).cast(dtypes.uint32) << by
            for by, at in byte.steps.items()]
    word = functools.reduce(operator.or_, four)
    return (self._by_row(word, [r for r in loops if r not in byte.amount.ranges]) >> byte.amount) & 255

  def dots(self, p: PackedProduct, group: Group, loops: Sequence[UOp]) -> UOp:
    """Returns a group's integer dot product. An offset that all weights have is made up for by activation sums."""
    assert p.whole is not None
    whole, added = p.whole, (group.total >> SIGN.bit_length() - 1) * -p.offset if p.offset else None
    if self.vnni and p.offset: whole, added = whole + (p.offset + SIGN), group.total
    least, most = bounds(whole)
    if not self.vnni and (least < 0 or most >= SIGN): whole, added = whole + p.offset, None
    weights = self.weights(whole, loops, p.byte)
    if added is None and p.offset: weights = weights.cast(dtypes.uint8).bitcast(dtypes.int8)
    elif not self.vnni:  # tells later passes how many bits they have
      weights = weights & ((1 << most.bit_length()) - 1 if self.pairs else SIGN - 1)
    total = (weights.cast(dtypes.int) * group.byte.cast(dtypes.int)).reduce(*group.loops, arg=Ops.ADD)
    return total if added is None else total + added

  def sums(self, group: Group, over: Iterable[UOp], keep: list[UOp]) -> UOp:
    """Stores sums of groups over the loops `over` for each step of `keep`, ascending, for all tokens of a block."""
    own = {r: r.replace(arg=(next(self.ids), *r.arg[1:])) for r in over if r not in group.loops}
    total = group.summed().substitute(own, walk=True)
    if own: total = total.reduce(*own.values(), arg=Ops.ADD)
    return self._array(total, [*([] if self.block is None else [self.block]), *reversed(keep)], False)

def _products(red: UOp, loops: Iterable[UOp], lane: UOp) -> list[PackedProduct]:
  return [PackedProduct(factors, lane) for factors in frees_a_factor(red.src[0], frozenset(loops))]

def _group(xs: Sequence[UOp], over: Iterable[UOp]) -> Group:
  if (found := byte_groups.find(xs, over)) is None: raise ValueError
  return found

def _rolled(loops: Sequence[UOp], byte: Byte, packing: Packing, inside: int) -> dict[UOp, UOp]:
  """
  Returns steps for loops that need not stay unrolled, as the unpacked weights are in the order of x.

  Loops that count on from each other become one loop. inside: steps that stay unrolled.
  """
  found, run = dict[UOp, UOp](), list[UOp]()
  for i, r in enumerate(loops):
    if steps(loops[:i]) < inside: continue
    if run and byte.strides.get(r) != byte.strides[run[-1]] * size(run[-1]):
      found |= packing.one(run)
      run = []
    run.append(r)
  return found | packing.one(run) if run else found

def _packed(red: UOp, packing: Packing) -> UOp:
  """Rewrites a sum of products to read unpacked weights from arrays. ValueError if it is something else."""
  products = _products(red, red.src[1:], packing.lane)
  red, loops, part = packing.in_parts(red, sorted(red.src[1:], key=lambda r: products[0].byte.strides.get(r, 0)))
  if part is not None: products = _products(red, loops, packing.lane)
  multiplied, subtracted, inside = list[UOp](), dict[tuple[UOp, ...], list[UOp]](), set[frozenset[UOp]]()
  for p in products:
    if p.whole is None:
      assert p.scale is not None
      subtracted.setdefault(p.xs, []).append(p.scale)
      continue
    group = _group(p.xs, loops if p.scale is None else [r for r in loops if r not in p.scale.ranges])
    inside.add(frozenset(group.loops))
    of_rows = [] if p.scale is None else [packing.scales(p.scale, loops)]
    multiplied.append(product([*of_rows, group.scaled(), packing.dots(p, group, loops).cast(p.dtype)]))
  if len(inside) != 1 or steps(group_loops := next(iter(inside))) > UNROLLED: raise ValueError
  rolled = _rolled(loops, products[0].byte, packing, steps(group_loops))
  outer = [r for r in loops if r not in group_loops]
  over = [*dict.fromkeys(new for r in outer for new in (rolled[r].ranges if r in rolled else [r]))]
  found = [added(multiplied).substitute(rolled, walk=True).reduce(*over, arg=Ops.ADD)]
  for xs, scales in subtracted.items():
    scale = added(scales)
    keep = [r for r in loops if r in scale.ranges]
    outside = [r for r in loops if r not in keep]
    of_x = packing.sums(_group(xs, outside), outside, keep if part is None else [*keep, part])
    term = packing.scales(scale, loops) * of_x
    if keep: term = term.substitute(again := packing.one(keep)).reduce(*again[keep[0]].ranges, arg=Ops.ADD)
    found.append(term)
  return added(found) if part is None else added(found).reduce(part, arg=Ops.ADD)

def _sums(sink: UOp) -> list[UOp]:
  return [u for u in sink.toposort() if u.op is Ops.REDUCE and u.arg == (Ops.ADD, 0) and dtypes.is_float(u.dtype)]

def _choices(sink: UOp, lane: UOp) -> dict[UOp, list[UOp]]:
  """Returns the output loops that choose one of several matrices, such as experts, by numbers that are loaded."""
  return {r: us for u in sink.toposort() if u.op is Ops.INDEX and lane in u.ranges and u.src[0].op is Ops.PARAM
          for r, us in choosing(u.src[1].get_idx()).items()}

def _changed(choices: dict[UOp, list[UOp]], stored: UOp) -> UOp|None:
  """
  Returns the condition under which a step chooses another matrix than the step before. None unless one loop chooses.

  stored: whether a step is computed at all.
  """
  if len(choices) != 1: return None
  (r, us), = choices.items()
  before = {r: (r - 1).maximum(0)}
  others = [u.alu(Ops.CMPNE, u.substitute(before, walk=True)) for u in us]
  return functools.reduce(operator.or_, [*others, stored.substitute(before, walk=True).logical_not()], r.eq(0))

def run(sink: UOp, ren: Renderer) -> UOp:
  if not has_vectors(ren): return sink
  if not (count := chosen(sink.arg.applied_opts, ScheduleOps.TILES, 0)): return sink
  ops = sink.toposort()
  ranges = [u for u in ops if u.op is Ops.RANGE]
  if len(found := [r for r in ranges if is_lanes(r)]) != 1: return sink
  lane, ids, again = found[0], itertools.count(next_loop(sink)), None
  matrix = {r for red in _sums(sink) for u in red.toposort() if u.op is Ops.INDEX and lane in u.ranges
            for r in u.ranges}
  outputs = [r for u in ops if u.op is Ops.END for r in u.src[1:] if r is not lane]
  block = next((r for r in outputs if r.arg[-1] is AxisType.UPCAST and r not in matrix), None)
  matrices, tile, split = _choices(sink, lane), None, sink
  outer = [r for r in outputs if r.arg[-1] is AxisType.WEAK and r in matrix and r not in matrices]
  if len(outer) == 1 and (n := ceildiv(all_ := steps(outer), parts := ceildiv(all_, count))) > 1:
    # the nest of loops, the outermost first: parts of tiles that are unpacked together, tokens, tiles of a part
    turns = {r: r.replace(arg=(next(ids), *r.arg[1:])) for r in matrices}
    tile, inner = UOp.range(n, next(ids), AxisType.WEAK), lanes(LANES, next(ids), AxisType.WEAK)
    at = outer[0].replace(src=(outer[0].src[0].const_like(parts),)) * n + tile
    # if the number of tiles is no multiple, the last ones are computed more than once
    part = at if parts * n == all_ else at.minimum(all_ - 1)
    split, lane = sink.substitute({outer[0]: part, lane: inner, **turns}), inner
    stored = next(u.src[0].src[1].get_valid() for u in split.toposort() if u.op is Ops.STORE)
    again = _changed({turns[r]: [u.substitute(turns) for u in us] for r, us in matrices.items()}, stored)
  few = block is not None and tile is None and matrix.issuperset(r for r in outputs if r is not block) and all(
    r.src[0].op is Ops.CONST for r in matrices)
  packing = Packing(lane, tile, block, ids, again, {} if few else None, multiplies_bytes(ren), adds_pairs(ren))
  try: return split.substitute({red: _packed(red, packing) for red in _sums(split)})
  except ValueError: return sink

# *** in vectors

def word_of_bytes(v: Vectorizer, u: UOp) -> UOp|None:
  """Joins four 8-bit numbers into the bytes of a word, in all lanes."""
  if u.op is not Ops.OR or u.dtype is not dtypes.uint32: return None
  four: dict[int, UOp] = {}
  for term in u.split_uop(Ops.OR):
    amount = v.const(term.src[1]) if term.op is Ops.SHL else None
    four[amount[0] if amount else 0] = term.src[0] if amount else term
  if len(four) != BYTES or set(four) != {8 * i for i in range(BYTES)}: return None
  return None if (found := words(v, [four[8 * i] for i in range(BYTES)])) is None else found[0]

def install() -> None:
  hooks.actions[ScheduleOps.TILES] = apply
  hooks.after_opts.append(run)
  vector_rules.append(word_of_bytes)
