"""
Sums run in vector lanes: 16 neighbouring elements of a sum are 16 accumulators, added up once at the end.

Why: on the CPU a sum is one strictly ordered chain of scalar additions, which no compiler may vectorise.
How: `pull_lanes` splits 16 elements with stride 1 off the unrolled part of a sum and makes them its outermost loop, so
  that everything inside of it is summed lane by lane. The loop stays an ordinary one through all of the lowering; at
  the very end `vectorize` replaces it by vector arithmetic: what depends on the lane becomes a vector of 16.
Numbers: TODO
Upstream: not sent.
"""
from __future__ import annotations
import functools, operator
from tinygrad.dtype import AddrSpace, DType, dtypes
from tinygrad.helpers import DEBUG, prod
from tinygrad.renderer import Renderer
from tinygrad.renderer.cstyle import ClangRenderer
from tinygrad.uop.ops import AxisType, GroupOp, Ops, PatternMatcher, UOp, UPat, graph_rewrite
from tinygrad_llm.patches import passes

SEAMS = {"tinygrad.renderer.cstyle:ClangRenderer.render_vector_prefix": "48b5b7c7f584", "tinygrad.renderer.cstyle:base_rewrite": "ef3d9dfef266",
         "tinygrad.codegen:reduce_ranges_to_acc": "bd8572676d59", "tinygrad.codegen:merge_reduce_ends": "ffeb146accf7"}

LANES = 16      # 512 bits of float32: one register or several
MARK = -LANES   # the second part of the ids of loops over lanes

# *** which elements of a sum are lanes

def strides(idx: UOp) -> dict[UOp, int]:
  """The ranges that an index adds, times a constant."""
  ret: dict[UOp, int] = {}
  for term in idx.split_uop(Ops.ADD):
    if term.op is Ops.RANGE: ret[term] = 1
    elif term.op is Ops.MUL and term.src[0].op is Ops.RANGE and term.src[1].op is Ops.CONST:
      ret[term.src[0]] = term.src[1].val
  return ret

def _lane_ranges(red: UOp) -> list[UOp]:
  """Unrolled ranges of a sum with strides 1, its size, .. in one of the indices: LANES or more elements in a row."""
  unrolled = {r for r in red.src[1:] if r.arg[-1] is AxisType.UNROLL}
  best: list[UOp] = []
  for u in red.src[0].toposort():
    if u.op is not Ops.INDEX or u.src[0].op is not Ops.PARAM or not all(r in u.ranges for r in red.src[1:]): continue
    found: list[UOp] = []
    of, stride = {r: s for r, s in strides(u.src[1].get_idx()).items() if r in unrolled}, 1
    while stride < LANES and (r := next((r for r, s in of.items() if s == stride), None)) is not None:
      found.append(r)
      stride *= r.vmax + 1
    if stride % LANES == 0 and stride >= LANES: best = best or found
  return best

def pull_lanes(red: UOp) -> UOp|None:
  if not all(r.op is Ops.RANGE for r in red.src[1:]) or not (found := _lane_ranges(red)): return None
  lane = UOp.range(LANES, max(r.arg[0] for r in red.src[0].toposort() if r.op is Ops.RANGE) + 1, MARK, AxisType.REDUCE)
  size, subs, rest = 1, {}, [r for r in red.src[1:] if r not in found]
  for r in found:
    n = r.vmax + 1
    if size * n <= LANES: subs[r] = lane // size % n if size * n < LANES else lane // size
    else:
      new = r.replace(src=(r.src[0].const_like(size * n // LANES),))
      subs[r] = new * (LANES // size) + lane // size
      rest.append(new)
    size *= n
  body = red.src[0].substitute(subs)
  return (body.reduce(*rest, arg=Ops.ADD) if rest else body).reduce(lane, arg=Ops.ADD)

# *** a loop over lanes becomes vector arithmetic

VECTOR_OPS = {Ops.ADD, Ops.SUB, Ops.MUL, Ops.AND, Ops.OR, Ops.XOR, Ops.SHL, Ops.SHR, Ops.NEG, Ops.CAST, Ops.BITCAST}
INT_OPS = {Ops.ADD: operator.add, Ops.SUB: operator.sub, Ops.MUL: operator.mul, Ops.AND: operator.and_, Ops.OR: operator.or_,
           Ops.XOR: operator.xor, Ops.SHL: operator.lshift, Ops.SHR: operator.rshift}

class Unsupported(Exception): pass

def _stack(values: list[UOp]) -> UOp: return UOp(Ops.STACK, src=tuple(values))
def _const(value: int, dtype: DType) -> UOp: return UOp.cconst(value, dtype)
def _lane(v: UOp, i: int) -> UOp: return v.src[i] if v.op is Ops.STACK else v.index(_const(i, dtypes.int))

class Vectorizer:
  """Rewrites what depends on one loop over lanes."""
  def __init__(self, sink: UOp, lane: UOp):
    self.lane, self.memo = lane, {}
    ops = sink.toposort()
    self.end = next(u for u in ops if u.op is Ops.END and lane in u.src[1:])
    # accumulators: what is stored by the loop's own end is a sum over lanes, all else that is stored inside has lanes
    ends = self.end.src[0].src if self.end.src[0].op is Ops.GROUP else (self.end.src[0],)
    self.sums = {s.src[0].buf_uop for s in ends}
    self.wide = {u.src[0].buf_uop for u in ops if u.op is Ops.STORE and u not in ends and lane in u.ranges}
    if any(b.op is not Ops.BUFFER or b.addrspace is not AddrSpace.REG for b in self.wide | self.sums) or self.wide & self.sums:
      raise Unsupported("a store inside of the loop over lanes")
    self.inside: dict[UOp, bool] = {}  # whether an op's value depends on the lane
    for u in ops:
      value = u.src[:1] if u.op is Ops.AFTER else () if u.op in (Ops.END, Ops.GROUP, Ops.STORE, Ops.SINK) else u.src
      self.inside[u] = u is lane or u in self.wide or any(self.inside[s] for s in value)

  def const(self, u: UOp) -> list[int]|None:
    """The values of an integer op in all lanes, if it depends on the lane alone."""
    if u is self.lane: return list(range(LANES))
    if u.op is Ops.CONST and isinstance(u.val, int): return [u.val] * LANES
    if u.op is Ops.CAST and dtypes.is_int(u.dtype): return self.const(u.src[0])
    if u.op not in INT_OPS or (a := self.const(u.src[0])) is None or (b := self.const(u.src[1])) is None: return None
    return [INT_OPS[u.op](x, y) for x, y in zip(a, b)]

  def address(self, idx: UOp) -> tuple[UOp|None, list[int]]|None:
    """An index as what is the same in all lanes (None: nothing), plus a number for each lane."""
    same, each = [], [0] * LANES
    for term in idx.split_uop(Ops.ADD):
      if not self.inside[term]: same.append(term)
      elif (values := self.const(term)) is None: return None
      else: each = [a + b for a, b in zip(each, values)]
    return (functools.reduce(operator.add, same) if same else None), each

  def at(self, same: UOp|None, offset: int, dtype: DType) -> UOp:
    if same is None: return _const(offset, dtype)
    return same + _const(offset, dtype) if offset else same

  def load(self, u: UOp) -> UOp:
    index = u.src[0]
    if len(u.src) != 1 or index.op is not Ops.INDEX: raise Unsupported("a gated load")
    buf, idx = index.src
    if buf.buf_uop in self.wide: return self.wide_index(index).load()
    new = self.rewrite(buf)
    if (address := self.address(idx)) is None:
      lanes = self.rewrite(idx)
      return _stack([new.index(_lane(lanes, i)).load() for i in range(LANES)])
    same, each = address
    if each == list(range(each[0], each[0] + LANES)):
      return UOp(Ops.SHRINK, src=(new, self.at(same, each[0], idx.dtype), _const(LANES, dtypes.int))).load()
    one = {e: new.index(self.at(same, e, idx.dtype)).load() for e in sorted(set(each))}
    return _stack([one[e] for e in each])

  def field(self, u: UOp) -> tuple[UOp, UOp|None, list[int], list[int]]|None:
    """Bits of 32-bit words in memory as an integer: the load, what its address has in all lanes, first bits, lengths."""
    if u.op is Ops.LOAD and u.dtype.itemsize == 4 and dtypes.is_unsigned(u.dtype) and len(u.src) == 1:
      if u.src[0].op is not Ops.INDEX or (address := self.address(u.src[0].src[1])) is None: return None
      return u, address[0], [32 * word for word in address[1]], [32] * LANES
    if u.op not in (Ops.SHR, Ops.AND) or (values := self.const(u.src[1])) is None: return None
    if (found := self.field(u.src[0])) is None: return None
    load, same, at, length = found
    if u.op is Ops.SHR: return load, same, [a + v for a, v in zip(at, values)], [n - v for n, v in zip(length, values)]
    if any(v & (v + 1) for v in values): return None
    return load, same, at, [min(n, v.bit_length()) for n, v in zip(length, values)]

  def bytes(self, u: UOp) -> UOp|None:
    """Fields that lie in bytes that follow each other: a load of bytes."""
    if u.op is not Ops.AND or (found := self.field(u)) is None: return None
    load, same, at, length = found
    first, low, n = at[0] // 8, at[0] % 8, length[0]
    if low + n > 8 or set(length) != {n} or at != [at[0] + 8 * i for i in range(LANES)]: return None
    buf, word, phase = self.rewrite(load.src[0].src[0]), first // 4, first % 4
    def four(word: int) -> UOp:
      return UOp(Ops.SHRINK, src=(buf, self.at(same, word, dtypes.int), _const(LANES // 4, dtypes.int))).load().bitcast(dtypes.uint8)
    octets = four(word)
    if phase: octets = _stack([_lane(octets, i) for i in range(phase, LANES)] + [_lane(four(word + 1), LANES - 4 + i) for i in range(phase)])
    value = octets.cast(u.dtype)
    if low: value = value.alu(Ops.SHR, self.splat(_const(low, u.dtype)))
    return value if low + n == 8 else value.alu(Ops.AND, self.splat(_const((1 << n) - 1, u.dtype)))

  def splat(self, u: UOp) -> UOp: return _stack([u] * LANES)

  def wide_index(self, index: UOp) -> UOp:
    buf, idx = index.src
    if self.inside[idx]: raise Unsupported("an accumulator is indexed by the lane")
    return UOp(Ops.SHRINK, src=(self.rewrite(buf), idx * _const(LANES, dtypes.int), _const(LANES, dtypes.int)))

  def vector(self, u: UOp) -> UOp:
    """The op as a vector of its values in all lanes."""
    new = self.rewrite(u)
    return new if new.shape == (LANES,) else self.splat(new)

  def rewrite(self, u: UOp) -> UOp:
    if (ret := self.memo.get(u)) is None: ret = self.memo[u] = self._rewrite(u)
    return ret

  def _rewrite(self, u: UOp) -> UOp:
    if u is self.end: return self.horizontal(u)
    if u.op is Ops.BUFFER and u in self.wide: return u.replace(src=(u.src[0].const_like(prod(u.shape) * LANES),))
    if u.op in (Ops.AFTER, Ops.END, Ops.GROUP, Ops.SINK, Ops.BARRIER): return u.replace(src=tuple(self.rewrite(s) for s in u.src if s is not self.lane))
    if u.op is Ops.STORE and u.src[0].src[0].buf_uop in self.wide: return self.wide_index(u.src[0]).store(self.vector(u.src[1]))
    if not self.inside[u] or u.op is Ops.STORE: return u.replace(src=tuple(map(self.rewrite, u.src)))
    if (values := self.const(u) if dtypes.is_int(u.dtype) else None) is not None: return _stack([_const(v, u.dtype) for v in values])
    if u.op is Ops.LOAD: return self.load(u)
    if (value := self.bytes(u)) is not None: return value
    if u.op not in VECTOR_OPS and u.op not in GroupOp.ALU: raise Unsupported(str(u.op))
    src = tuple(map(self.vector, u.src))
    if u.op in (Ops.SHL, Ops.SHR): src = (src[0], src[1] if src[1].dtype == u.dtype else src[1].cast(u.dtype))
    whole = u.op in VECTOR_OPS and dtypes.bool not in (u.dtype, src[0].dtype) and dtypes.bfloat16 not in (u.dtype, src[0].dtype)
    if whole: return UOp(u.op, u.dtype, src, u.arg)
    return _stack([UOp(u.op, u.dtype, tuple(_lane(s, i) for s in src), u.arg) for i in range(LANES)])

  def horizontal(self, end: UOp) -> UOp:
    """The end of the loop over lanes: sum += value in each lane becomes sum += the sum of the vector."""
    stores = []
    for store in end.src[0].src if end.src[0].op is Ops.GROUP else (end.src[0],):
      terms = store.src[1].split_uop(Ops.ADD)
      same, lanes = [], []
      for t in terms: (lanes if self.inside[t] and not (t.op is Ops.LOAD and t.src[0].buf_uop in self.sums) else same).append(t)
      if len(same) != 1 or not lanes: raise Unsupported("a sum over lanes")
      value = functools.reduce(operator.add, map(self.vector, lanes))
      while (n := value.shape[0]) > 1:
        halves = [_stack([_lane(value, i) for i in part]) for part in (range(n // 2), range(n // 2, n))] if n > 2 else \
                 [_lane(value, i) for i in range(2)]
        value = halves[0].alu(Ops.ADD, halves[1])
        if n == 2: break
      stores.append(self.rewrite(store.src[0]).store(self.rewrite(same[0]) + value))
    body = stores[0] if len(stores) == 1 else UOp.group(*stores)
    rest = tuple(s for s in end.src[1:] if s is not self.lane)
    return body.end(*rest) if rest else body

def vectorize(sink: UOp, ren: Renderer) -> UOp:
  loops = [u for u in sink.toposort() if u.op is Ops.RANGE and len(u.arg) > 2 and u.arg[1] == MARK]
  for lane in loops:
    try: sink = Vectorizer(sink, lane).rewrite(sink)
    except Unsupported as e:
      if DEBUG >= 3: print(f"LANES: {sink.arg.name}: stays a loop: {e}")
  return sink

# *** in C, for clang

def has_lanes(ren: Renderer) -> bool: return isinstance(ren, ClangRenderer) and ren.target.device == "CPU"

pm_render_vectors = PatternMatcher([
  (UPat(Ops.CAST, src=(UPat.var("v"),), name="x"), lambda ctx, x, v:
   f"__builtin_convertvector({ctx[v]}, {ctx.render_type(x)})" if len(v.shape) == 1 and v.addrspace is AddrSpace.ALU else None),
])

def render_vector_prefix(self: ClangRenderer, dt: DType, count: int) -> str:
  """A vector type that may lie at any multiple of its element's size: blocks of weights are not aligned to vectors."""
  name = self._render_dtype(dt, count, AddrSpace.REG)
  return f"typedef {self.render_dtype(dt)} {name} __attribute__((aligned({dt.itemsize}),ext_vector_type({count})));"

pm_pull_lanes = PatternMatcher([(UPat(Ops.REDUCE, arg=(Ops.ADD, 0), name="red"), pull_lanes)])

def install() -> None:
  ClangRenderer.render_vector_prefix = render_vector_prefix  # type: ignore[method-assign]
  ClangRenderer.string_rewrite = pm_render_vectors + ClangRenderer.string_rewrite
  passes.after_opts.append(lambda sink, ren: graph_rewrite(sink, pm_pull_lanes, name="lanes") if has_lanes(ren) else sink)
  passes.before_linearize.append(vectorize)
