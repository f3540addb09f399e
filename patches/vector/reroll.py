"""
Rerolling: what is written out for each of 16 neighbours becomes a loop over lanes again.

Why: Activations are quantised to int8 in groups of 16 or 32 that share a scale. A group's words, scale and sums are
  stored side by side. Unrolled for each element, and vectorised over 16 groups, such a kernel has 4,000 to 8,000
  operations with scattered loads, and clang takes a second for it.
How: The maximum of a group names its elements. Expressions that differ in indices alone, by the same step from element
  to element, are one expression of the lane (isomorphic statements: Larsen and Amarasinghe, "Exploiting Superword Level
  Parallelism", PLDI 2000). Each becomes a loop over lanes that fills an array. Maxima and sums are reductions over the
  array, and words pack its numbers four at a time. A kernel that does not fit stays as it was.
Rewrite:
  top = max(|x[16g]|, .., |x[16g + 15]|); out[6g] = byte(x[16g] * f(top)) | .. << 24; ..; out[6g + 5] = top
  --> for lane in 16: a[lane] = x[16g + lane]; top = max over lanes |a[lane]|
      for lane in 16: b[lane] = int(a[lane] * f(top))
      for lane in 4: out[6g + lane] = byte(b[4 lane]) | .. << 24; out[6g + 5] = top
Numbers: Such kernels of Gemma 3 270M and SmolLM2 135M, for AVX-512, 2-core AMD EPYC, medians of 15 in turns. Nodes of
  the linear program 8,058 -> 649, 4,064 -> 373, 4,018 -> 348, 3,997 -> 326. Lowering and clang of the first 3.5 -> 0.8
  CPU seconds, of the last 1.4 -> 0.3. Time of the kernel, new / old: 0.61, 0.90, 0.82, 0.93 (4 others 0.74 to 0.90).
Upstream: not sent; it needs loops over lanes there.
"""
from __future__ import annotations
import functools, operator
from dataclasses import dataclass
from tinygrad.dtype import dtypes
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import AxisType, Ops, UOp
from tinygrad_llm.patches import hooks, is_on
from tinygrad_llm.patches.ir.builder import Loops
from tinygrad_llm.patches.ir.indices import ended, size
from tinygrad_llm.patches.ir.sums import added
from tinygrad_llm.patches.ir.targets import LANES, has_vectors

SEAMS = {
  "tinygrad.codegen.opt.postrange:apply_opts": "1b0c406434ce",
}

PARTS = 16   # most words of a group
BYTES = 4    # bytes of a word
Group = tuple[UOp, ...]  # one value for each of LANES elements

class Unlike(Exception):
  """Expressions that differ in more than their indices, or a group that is not packed in this way."""

# *** what elements have in common

def _index(us: Group, lane: UOp) -> UOp:
  """One INDEX by the lane, for indices into one buffer whose constants rise by a fixed step; else Unlike."""
  def parts(u: UOp) -> tuple[list[UOp], int]:
    terms = list(u.src[1].split_uop(Ops.ADD))
    consts = [t.val for t in terms if t.op is Ops.CONST]
    return [t for t in terms if t.op is not Ops.CONST], sum(consts)
  rest, first = parts(us[0])
  step = parts(us[1])[1] - first
  for i, u in enumerate(us):
    if len(u.src) != 2 or u.src[0] is not us[0].src[0]: raise Unlike
    others, at = parts(u)
    if at != first + i * step or set(others) != set(rest) or len(others) != len(rest): raise Unlike
  return us[0].src[0].index(us[0].src[1] + lane * step)

def alike(us: Group, lane: UOp, known: dict[Group, UOp]) -> UOp:
  """The expression whose value in lane i is us[i]. known: groups that have one already. Unlike if there is none."""
  made = dict(known)
  def of(us: Group) -> UOp:
    if us not in made: made[us] = new(us)
    return made[us]
  def new(us: Group) -> UOp:
    first = us[0]
    if all(u is first for u in us): return first
    if any(u.op is not first.op or u.arg != first.arg or u.dtype is not first.dtype or len(u.src) != len(first.src)
           for u in us): raise Unlike
    if first.op is Ops.INDEX: return _index(us, lane)
    if not first.src: raise Unlike
    return first.replace(src=tuple(of(tuple(u.src[i] for u in us)) for i in range(len(first.src))))
  return of(us)

# *** how a group is packed

@dataclass(frozen=True)
class Packed:
  """
  A kernel's groups, as it packs them into words.

  `store`: the store of a group's words. `part`: the range over these words. `words`: the value of each word.
  `top`: the maximum of `leaves`. `leaves`: the group's 16 or 32 elements, each followed by its negative.
  `bytes`: groups of integers, each of which fills four words.
  """
  store: UOp
  part: UOp
  words: list[UOp]
  top: UOp
  leaves: list[UOp]
  bytes: list[Group]

def _value(u: UOp, part: UOp, at: int) -> UOp:
  """The value of word number `at`: the branches of WHERE that it selects."""
  while u.op is Ops.WHERE and part in u.src[0].ranges:
    condition = u.src[0].substitute({part: UOp.const(at)}).simplify()
    if condition.op is not Ops.CONST: raise Unlike
    u = u.src[1] if condition.val else u.src[2]
  if part in u.ranges: raise Unlike
  return u

def _bytes(word: UOp) -> list[UOp]:
  """The integers whose low bytes a word packs; empty if the word is no such pack."""
  found = dict[int, UOp]()
  for term in word.split_uop(Ops.OR):
    shift = 0
    if term.op is Ops.SHL and term.src[1].op is Ops.CONST: term, shift = term.src[0], term.src[1].val
    if term.op is not Ops.AND or term.src[1].op is not Ops.CONST or term.src[1].val != 255: return []
    if (value := term.src[0]).op is not Ops.BITCAST or value.src[0].dtype is not dtypes.int: return []
    found[shift] = value.src[0]
  return [found[i] for i in sorted(found)] if sorted(found) == [8 * i for i in range(BYTES)] else []

def packed(sink: UOp) -> Packed:
  """The groups that a kernel packs; Unlike if it packs none."""
  stores = [u for u in sink.toposort() if u.op is Ops.STORE]
  if len(stores) != 1 or any(u.op is Ops.REDUCE for u in sink.toposort()): raise Unlike
  if (value := stores[0].src[1]).dtype is not dtypes.uint32: raise Unlike
  if value.op is not Ops.WHERE or len(chosen := value.src[0].ranges) != 1: raise Unlike
  part = next(iter(chosen))
  if part.src[0].op is not Ops.CONST or size(part) > PARTS: raise Unlike
  if any(r.arg[-1] is AxisType.UPCAST for r in stores[0].ranges if r is not part): raise Unlike
  words = [_value(value, part, i) for i in range(size(part))]
  maxima = [u for u in value.toposort() if u.op is Ops.MAX]
  if not maxima: raise Unlike
  top = max(maxima, key=lambda u: len(list(u.split_uop(Ops.MAX))))
  leaves = list(top.split_uop(Ops.MAX))
  if len(leaves) not in (2 * LANES, 4 * LANES): raise Unlike
  bytes = list(map(_bytes, words))
  of = [x for word in bytes for x in word]  # the integers in words of bytes; these words come first
  if not of or len(of) % LANES or any(bytes[len(of) // BYTES:]): raise Unlike
  return Packed(stores[0], part, words, top, leaves, _groups(of))

def _groups(values: list[UOp]) -> list[Group]: return [tuple(values[i:i + LANES]) for i in range(0, len(values), LANES)]

# *** loops

class Rolled:
  """Builds the kernel with loops over lanes in place of the unrolled elements."""
  def __init__(self, p: Packed):
    self.p, self.loops = p, Loops(UOp.sink(p.store))
    self.known: dict[Group, UOp] = {}    # {group of elements: its array}
    self.uniform: dict[UOp, UOp] = {}    # {unrolled value: its reduction over lanes, a scalar}
    self.known = {group: self.filled(group) for group in _groups(p.leaves[::2])}
    lane = self.loops.lane()
    pairs = [self.value(group, lane) for of in zip(self.known, _groups(p.leaves[1::2])) for group in of]
    self.uniform = {p.top: functools.reduce(UOp.maximum, pairs).reduce(lane, arg=Ops.MAX)}
    self.numbers = [self.filled(group) for group in p.bytes]

  def value(self, group: Group, lane: UOp) -> UOp:
    """The value of a group in a lane."""
    made = alike(group, lane, {elements: array.index(lane) for elements, array in self.known.items()})
    return made.substitute(self.uniform, walk=True)

  def filled(self, group: Group) -> UOp:
    """An array that a loop over lanes fills with a group's values."""
    lane = self.loops.lane()
    value = self.value(group, lane)
    array = self.loops.array(LANES, value.dtype)
    return array.after(ended(array.index(lane).store(value), lane))

  def total(self, u: UOp) -> UOp|None:
    """The sum of all integers of whole groups, as a reduction over lanes; None if it is another sum."""
    terms = set(u.split_uop(Ops.ADD))
    found = [i for i, group in enumerate(self.p.bytes) if terms.issuperset(group)]
    if u.op is not Ops.ADD or not found or len(list(u.split_uop(Ops.ADD))) != LANES * len(found): return None
    lane = self.loops.lane()
    return added([self.numbers[i].index(lane) for i in found]).reduce(lane, arg=Ops.ADD)

  def alone(self, word: UOp) -> UOp:
    """A word that packs no bytes, such as the scale or a sum. Unlike if it depends on single elements."""
    made = dict(self.uniform)
    for u in word.toposort(lambda u: u not in made):
      if u.op is Ops.ADD and u.dtype is dtypes.int and (total := self.total(u)) is not None: made[u] = total
    inside = {u for group in (*self.known, *self.p.bytes) for u in group}
    made_of = word.substitute(made, walk=True)
    if inside.intersection(made_of.toposort()): raise Unlike
    return made_of

  def stores(self) -> UOp:
    place, many = self.p.store.src[0], len(self.p.bytes) * BYTES
    def to(at: UOp) -> UOp: return place.substitute({self.p.part: at})
    stores: list[UOp] = []
    for i, array in enumerate(self.numbers):
      word = self.loops.lane(BYTES)
      octets = [array.index(word * BYTES + b).bitcast(dtypes.uint32) & 255 for b in range(BYTES)]
      value = functools.reduce(operator.or_, [octet << 8 * b if b else octet for b, octet in enumerate(octets)])
      stores.append(ended(to(word + i * BYTES).store(value), word))
    stores += [to(UOp.const(i)).store(self.alone(word)) for i, word in enumerate(self.p.words) if i >= many]
    made: UOp = UOp.group(*stores)
    return made

def rerolled(sink: UOp) -> UOp:
  """The kernel with loops over lanes; Unlike if it packs no groups."""
  p = packed(sink)
  end, = (u for u in sink.toposort() if u.op is Ops.END)
  made: UOp = sink.replace(src=(ended(Rolled(p).stores(), *(r for r in end.src[1:] if r is not p.part)),))
  return made

def words_of(sink: UOp) -> UOp|None:
  """The range over a group's words, if the kernel can be rerolled; else None."""
  try:
    Rolled(p := packed(sink)).stores()
    return p.part
  except Unlike: return None

def available(ren: Renderer) -> bool: return has_vectors(ren) and is_on("reroll")

def run(sink: UOp, ren: Renderer) -> UOp:
  if not available(ren): return sink
  try: return rerolled(sink)
  except Unlike: return sink

def install() -> None: hooks.after_opts.append(run)
