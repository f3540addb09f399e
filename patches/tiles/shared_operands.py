"""
Cooperative fetch into shared memory: the threads of a block load x once, coalesced, and read their parts from there.

Why: a thread of a GEMV has 16 bytes of packed weights, and so 16 to 64 consecutive numbers of x. Its neighbour's
  numbers are up to 256 bytes away, so a load of x touches a cache line per thread: 32 cycles of the cache instead of 4.
  The weights of four rows touch 3 to 4 lines a load.
How: a value qualifies if no row changes it and its addresses add up loops. It is a load, or a product of loads such as
  x times a norm's weight. The block's threads compute it in the order of memory, in loads of 16 bytes. They store it in
  shared memory and read it after one barrier. Values of all steps of the loops are fetched before the loops if they
  take at most WHOLE bytes; otherwise each step fetches its own. Padding avoids bank conflicts of writes and of reads;
  the pass tries paddings on the thread numbers of a warp.
  Staging in shared memory must cut memory transactions by at least GAIN; for fp16 it does not, and x is read from
  global memory. A sum that no row changes, such as x * x, is added up by the threads that fetch x, or in the order of
  memory. Loads that do not fill shared memory come after the barrier: before it they took up to 60 registers more.
Rewrite:
  thread t: for k: load x[t * 16 + k], 16 apart from its neighbour's
  --> thread t: shared[..] = x[k * threads + t]; barrier; for k: shared[t * 16 + k]
Numbers: x of a product in Q4_K, 2048 x 2048, lines and passes of a warp: 512 -> 96. Estimates for an H100 in us, 2048 x
  2048: Q4_K 3.9 -> 3.1, Q6_K 6.0 -> 4.1, Q8_0 4.0 -> 3.4, MXFP4 5.2 -> 4.4; 4096 x 14336: Q4_K 36.9 -> 24.5, Q6_K 67.0
  -> 47.2, Q8_0 40.3 -> 31.2. CUDA kernels have at most 128 registers and 1 to 9.5 KB of shared memory. On an H100
  decode of a 1B Llama in Q4_K_M takes 1.81 times as long without it.
Upstream: not sent; there, an action that stages an operand, as its GROUP actions stage sums.
"""
from __future__ import annotations
from collections.abc import Sequence
from dataclasses import dataclass
import functools, itertools, operator
from typing import TypeVar
from tinygrad import codegen
from tinygrad.codegen.gpudims import _group_dims
from tinygrad.dtype import AddrSpace, dtypes
from tinygrad.helpers import ceildiv, partition, prod
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import AxisType, GroupOp, Ops, UOp
from tinygrad_llm.patches import hooks, places
from tinygrad_llm.patches.ir.banks import wavefronts
from tinygrad_llm.patches.ir.builder import Slot, next_loop
from tinygrad_llm.patches.ir.indices import strides
from tinygrad_llm.patches.ir.sums import added, product
from tinygrad_llm.patches.ir.targets import THREADS, WARP

SEAMS = {
  "tinygrad.codegen:full_rewrite_to_sink": "a1124f83af03",
  "tinygrad.codegen:devectorizer2": "566768760ee6",
  "tinygrad.codegen:pm_implicit_barriers": "3ed2b0d8660e",
  "tinygrad.codegen.gpudims:_group_dims": "78543805109f",
  "tinygrad.codegen.gpudims:get_grouped_dims": "835f1da3d549",
}

BYTES = 16       # per load
LINE = 128       # bytes of a cache line
WHOLE = 1 << 14  # most bytes that are fetched before the loops; of more, each step fetches its own
LOADS = 32       # most loads of a thread
GAIN = 2         # least factor by which memory transactions fall
KINDS = (dtypes.float32, dtypes.float16, dtypes.uint32, dtypes.int32)  # a load may have several elements of these

Number = TypeVar("Number", int, UOp)

def _size(r: UOp) -> int: return int(r.vmax) + 1

# *** threads

def numbers(threads: Sequence[UOp], ren: Renderer) -> dict[UOp, int]|None:
  """
  Returns what a step of each loop adds to a thread's hardware number in its block.

  None if a loop is split between dimensions of the hardware.
  """
  sizes = tuple(map(_size, threads))
  grouped = _group_dims(sizes, tuple(ren.local_max)) if ren.local_max is not None else sizes
  if grouped is None: return None
  found, left, step = dict[UOp, int](), list(threads), 1
  for n in grouped:
    inside = [left.pop(0)]
    while prod(map(_size, inside)) < n: inside.append(left.pop(0))
    found |= {r: step * prod(map(_size, inside[i + 1:])) for i, r in enumerate(inside)}
    step *= n
  return found

# *** the values that are fetched

@dataclass(frozen=True)
class Order:
  """
  The places of an array's elements, numbered by digits; the first digit changes fastest.

  sizes: sizes of the digits. steps: places from one step of a digit to the next.
  """
  sizes: tuple[int, ...]
  steps: tuple[int, ...]

  @property
  def counts(self) -> tuple[int, ...]:
    """Elements from one step of each digit to the next."""
    return tuple(itertools.accumulate(self.sizes[:-1], operator.mul, initial=1))

  @property
  def gaps(self) -> dict[int, int]:
    """The padding: {n: places that are skipped after each n elements}."""
    ends = (1, *(step * size for step, size in zip(self.steps, self.sizes)))
    return {count: step - end for count, step, end in zip(self.counts, self.steps, ends) if step != end}

  def place(self, group: Number, i: Number|int, width: int) -> Number:
    """Returns the index in the padded array of element group * width + i, i < width; no gap falls inside a group."""
    return functools.reduce(operator.add, [group // (count // width) * gap for count, gap in self.gaps.items()],
                            group * width + i)

  def padded(self, after: Sequence[int], by: int) -> Order:
    """Returns an order without today's gaps that skips `by` places each time that a digit of `after` changes."""
    steps = [1]
    for i, size in enumerate(self.sizes[:-1], 1): steps.append(steps[-1] * size + by * (i in after))
    return Order(self.sizes, tuple(steps))

@dataclass(frozen=True)
class Tile:
  """
  The part of a value that a block reads, in one step of its loops or in all of them.

  - loads: the value's loads
  - digits: the loops that its address adds up, by ascending step
  - unrolled: the digits that each thread has all steps of
  - steps: for each digit, elements of the address from one step to the next
  """
  value: UOp
  loads: tuple[UOp, ...]
  digits: tuple[UOp, ...]
  unrolled: frozenset[UOp]
  steps: tuple[int, ...]

  @property
  def order(self) -> Order: return Order(tuple(map(_size, self.digits)), self.steps)

  @property
  def elements(self) -> int: return prod(map(_size, self.digits))

  @property
  def nbytes(self) -> int: return self.elements * self.value.dtype.itemsize

  @property
  def most(self) -> int: return BYTES // self.value.dtype.itemsize

  def others(self, load: UOp) -> list[UOp]:
    """Returns the terms of a load's address besides the digits."""
    return [t for t in load.src[1].split_uop(Ops.ADD) if not set(self.digits).intersection(t.ranges)]

  @property
  def read(self) -> int:
    """Consecutive elements of one thread per load from shared memory."""
    own = prod(map(_size, itertools.takewhile(self.unrolled.__contains__, self.digits)))
    return next(n for n in (self.most, 4, 2, 1) if own % n == 0)

  @property
  def fetched(self) -> int:
    """Consecutive elements per load from global memory."""
    def fits(n: int) -> bool:
      if any(count % n or gap % n for count, gap in self.order.gaps.items()) or self.elements % n: return False
      return all(t.divides(n) is not None for u in self.loads for t in self.others(u))
    return next(n for n in (self.most, 4, 2, 1) if fits(n))

  def moved(self, group: UOp, i: UOp, width: int) -> UOp:
    """Returns the value of element group * width + i."""
    place = self.order.place(group, i, width)
    new = {u: u.replace(src=(u.src[0], added(self.others(u), place))) for u in self.loads}
    return self.value.substitute(new, walk=True)

  def requests(self, threads: int) -> int:
    """Returns how many times a thread loads to fetch its part."""
    return ceildiv(self.elements // self.fetched, threads)

  def lanes(self, order: Order, number: dict[UOp, int]) -> list[int]:
    """Returns the byte offset at which each thread of the first warp reads."""
    at = [(step, r) for step, r in zip(order.steps, self.digits) if r in number]
    return [sum(step * (lane // number[r] % _size(r)) for step, r in at) * self.value.dtype.itemsize
            for lane in range(min(WARP, prod(map(_size, number))))]

  def chosen(self, number: dict[UOp, int]) -> tuple[int, Order]:
    """Returns a warp's fewest passes of shared memory, to write and to read, and the order that has so few."""
    item, threads = self.value.dtype.itemsize, prod(map(_size, number))
    own = prod(_size(r) for r in self.digits if r not in number)
    found = list[tuple[int, int, Order]]()
    ends = [i for i, count in enumerate(self.order.counts) if count % self.read == count % self.fetched == 0 and i]
    for after in itertools.chain.from_iterable(itertools.combinations(ends, n) for n in range(3)):
      order = self.order.padded(after, max(self.read, self.fetched))
      stored = [order.place(lane, 0, self.fetched) * item for lane in range(min(WARP, threads))]
      passes = own // self.read * wavefronts(self.lanes(order, number), self.read * item)
      passes += self.requests(threads) * wavefronts(stored, self.fetched * item)
      found.append((passes, order.steps[-1] * order.sizes[-1], order))
    passes, _, order = min(found, key=lambda it: it[:2])
    return passes, order

  def lines(self, number: dict[UOp, int]) -> int:
    """Returns the cache lines that a warp touches if each thread loads its own elements from global memory."""
    width = min(self.read, self.fetched)
    touched = {at // LINE for at in self.lanes(self.order, number)}
    return len(self.loads) * len(touched) * prod(_size(r) for r in self.digits if r not in number) // width

  def pays(self, number: dict[UOp, int]) -> bool:
    """Whether staging cuts a warp's memory transactions for the value by at least GAIN."""
    of_a_load = ceildiv(WARP * self.fetched * self.value.dtype.itemsize, LINE)
    fetched = self.requests(prod(map(_size, number))) * len(self.loads) * of_a_load
    return bool(self.lines(number) >= GAIN * (fetched + self.chosen(number)[0]))

def _tile(value: UOp, loops: set[UOp]) -> Tile|None:
  """
  Returns the tile of a value over some loops.

  None if its loads do not all follow the loops by the same constant steps. None, too, if the value uses a step's number
  outside of its loads: the thread that fetches an element may be in another step.
  """
  loads = tuple(u for u in value.toposort() if u.op is Ops.INDEX and loops.intersection(u.ranges))
  if not loads or value.dtype not in KINDS or any(u.src[0].op is not Ops.PARAM for u in loads): return None
  if any(u.src[1].get_valid().op is not Ops.CONST for u in loads): return None
  if loops.intersection(value.toposort(lambda u: u not in loads)): return None
  found = [{r: n for r, n in strides(u.src[1]).items() if r in loops} for u in loads]
  if any(of != found[0] for of in found) or loops.intersection(value.ranges) != found[0].keys(): return None
  terms = [t for u in loads for t in u.src[1].split_uop(Ops.ADD)]
  if any(loops.intersection(t.ranges) for t in terms if not strides(t)) or min(found[0].values()) <= 0: return None
  digits = tuple(sorted(found[0], key=found[0].__getitem__))
  return Tile(value, loads, digits, frozenset(r for r in digits if r.arg[-1] is AxisType.UNROLL),
              tuple(found[0][r] for r in digits))

def _is_float(value: UOp) -> bool:
  """Whether a value is computed from floats alone."""
  inside = value.toposort(lambda u: u.op is not Ops.INDEX)
  return all(dtypes.is_float(u.dtype) and u.op in GroupOp.ALU | {Ops.INDEX, Ops.CONST, Ops.CAST} for u in inside)

def _own(term: UOp, red: UOp) -> tuple[list[UOp], list[UOp]]:
  """Splits the factors of a product in a sum: floats that its loops change and no row does, and the others."""
  group = set(_group(red))
  def is_own(f: UOp) -> bool: return bool(group.intersection(f.ranges)) and _is_shared(f, red) and _is_float(f)
  return partition(term.split_uop(Ops.MUL), is_own)

def _group(red: UOp) -> list[UOp]: return [r for r in red.src[1:] if r.arg[-1] is AxisType.GROUP_REDUCE]

def _is_shared(u: UOp, red: UOp) -> bool:
  """Whether u is the same for all threads of a block that are at the same step of a sum."""
  return all(r in red.src[1:] or r.arg[-1] is AxisType.GLOBAL for r in u.ranges)

def _loads(red: UOp) -> list[UOp]:
  """Returns a sum's loads that no row changes, without loads that only compute addresses."""
  found = [u for u in red.src[0].toposort() if u.op is Ops.INDEX]
  places = {v for u in found for v in u.src[1].toposort()}
  return [u for u in found if u not in places and set(_group(red)).intersection(u.ranges) and _is_shared(u, red)]

def _tiles(reds: list[UOp], number: dict[UOp, int], whole: bool) -> dict[UOp, Tile]:
  """Returns the values to fetch and their tiles. whole: tiles are over all steps of the loops."""
  found = dict[UOp, Tile]()
  for red in reds:
    loops = {r for r in red.src[1:] if whole or r.arg[-1] is not AxisType.REDUCE}
    products = [product(own) for term in red.src[0].split_uop(Ops.ADD) if (own := _own(term, red)[0])]
    tiles = [tile for value in products if (tile := _tile(value, loops)) is not None]
    covered = {u for tile in tiles for u in tile.loads}
    tiles += [tile for u in _loads(red) if u not in covered and (tile := _tile(u, loops)) is not None]
    found |= {tile.value: tile for tile in tiles if tile.pays(number)}
  return found

def _fetch(tile: Tile, number: dict[UOp, int], slot: int, first: int) -> tuple[UOp, UOp, Order]:
  """Returns an array in shared memory, the stores that fill it, and its order. first: a free number for new loops."""
  width, threads, order = tile.fetched, prod(map(_size, number)), tile.chosen(number)[1]
  array = UOp.placeholder((order.steps[-1] * order.sizes[-1],), tile.value.dtype, slot, AddrSpace.LOCAL)
  i, step = (UOp.range(n, first + k, AxisType.UPCAST) for k, n in enumerate((width, tile.requests(threads))))
  group = added([r * n for r, n in number.items()], step * threads)
  if (groups := tile.elements // width) % threads: group = group.minimum(groups - 1)
  stored = array.index(order.place(group, i, width)).store(tile.moved(group, i, width))
  return array, stored.end(*number, i, step), order

def run(sink: UOp, ren: Renderer) -> UOp:
  if not (ren.has_local and ren.has_shared): return sink
  ops = sink.toposort()
  reds = [u for u in ops if u.op is Ops.REDUCE and u.arg == (Ops.ADD, 0) and _group(u)]
  threads = sorted((u for u in ops if u.op is Ops.RANGE and u.arg[-1] in THREADS), key=lambda r: r.arg[:-1])
  if not reds or any(set(reds) & red.backward_slice.keys() for red in reds): return sink
  if any(r.src[0].op is not Ops.CONST for red in reds for r in (*threads, *red.src[1:])): return sink
  if (number := numbers(threads, ren)) is None: return sink
  alone, products = partition(reds, lambda red: _is_shared(red.src[0], red))
  tiles = _tiles(products, number, True)
  if sum(tile.nbytes for tile in tiles.values()) > WHOLE: tiles = _tiles(products, number, False)
  if any(tile.requests(prod(map(_size, number))) > LOADS for tile in tiles.values()): tiles = {}
  if sum(tile.nbytes for tile in tiles.values()) * 2 > ren.shared_max: tiles = {}
  if products and not tiles: return sink  # the sums of x use what the products load
  first = next_loop(sink)
  made = {value: _fetch(tile, number, Slot.SHARED_OPERANDS + i, first + 2 * i)
          for i, (value, tile) in enumerate(tiles.items())}
  sums = {red: found for i, red in enumerate(alone) if (found := _summed(
    red, tiles, number, Slot.SHARED_OPERANDS + len(made) + i, first + 2 * (len(made) + i))) is not None}
  ends = [end for _, end, _ in made.values()] + [end for _, end in sums.values()]
  reads = {value: array.after(*ends).index(_at(tiles[value].digits, order.steps))
           for value, (array, _, order) in made.items()}
  new = {red: _side_by_side(red, number) for red in alone} | {red: _rebuilt(red, reads) for red in products}
  new |= {red: _of_parts(red, array.after(*ends), number) for red, (array, _) in sums.items()}
  changed = {red: other for red, other in new.items() if other is not red}
  return _renumbered(sink.substitute(changed)) if changed else sink

def _side_by_side(red: UOp, number: dict[UOp, int]) -> UOp:
  """
  Reorders a sum that is the same for all rows, such as the sum of x, so that neighbouring threads load neighbours.

  The order of such a sum is free. Returns `red` unchanged if that saves too few cache lines.
  """
  tile = _tile(red.src[0], set(red.src[1:]))
  if tile is None or set(tile.digits) != set(red.src[1:]): return red
  group, width = {r: n for r, n in number.items() if r in tile.digits}, tile.fetched
  unrolled = sorted(tile.unrolled, key=tile.digits.index)
  while prod(map(_size, unrolled)) % width: width //= 2
  requests = prod(_size(r) for r in tile.digits if r not in group) // width
  lines = len(tile.loads) * requests * ceildiv(WARP * width * tile.value.dtype.itemsize, LINE)
  if tile.lines(number) < GAIN * lines: return red
  own = _flat(unrolled)
  turn = _flat([r for r in tile.digits if r not in group and r not in unrolled]) * (prod(map(_size, unrolled)) // width)
  piece = (own // width + turn) * prod(map(_size, group)) + _flat(sorted(group, key=group.__getitem__))
  return red.replace(src=(tile.moved(piece, own % width, width), *red.src[1:]))

def _summed(red: UOp, tiles: dict[UOp, Tile], number: dict[UOp, int], slot: int, first: int) -> tuple[UOp, UOp]|None:
  """
  Returns an array of the threads' partial sums, each over the elements that the thread fetches anyway, and its stores.

  None if the sum's elements are not fetched, or are not divided evenly.
  """
  tile, threads = _tile(red.src[0], set(red.src[1:])), prod(map(_size, number))
  if tile is None or set(tile.digits) != set(red.src[1:]): return None
  alike = [t for t in tiles.values() if (t.digits, t.steps) == (tile.digits, tile.steps)]
  if not {u.src[0] for u in tile.loads} <= {u.src[0] for t in alike for u in t.loads}: return None
  if tile.elements // (width := tile.fetched) % threads: return None
  if max(number[r] * _size(r) for r in _group(red)) != prod(map(_size, _group(red))): return None
  thread, (i, turn) = _at(list(number), list(number.values())), (
    UOp.range(n, first + k, AxisType.UNROLL) for k, n in enumerate((width, tile.requests(threads))))
  part = tile.moved(turn * threads + thread, i, width).reduce(i, turn, arg=Ops.ADD)
  array = UOp.placeholder((threads,), part.dtype, slot, AddrSpace.LOCAL)
  return array, array.index(thread).store(part).end(*number)

def _of_parts(red: UOp, array: UOp, number: dict[UOp, int]) -> UOp:
  """Returns the sum of all threads' partial sums. The threads of each group share the additions."""
  group, count = _group(red), prod(map(_size, _group(red)))
  at = _at(group, [number[r] for r in group])
  parts = [array.index(at + k * count) for k in range(prod(map(_size, number)) // count)]
  return added(parts).reduce(*group, arg=Ops.ADD)

def _at(digits: Sequence[UOp], steps: Sequence[int]) -> UOp:
  return added([r * n for r, n in zip(digits, steps)], UOp.const(0))

def _flat(digits: Sequence[UOp]) -> UOp:
  """Returns the number of a step of several loops; the first changes fastest."""
  return _at(digits, [*itertools.accumulate(map(_size, digits), operator.mul, initial=1)])

def _renumbered(sink: UOp) -> UOp:
  """Gives each part of a split loop its own number: tinygrad puts a barrier only at the end of such loops."""
  ranges = sorted((u for u in sink.toposort() if u.op is Ops.RANGE), key=lambda r: r.arg[:-1])
  loops, first = [r for r in ranges if r.arg[-1] is AxisType.REDUCE], ranges[-1].arg[0] + 1
  return sink.substitute({r: r.replace(arg=(first + i, r.arg[-1])) for i, r in enumerate(loops) if len(r.arg) > 2})

def _rebuilt(red: UOp, reads: dict[UOp, UOp]) -> UOp:
  """Rewrites a sum to read fetched values."""
  def rebuilt(term: UOp) -> UOp:
    own, others = _own(term, red)
    return product([reads[value], *others]) if own and (value := product(own)) in reads else term
  total = added(map(rebuilt, red.src[0].split_uop(Ops.ADD)))
  total = total.substitute({u: read for u, read in reads.items() if u.op is Ops.INDEX}, walk=True)
  return red.replace(src=(total, *red.src[1:]))

# *** other loads come after the barrier: before it, their values would take registers while threads wait

def _is_array(u: UOp) -> bool:
  if u.op is not Ops.AFTER or u.src[0].op is not Ops.BUFFER: return False
  return u.addrspace is AddrSpace.LOCAL and u.src[0].arg.slot >= Slot.SHARED_OPERANDS

def wait(sink: UOp, ren: Renderer) -> UOp:
  """Moves loads that fill no array behind the barrier."""
  if (array := next(filter(_is_array, ops := sink.toposort()), None)) is None: return sink
  barrier = array.src[1]
  late = {u.src[0] for u in ops if u.op is Ops.LOAD and u.src[0].src[0].op is Ops.PARAM
          and u not in barrier.backward_slice and set(barrier.ranges).issubset(u.ranges)}
  return sink.substitute({at: at.replace(src=(at.src[0].after(barrier), *at.src[1:])) for at in late}, walk=True)

def install() -> None:
  hooks.after_opts.append(run)
  hooks.before_linearize.append(wait)
  places.rules(codegen, "devectorizer2", hooks.pm_index_arrays)
