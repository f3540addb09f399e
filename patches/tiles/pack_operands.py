"""
Operand packing of GEMM: tiles of a packed matrix are unpacked once, and all tokens of a prompt are swept over them.

Why: with a loop over tokens around it, the weights of a block are unpacked again for each few of them.
How: the schedule says how many tiles of 16 rows are unpacked together (TILES of ir/actions.py). The bytes of their
  weights go into an array that a core's cache holds: of 16 rows four neighbours each, in the order in which they are
  multiplied, which one loop then counts through. Scales go into arrays of floats; so does what is subtracted from
  groups of weights, which multiplies sums of x. Those are stored beside x (ir/byte_groups.py): where the same is
  subtracted from all weights, they are what a group's products begin with. Without VNNI, products are of 7 bits, or of
  signed bytes. What few tokens use, once, and not in registers (schedule/gemv_cpu.py), is unpacked in parts of
  AT_ONCE weights of a row: their products hide what memory takes.
Rewrite:
  for token: for k: q(w[row, k]) * x[token, k]
  --> for k: b[k] = q(w[row, k]); for token: for k: b[k] * x[token, k], b in a core's cache
Numbers: 512 tokens by 8192 x 2048, 10^9 products a second, 2 threads, before and with register_tiles.py: Q4_K
  82 -> 285, Q6_K 60 -> 240 (Intel with AVX-512, medians). One thread, ms, with sums of x added up again for each block
  of tokens, a loop for each part of a sum, and VNNI as assembler, and without: Q6_K 34.0 -> 25.5, 2048 x 8192 38.8 ->
  26.2, Q4_K 31.0 -> 28.0, Q8_0 28.6 -> 24.0; 256 tokens with AVX2, Q4_K 110 -> 37, Q6_K 120 -> 40, Q8_0 109 -> 48 (the
  same). Groups of x of 16 and of 32, 256 tokens by 8192 x 2048, 10^9 products a second, 2 threads: Q4_K 245 -> 291,
  Q8_0 268 -> 316, Q6_K 264 -> 281 (Zen 4).
Upstream: not sent.
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
from tinygrad_llm.patches.ir.targets import LANES, has_vectors, multiplies_bytes
from tinygrad_llm.patches.isa.dot_int8_cpu import is_int8, words
from tinygrad_llm.patches.vector.vectorizer import Vectorizer, vector_rules

SEAMS = {
  "tinygrad.codegen.opt.postrange:Scheduler": "35256edac7fb",
  "tinygrad.codegen:full_rewrite_to_sink": "a1124f83af03",
}

UNROLLED = 32   # steps of the sum over what is unpacked, at most: a group of x
AT_ONCE = 256   # weights of a row that are unpacked together, where few tokens use them
MOST = 64       # tiles

def apply(k: Scheduler, opt: Opt) -> bool:
  check(has_vectors(k.ren), "only rows that are lanes are unpacked together")
  check_amount(k, opt, 1, MOST)
  return True

def _in_turn(loops: Iterable[UOp]) -> list[UOp]: return sorted(loops, key=lambda r: r.arg)

# *** the factors of a product of x and a weight

class Byte:
  """
  An int8 of x that is a byte of a word. amount: by how many bits the word is shifted; steps: those of its loops for
  each of the four; strides: of the loops in what is read of x. ValueError if it is none.
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
  x times a weight. xs: the factors that rows do not have; whole: the weight's whole number, None where it is 1; offset:
  what is added to it; scale: the other factors; byte: of x. ValueError if it is something else.
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
  The arrays of one kernel. lane: its loop over 16 rows; tile: that over tiles which are unpacked together; block: that
  over tokens whose sums are computed together; None: there is no such loop. again: whether it is another matrix than
  in the step before, of several that are chosen from; None: there is one. parts: of loops of sums, those over parts,
  and those within: arrays are of a part, so that memory is read while others are multiplied; None: of whole sums.
  vnni: whether weights may have all 8 bits.
  """
  def __init__(self, lane: UOp, tile: UOp|None, block: UOp|None, ids: Iterable[int], again: UOp|None = None,
               parts: dict[UOp, tuple[UOp, UOp]]|None = None, vnni: bool = False):
    self.lane, self.tile, self.block, self.ids, self.again, self.parts = lane, tile, block, iter(ids), again, parts
    self.vnni, self.slots, self.made = vnni, itertools.count(Slot.PACK_OPERANDS), dict[UOp, UOp]()

  def _loop(self, n: int, kind: AxisType) -> UOp: return UOp.range(n, next(self.ids), kind)

  def _array(self, value: UOp, loops: list[UOp], by_row: bool) -> UOp:
    """
    A value for each step of some loops, computed before: by row, in lanes, where these are unrolled as they were.

    ValueError if it differs in what is unrolled around it.
    """
    if value in self.made: return self.made[value]
    if any(r.arg[-1] is AxisType.UPCAST and r not in loops for r in value.ranges): raise ValueError
    # of one matrix of several: with each tile, so that memory is read while others are multiplied
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
    """A sum as one within a part, its loops, and the loop over parts. order: its loops, ascending."""
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
    """Loops that count on, ascending, as steps of one."""
    if len(run) == 1: return {run[0]: run[0].replace(arg=(*run[0].arg[:-1], AxisType.REDUCE))}
    return apart(self._loop(steps(run), AxisType.REDUCE), run[::-1])

  def scales(self, scale: UOp, loops: Iterable[UOp]) -> UOp: return self._by_row(scale, loops)

  def weights(self, whole: UOp, loops: Iterable[UOp], byte: Byte) -> UOp:
    """Whole numbers, of which the low 8 bits are kept: those that a word of x is multiplied by are a word, too."""
    four = [(whole.substitute({r: r.const_like(n) for r, n in at.items()}, walk=True) & 255).cast(dtypes.uint32) << by
            for by, at in byte.steps.items()]
    word = functools.reduce(operator.or_, four)
    return (self._by_row(word, [r for r in loops if r not in byte.amount.ranges]) >> byte.amount) & 255

  def dots(self, p: PackedProduct, group: Group, loops: Sequence[UOp]) -> UOp:
    """A group's products as integers. Where something is added to all weights, sums of x make up for it."""
    assert p.whole is not None
    whole, added = p.whole, (group.total >> SIGN.bit_length() - 1) * -p.offset if p.offset else None
    if self.vnni and p.offset: whole, added = whole + (p.offset + SIGN), group.total
    if not self.vnni and whole.vmax >= SIGN: whole, added = whole + p.offset, None
    weights = self.weights(whole, loops, p.byte)
    if added is None and p.offset: weights = weights.cast(dtypes.uint8).bitcast(dtypes.int8)
    elif not self.vnni: weights = weights & (SIGN - 1)  # which says how many bits they have
    total = (weights.cast(dtypes.int) * group.byte.cast(dtypes.int)).reduce(*group.loops, arg=Ops.ADD)
    return total if added is None else total + added

  def sums(self, group: Group, over: Iterable[UOp], keep: list[UOp]) -> UOp:
    """Sums of groups over some loops for each step of others, ascending, of all tokens of a block."""
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
  The loops that need not be unrolled any more, as what was unpacked is in the order of x: those that count on are one.
  inside: steps that stay.
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
  """A sum over products, with arrays instead of what is unpacked. ValueError if it is something else."""
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
  """The output loops that choose one of several matrices, by numbers that are loaded."""
  return {r: us for u in sink.toposort() if u.op is Ops.INDEX and lane in u.ranges and u.src[0].op is Ops.PARAM
          for r, us in choosing(u.src[1].get_idx()).items()}

def _changed(choices: dict[UOp, list[UOp]], stored: UOp) -> UOp|None:
  """Whether another one is chosen than in the step before. stored: whether a step is computed at all."""
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
    # inside of the loop over tokens, which is inside of the one over all that is unpacked
    turns = {r: r.replace(arg=(next(ids), *r.arg[1:])) for r in matrices}
    tile, inner = UOp.range(n, next(ids), AxisType.WEAK), lanes(LANES, next(ids), AxisType.WEAK)
    at = outer[0].replace(src=(outer[0].src[0].const_like(parts),)) * n + tile
    # of a number that is no multiple, the last are computed more than once
    part = at if parts * n == all_ else at.minimum(all_ - 1)
    split, lane = sink.substitute({outer[0]: part, lane: inner, **turns}), inner
    stored = next(u.src[0].src[1].get_valid() for u in split.toposort() if u.op is Ops.STORE)
    again = _changed({turns[r]: [u.substitute(turns) for u in us] for r, us in matrices.items()}, stored)
  few = block is not None and tile is None and not matrices and matrix.issuperset(
    r for r in outputs if r is not block)
  packing = Packing(lane, tile, block, ids, again, {} if few else None, multiplies_bytes(ren))
  try: return split.substitute({red: _packed(red, packing) for red in _sums(split)})
  except ValueError: return sink

# *** in vectors

def word_of_bytes(v: Vectorizer, u: UOp) -> UOp|None:
  """Four numbers of 8 bits as the bytes of a word, in all lanes."""
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
