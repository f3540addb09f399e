"""
Loop vectoriser: a loop over SIMD lanes becomes vector arithmetic.

Why: tinygrad unrolls a loop into scalar operations and leaves it to the C compiler to find the vectors again. The
  compiler rarely does. Lowering 16 times the operations in Python also makes the start slow.
How: A loop that is marked as lanes stays an ordinary loop through all of the lowering. At the very end the pass turns
  each operation that depends on the loop into one vector operation. It has vector loads of contiguous elements, of
  bytes and of repeated elements, constants that differ by lane, and arithmetic in C's vector types. An operation
  without a vector form is done lane by lane. A loop without a vector form stays a loop.
Rewrite:
  for lane in 16: y[lane] = a[lane] * b + float(q[lane])
  --> y = a * (b, b, ..) + convertvector(q), vectors of 16
Numbers: Uops of a Q4_K matvec with a block of 256 weights unrolled 5,100 -> 539; see lanes.py for the speed. Horizontal
  sums with shared additions, and four positions at a time: attention of 4,096 positions of a 1B shape, 2 threads, 346
  -> 264 us a layer. (AMD EPYC with AVX-512, the fastest of 7 processes in turns.) Words that two lanes read, loaded as
  one vector: matvec 2048 x 8192 in BF16 1.18 of the speed (the same processor, medians).
Upstream: not sent; tinygrad expands all loops. It would need an axis type for lanes that stays a loop until rendering.
"""
from __future__ import annotations
from collections.abc import Callable, Sequence
import functools, operator
from tinygrad.dtype import AddrSpace, DType, dtypes, truncate
from tinygrad.helpers import DEBUG, partition, prod
from tinygrad.renderer import Renderer
from tinygrad.renderer.cstyle import ClangRenderer
from tinygrad.uop.ops import GroupOp, Ops, PatternMatcher, UOp, UPat, graph_rewrite
from tinygrad_llm.patches import hooks, places
from tinygrad_llm.patches.ir.builder import is_lanes

SEAMS = {
  "tinygrad.renderer.cstyle:ClangRenderer": "9763a2d76a66",
  "tinygrad.renderer.cstyle:ClangRenderer.render_vector_prefix": "48b5b7c7f584",
  "tinygrad.renderer.cstyle:base_rewrite": "ef3d9dfef266",
  "tinygrad.codegen:reduce_ranges_to_acc": "bd8572676d59",
  "tinygrad.codegen:merge_reduce_ends": "ffeb146accf7",
}

WIDTHS = (4, 8)  # contiguous elements, fewer than the lanes, that one load reads

class Unsupported(Exception): pass

Field = tuple[UOp, UOp|None, list[int], list[int]]

VECTOR_OPS = {Ops.ADD, Ops.SUB, Ops.MUL, Ops.AND, Ops.OR, Ops.XOR, Ops.SHL, Ops.SHR, Ops.NEG, Ops.CAST, Ops.BITCAST}
CONDITIONS = {Ops.CMPLT: "<", Ops.CMPNE: "!=", Ops.AND: "&", Ops.OR: "|", Ops.XOR: "^"}
OF_32_BITS = (dtypes.float, dtypes.int, dtypes.uint)
INT_OPS: dict[Ops, Callable[[int, int], int]] = {
  Ops.ADD: operator.add, Ops.SUB: operator.sub, Ops.MUL: operator.mul, Ops.AND: operator.and_, Ops.OR: operator.or_,
  Ops.XOR: operator.xor, Ops.SHL: operator.lshift, Ops.SHR: operator.rshift}

def _const(value: int, dtype: DType) -> UOp: return UOp.cconst(value, dtype)
def _stack(values: Sequence[UOp]) -> UOp: return UOp(Ops.STACK, src=tuple(values))
def _lane(v: UOp, i: int) -> UOp: return v.src[i] if v.op is Ops.STACK else v.index(_const(i, dtypes.int))
def _sum(terms: Sequence[UOp]) -> UOp: return functools.reduce(lambda a, b: a.alu(Ops.ADD, b), terms)

def maxima(u: UOp) -> list[UOp]:
  """The numbers of which u is the maximum, which lowering writes as (a < b) ? b : a; [u] if it is no maximum."""
  pair = u.src if u.op is Ops.MAX else ()
  if u.op is Ops.WHERE and u.src[0].op is Ops.CMPLT and u.src[0].src == (u.src[2], u.src[1]): pair = u.src[0].src
  return [term for s in pair for term in maxima(s)] or [u]

def maximum(a: UOp, b: UOp) -> UOp:
  """The maximum of two 32-bit numbers, or of two vectors in each lane."""
  return UOp(Ops.CUSTOM, a.dtype, (UOp(Ops.CUSTOM, dtypes.int, (a, b), "({0}<{1})"), b, a), "({0}?{1}:{2})")

BLOCK = 4  # lanes of 128 bits: shuffles across such blocks cost more

def sums(vectors: Sequence[UOp]) -> list[UOp]:
  """
  The horizontal sum of each vector, all of which have the same number of lanes.

  Two vectors are added at a time, with their halves side by side. So n vectors of n lanes take n - 1 vector additions,
  not n * log n.
  """
  n = vectors[0].max_numel()
  if (count := 1 << min(len(vectors), n).bit_length() - 1) < len(vectors):
    return [*sums(vectors[:count]), *sums(vectors[count:])]
  def halves(owners: list[int]) -> tuple[list[int], list[int]]:
    """The lanes of each owner's first half, and of its second half."""
    places = {owner: [i for i, o in enumerate(owners) if o == owner] for owner in dict.fromkeys(owners)}
    low = sorted(i for lanes in places.values() for i in lanes[:len(lanes) // 2])
    return low, [i for i in range(len(owners)) if i not in low]
  def together(a: Sequence, b: Sequence) -> list:
    """Interleaves half blocks of a and b, or appends b to a: lanes leave their block only where they must."""
    if n // of > BLOCK or len(a) % (BLOCK // 2): return [*a, *b]
    return [x for i in range(0, len(a), BLOCK // 2) for x in (*a[i:i + BLOCK // 2], *b[i:i + BLOCK // 2])]
  of, found = 1, [(v, [i] * n) for i, v in enumerate(vectors)]  # (vector, the sum that each lane is part of)
  while len(found) > 1:
    pairs, found = [*zip(found[::2], found[1::2])], []
    for (a, owners), (b, others) in pairs:
      (low, high), (low_b, high_b) = halves(owners), halves(others)
      found.append((_stack(together([_lane(a, i) for i in low], [_lane(b, i) for i in low_b])).alu(Ops.ADD,
                    _stack(together([_lane(a, i) for i in high], [_lane(b, i) for i in high_b]))),
                    together([owners[i] for i in low], [others[i] for i in low_b])))
    of *= 2
  total, owners = found[0]
  while len(owners) > max(2, count):
    low, high = halves(owners)
    total = _stack([_lane(total, i) for i in low]).alu(Ops.ADD, _stack([_lane(total, i) for i in high]))
    owners = [owners[i] for i in low]
  return [_sum([_lane(total, i) for i, o in enumerate(owners) if o == owner]) for owner in range(count)]

class Vectorizer:
  """
  Rewrites everything that depends on one loop over lanes. Unsupported if the loop has no vector form.

  `n`: the number of lanes. `sums`: register arrays that the loop accumulates into. `wide`: register arrays that
  statements inside the loop store to, which get a vector for each element.
  """
  def __init__(self, sink: UOp, lane: UOp, ren: Renderer):
    self.lane, self.n, self.ren, ops = lane, int(lane.vmax) + 1, ren, sink.toposort()
    self.memo: dict[UOp, UOp] = {}
    self.consts: dict[UOp, list[int]|None] = {}
    self.fields: dict[UOp, Field|None] = {}
    self.notes: dict[str, dict] = {}  # tables of the rules
    self.end = next(u for u in ops if u.op is Ops.END and lane in u.src[1:])
    self.ends = self.end.src[0].src if self.end.src[0].op is Ops.GROUP else (self.end.src[0],)
    stores = [u for u in ops if u.op is Ops.STORE and u not in self.ends and lane in u.ranges]
    sums = [u for u in self.ends if lane not in u.src[0].ranges]
    self.sums, self.wide = {u.src[0].buf_uop for u in sums}, {u.src[0].buf_uop for u in stores}
    arrays = self.wide | self.sums
    if any(b.op is not Ops.BUFFER or b.addrspace is not AddrSpace.REG for b in arrays) or self.wide & self.sums:
      raise Unsupported("it stores to memory")
    self.inside: dict[UOp, bool] = {}  # {value: whether it depends on the lane}
    for u in ops:
      value = u.src[:1] if u.op is Ops.AFTER else () if u.op in (Ops.END, Ops.GROUP, Ops.STORE, Ops.SINK) else u.src
      self.inside[u] = u is lane or u in self.wide or any(self.inside[s] for s in value)

  def const(self, u: UOp) -> list[int]|None:
    """An integer's value in each lane; None if it depends on anything but the lane."""
    if u not in self.consts: self.consts[u] = self._const(u)
    return self.consts[u]

  def _const(self, u: UOp) -> list[int]|None:
    if u is self.lane: return list(range(self.n))
    if u.op is Ops.CONST and isinstance(u.val, int): return [u.val] * self.n
    if u.op is Ops.CAST and dtypes.is_int(u.dtype): values = self.const(u.src[0])
    elif u.op not in INT_OPS or (a := self.const(u.src[0])) is None or (b := self.const(u.src[1])) is None: return None
    else: values = [INT_OPS[u.op](x, y) for x, y in zip(a, b)]
    return values if values is None or u.dtype not in truncate else [truncate[u.dtype](x) for x in values]

  def address(self, idx: UOp) -> tuple[UOp|None, list[int]]|None:
    """An index as a part that all lanes share (None: zero) and a constant for each lane; None if it is no such sum."""
    same: list[UOp] = []
    each = [0] * self.n
    for term in idx.split_uop(Ops.ADD):
      values = self.const(term)
      if values is None and not self.inside[term]: same.append(term)
      elif values is None: return None
      else: each = [a + b for a, b in zip(each, values)]
    return (_sum(same) if same else None), each

  @staticmethod
  def at(same: UOp|None, offset: int, dtype: DType) -> UOp:
    if same is None: return _const(offset, dtype)
    return same.alu(Ops.ADD, _const(offset, dtype)) if offset else same

  def load(self, u: UOp) -> UOp:
    index = u.src[0]
    if index.op is not Ops.INDEX or len(u.src) > 1 and self.inside[u.src[2]]: raise Unsupported("a wide or gated load")
    if index.src[0].buf_uop in self.wide: return self.wide_index(index).load()
    return self.gather(u, index.src[0], index.src[1])

  def in_order(self, dtype: DType, each: list[int]) -> bool:
    """Whether one vector load or store does: the lanes are contiguous, and C has vectors of the type in memory."""
    return each == list(range(each[0], each[0] + self.n)) and dtype is not dtypes.bool

  def gather(self, load: UOp, buf: UOp, idx: UOp, offset: int = 0) -> UOp:
    """A vector of the elements at idx + offset in each lane: one load if they are contiguous, else several."""
    new = self.rewrite(buf)
    if (address := self.address(idx)) is None:
      places = self.rewrite(idx)
      return _stack([self.read(load, new.index(self.at(_lane(places, i), offset, idx.dtype))) for i in range(self.n)])
    same, each = address[0], [e + offset for e in address[1]]
    if self.in_order(load.dtype, each):
      return self.read(load, UOp(Ops.SHRINK, src=(new, self.at(same, each[0], idx.dtype), _const(self.n, dtypes.int))))
    distinct = sorted(set(each))
    if (n := len(distinct)) in WIDTHS and distinct == [*range(distinct[0], distinct[0] + n)] and len(load.src) == 1:
      few = UOp(Ops.SHRINK, src=(new, self.at(same, distinct[0], idx.dtype), _const(n, dtypes.int))).load()
      return _stack([_lane(few, e - distinct[0]) for e in each])
    one = {e: self.read(load, new.index(self.at(same, e, idx.dtype))) for e in distinct}
    return _stack([one[e] for e in each])

  def element(self, u: UOp) -> UOp|None:
    """One element of a vector load, loaded alone or gathered for the lanes; None if u is anything else."""
    if u.op is not Ops.INDEX or (load := u.src[0]).op is not Ops.LOAD or load.src[0].op is not Ops.SHRINK: return None
    if len(load.src) > 1 or (at := self.const(u.src[1])) is None: return None
    buf, first, _ = load.src[0].src
    if self.inside[u]: return self.gather(load, buf, first, at[0])
    return self.rewrite(buf).index(self.at(self.rewrite(first), at[0], first.dtype)).load()

  def read(self, load: UOp, place: UOp) -> UOp:
    """A load from `place` with the gate of `load`, which all lanes share."""
    if len(load.src) == 1: return place.load()
    other = self.rewrite(load.src[1])
    if place.shape != other.shape and place.shape == (self.n,): other = self.splat(other)
    return place.load(other, self.rewrite(load.src[2]))

  def field(self, u: UOp) -> Field|None:
    """A bit field of words: its load, the shared address, each lane's first bit and length; None: it is none."""
    if u not in self.fields: self.fields[u] = self._field(u)
    return self.fields[u]

  def _field(self, u: UOp) -> Field|None:
    if u.op is Ops.LOAD and u.dtype is dtypes.uint32 and u.src[0].op is Ops.INDEX:
      if len(u.src) > 1 and self.inside[u.src[2]]: return None
      return None if (address := self.address(u.src[0].src[1])) is None else \
        (u, address[0], [32 * word for word in address[1]], [32] * self.n)
    if u.op not in (Ops.SHR, Ops.AND) or (values := self.const(u.src[1])) is None: return None
    if (found := self.field(u.src[0])) is None: return None
    load, same, at, length = found
    if u.op is Ops.SHR: return load, same, [a + v for a, v in zip(at, values)], [k - v for k, v in zip(length, values)]
    if any(v & (v + 1) for v in values): return None
    return load, same, at, [min(k, v.bit_length()) for k, v in zip(length, values)]

  def octets(self, load: UOp, same: UOp|None, first: int) -> UOp:
    """16 bytes of the words that a load reads, from byte `first` on."""
    buf, word, phase = self.rewrite(load.src[0].src[0]), first // 4, first % 4
    at = self.at(same, word, dtypes.int)
    place, words = (UOp(Ops.SHRINK, src=(buf, at, _const(n, dtypes.int))) for n in (1, 4))
    octets = words.load().bitcast(dtypes.uint8)
    if phase == 0: return octets
    # bytes that do not begin with a word: the words' load only counts in estimates, and clang drops it
    access = f"*(unsigned_char16*)((unsigned char*)({{0}})+{phase})"
    return UOp(Ops.CUSTOM, dtypes.uint8, (place, octets), access)

  def bits_of_octets(self, load: UOp, same: UOp|None, first: int, k: int) -> UOp:
    """The k bits from `first` on, in 16 consecutive bytes, as a vector of bytes; k bits never cross a byte."""
    value, low = self.octets(load, same, first // 8), first % 8
    if low: value = value.alu(Ops.SHR, self.splat(_const(low, dtypes.uint8)))
    return value if low + k == 8 else value.alu(Ops.AND, self.splat(_const((1 << k) - 1, dtypes.uint8)))

  def byte_field(self, u: UOp) -> tuple[UOp, UOp|None, int, int]|None:
    """A field of the same bits in 16 consecutive bytes: load, shared address, first bit, length; None: it is none."""
    if u.op is not Ops.AND or self.n != 16 or (found := self.field(u)) is None: return None
    load, same, at, length = found
    if len(load.src) > 1: return None
    if at[0] % 8 + length[0] > 8 or set(length) != {length[0]}: return None
    return (load, same, at[0], length[0]) if at == [at[0] + 8 * i for i in range(self.n)] else None

  def bytes(self, u: UOp) -> UOp|None:
    """A field of consecutive bytes, as a vector of u's type."""
    if (found := self.byte_field(u)) is None: return None
    (load, same, first, k), low = found, found[2] % 8
    value = self.octets(load, same, first // 8).cast(u.dtype)
    if low: value = value.alu(Ops.SHR, self.splat(_const(low, u.dtype)))
    return value if low + k == 8 else value.alu(Ops.AND, self.splat(_const((1 << k) - 1, u.dtype)))

  def condition(self, u: UOp) -> UOp|None:
    """A condition in the form of C's vector comparisons of 32 bits: all bits of a lane's integer, or none."""
    if u.op not in CONDITIONS or not self.inside[u]: return None
    if u.op in (Ops.CMPLT, Ops.CMPNE) and u.src[0].dtype is not dtypes.bool:
      if u.src[0].dtype not in OF_32_BITS: return None
      return UOp(Ops.CUSTOM, dtypes.int, tuple(map(self.vector, u.src)), f"({{0}}{CONDITIONS[u.op]}{{1}})")
    if u.op is Ops.CMPNE and u.src[1].op is Ops.CONST and u.src[1].val is True:
      return None if (a := self.condition(u.src[0])) is None else UOp(Ops.CUSTOM, dtypes.int, (a,), "(~{0})")
    a, b = map(self.condition, u.src)
    if u.op is Ops.CMPLT or a is None or b is None: return None
    return UOp(Ops.CUSTOM, dtypes.int, (a, b), f"({{0}}{'^' if u.op is Ops.CMPNE else CONDITIONS[u.op]}{{1}})")

  def select(self, u: UOp) -> UOp|None:
    """A WHERE on 32-bit numbers as a select of vectors; None if its condition has no vector form."""
    if u.op is not Ops.WHERE or u.dtype not in OF_32_BITS or (of := self.condition(u.src[0])) is None: return None
    return UOp(Ops.CUSTOM, u.dtype, (of, *map(self.vector, u.src[1:])), "({0}?{1}:{2})")

  def splat(self, u: UOp) -> UOp: return _stack([u] * self.n)

  def wide_index(self, index: UOp) -> UOp:
    buf, idx = index.src
    if self.inside[idx]: raise Unsupported("the lane chooses an accumulator")
    at = idx.alu(Ops.MUL, _const(self.n, idx.dtype))
    return UOp(Ops.SHRINK, src=(self.rewrite(buf), at, _const(self.n, dtypes.int)))

  def vector(self, u: UOp) -> UOp:
    """The value in all lanes as a vector. A vector comparison becomes one boolean a lane."""
    new = self.rewrite(u)
    if u.dtype is dtypes.bool and new.dtype is not dtypes.bool:
      return _stack([_lane(new, i).alu(Ops.CMPNE, _const(0, new.dtype)) for i in range(self.n)])
    return new if new.shape == (self.n,) else self.splat(new)

  def rewrite(self, u: UOp) -> UOp:
    if (ret := self.memo.get(u)) is None: ret = self.memo[u] = self._rewrite(u)
    return ret

  def _rewrite(self, u: UOp) -> UOp:
    if u is self.end: return self.last(u)
    if u.op is Ops.BUFFER and u in self.wide: return u.replace(src=(u.src[0].const_like(prod(u.max_shape) * self.n),))
    if u.op is Ops.STORE and u.src[0].buf_uop in self.wide:
      return self.wide_index(u.src[0]).store(self.vector(u.src[1]))
    if (element := self.element(u)) is not None: return element
    if not self.inside[u]:
      for rule in uniform_rules:
        if (value := rule(self, u)) is not None: return value
    if not self.inside[u] or u.op in (Ops.AFTER, Ops.STORE):
      src = tuple([self.rewrite(s) for s in u.src if s is not self.lane])
      return u if src == u.src else u.replace(src=src)
    if dtypes.is_int(u.dtype) and (values := self.const(u)) is not None:
      return _stack([_const(v, u.dtype) for v in values])
    if u.op is Ops.LOAD: return self.load(u)
    for rule in vector_rules:
      if (value := rule(self, u)) is not None: return value
    if u.op not in VECTOR_OPS and u.op not in GroupOp.ALU: raise Unsupported(str(u.op))
    src = tuple(map(self.vector, u.src))
    if u.op in (Ops.SHL, Ops.SHR) and src[1].dtype is not u.dtype: src = (src[0], src[1].cast(u.dtype))
    if u.op in VECTOR_OPS and not {dtypes.bool, dtypes.bfloat16}.intersection((u.dtype, src[0].dtype)):
      return UOp(u.op, u.dtype, src, u.arg)
    return _stack([UOp(u.op, u.dtype, tuple(_lane(s, i) for s in src), u.arg) for i in range(self.n)])

  def last(self, end: UOp) -> UOp:
    """The loop's own stores: sum += value adds a vector's lanes, array[lane] = value becomes a vector store."""
    stores = [t for s in self.ends if self.inside[s.src[0].src[1]] for t in self.fill(s)]
    largest, added = partition((s for s in self.ends if not self.inside[s.src[0].src[1]]),
                               lambda s: len(maxima(s.src[1])) > 1)
    stores += [*map(self.largest, largest), *self.add(added)]
    body: UOp = UOp.group(*stores)
    rest = tuple(self.rewrite(s) for s in end.src[1:] if s is not self.lane)
    return body.end(*rest) if rest else body

  def fill(self, store: UOp) -> list[UOp]:
    """Stores one vector if the lanes are contiguous, else each lane's number."""
    (buf, idx), value = store.src[0].src, self.vector(store.src[1])
    if (address := self.address(idx)) is None: raise Unsupported("a scattered store with a lane-dependent address")
    if any(self.inside[gate] for gate in store.src[2:]): raise Unsupported("a store of some lanes only")
    gates = [self.rewrite(gate) for gate in store.src[2:]]
    same, each = address
    if not self.in_order(value.dtype, each):
      return [self.rewrite(buf).index(self.at(same, e, idx.dtype)).store(_lane(value, i), *gates)
              for i, e in enumerate(each)]
    return [UOp(Ops.SHRINK, src=(self.rewrite(buf), self.at(same, each[0], idx.dtype), _const(self.n, dtypes.int)))
            .store(value, *gates)]

  def accumulated(self, store: UOp, terms: Sequence[UOp], what: str) -> tuple[UOp, list[UOp]]:
    """Splits an accumulation into the accumulator's load and the other terms' vectors; `what` names it in an error."""
    before, value = partition(terms, lambda t: t.op is Ops.LOAD and t.src[0].buf_uop is store.src[0].buf_uop)
    if len(before) != 1 or not value or not all(self.inside[t] for t in value): raise Unsupported(f"it is no {what}")
    return before[0], [*map(self.vector, value)]

  def largest(self, store: UOp) -> UOp:
    """Stores a running maximum: the maximum over lanes compares a vector's halves until two lanes are left."""
    if store.src[1].dtype.itemsize != 4: raise Unsupported("a maximum of a type that is not 32 bits")
    before, vectors = self.accumulated(store, maxima(store.src[1]), "maximum")
    found = functools.reduce(maximum, vectors)
    while (n := found.max_numel()) > 2:
      found = maximum(*(_stack([_lane(found, i) for i in half]) for half in (range(n // 2), range(n // 2, n))))
    return self.rewrite(store.src[0]).store(maximum(self.rewrite(before), maximum(_lane(found, 0), _lane(found, 1))))

  def add(self, stores: Sequence[UOp]) -> list[UOp]:
    """Stores running sums, to which the horizontal sums of vectors are added."""
    befores, totals = list[UOp](), list[UOp]()
    for store in stores:
      before, vectors = self.accumulated(store, list(store.src[1].split_uop(Ops.ADD)), "sum")
      befores.append(before)
      totals.append(_sum(vectors))
    def kind(i: int) -> tuple[DType, int]: return totals[i].dtype, totals[i].max_numel()
    alike = [[i for i in range(len(totals)) if kind(i) == k] for k in dict.fromkeys(map(kind, range(len(totals))))]
    found = {i: total for group in alike for i, total in zip(group, sums([totals[i] for i in group]))}
    return [self.rewrite(s.src[0]).store(self.rewrite(befores[i]).alu(Ops.ADD, found[i])) for i, s in enumerate(stores)]

# each maps a value inside the loop over lanes to a vector of its lanes; None: the rule does not fit
vector_rules: list[Callable[[Vectorizer, UOp], UOp|None]] = places.Functions(
  __name__, "vector_rules", (Vectorizer.bytes, Vectorizer.select))
# each maps a value that all lanes share to a scalar; None: the rule does not fit
uniform_rules: list[Callable[[Vectorizer, UOp], UOp|None]] = places.Functions(__name__, "uniform_rules")

def one_by_one(store: UOp) -> list[UOp]:
  """Splits a store of a few contiguous numbers into scalar stores."""
  (place, value), gates = store.src[:2], store.src[2:]
  if place.op is not Ops.SHRINK or value.op is not Ops.STACK or gates: return [store]
  buf, first, _ = place.src
  return [buf.index(Vectorizer.at(first, i, first.dtype)).store(v) for i, v in enumerate(value.src)]

def _narrow(end: UOp) -> UOp|None:
  """Splits the vector stores of a loop over lanes: the lanes make them scattered."""
  if not any(map(is_lanes, end.src[1:])): return None
  stores = end.src[0].src if end.src[0].op is Ops.GROUP else end.src[:1]
  if not all(u.op is Ops.STORE for u in stores): return None
  if len(made := [t for u in stores for t in one_by_one(u)]) == len(stores): return None
  return end.replace(src=(UOp.group(*made), *end.src[1:]))

pm_narrow = PatternMatcher([(UPat(Ops.END, name="end"), _narrow)])

def vectorize(sink: UOp, ren: Renderer) -> UOp:
  if any(map(is_lanes, sink.toposort())): sink = graph_rewrite(sink, pm_narrow, name="stores of lanes")
  while (lane := next((u for u in sink.toposort() if is_lanes(u)), None)) is not None:
    try: sink = Vectorizer(sink, lane, ren).rewrite(sink)
    except Unsupported as e:
      if DEBUG >= 3: print(f"VECTORS: {sink.arg.function_name}: {lane.vmax + 1} lanes stay a loop: {e}")
      sink = sink.substitute({lane: lane.replace(arg=(lane.arg[0], -2, lane.arg[-1]))})
  return sink

# *** in C, for clang

ALIGNED = 64  # bytes: each vector load then touches one cache line

def render_array(ctx: ClangRenderer, x: UOp) -> str|None:
  if x.addrspace is not AddrSpace.REG or x.max_numel() * x.dtype.itemsize < ALIGNED: return None
  return f"__attribute__((aligned({ALIGNED}))) {ctx.render_buffer(x)}"

pm_render_vectors = PatternMatcher([
  (UPat(Ops.BUFFER, name="x"), render_array),
  (UPat(Ops.INDEX, src=(UPat.var("v"), UPat.var("i"))),
   lambda ctx, v, i: f"({ctx[v]})[{ctx[i]}]" if v.addrspace is None else None),
  (UPat(Ops.CAST, src=(UPat.var("v"),), name="x"), lambda ctx, x, v:
   f"__builtin_convertvector({ctx[v]}, {ctx.render_type(x)})"
   if len(v.shape) == 1 and v.addrspace in (AddrSpace.ALU, None) else None),
])

def render_vector_prefix(self: ClangRenderer, dt: DType, count: int) -> str:
  """A vector type with the alignment of its element, because blocks of weights are not aligned to vectors."""
  name = self._render_dtype(dt, count, AddrSpace.REG)
  return f"typedef {self.render_dtype(dt)} {name} __attribute__((aligned({dt.itemsize}),ext_vector_type({count})));"

# functions that generated code calls: prefixes of their names, and their C source
c_functions: list[tuple[tuple[str, ...], str]] = []

_render_defines = ClangRenderer._render_defines

def render_defines(self: ClangRenderer, uops: list[UOp]) -> list[str]:
  calls = {u.arg for u in uops if u.op in (Ops.CUSTOM, Ops.CUSTOMI)}
  return _render_defines(self, uops) + [text for names, text in c_functions if any(c.startswith(names) for c in calls)]

def install() -> None:
  places.replace(ClangRenderer, "_render_defines", render_defines)
  places.replace(ClangRenderer, "render_vector_prefix", render_vector_prefix)
  places.rules(ClangRenderer, "string_rewrite", pm_render_vectors, first=True)
  hooks.before_linearize.append(vectorize)
