"""
Groups of int8 activations whose sums are stored beside them.

A constant that is subtracted from all weights multiplies only sums of x. Used by tiles/pack_operands.py and
loops/hoist_sums.py.
"""
from __future__ import annotations
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.ir.indices import evaluate, size, steps
from tinygrad_llm.patches.ir.packed_bytes import BYTES
from tinygrad_llm.patches.ir.sums import added, product

HALF = 16  # bytes that have a sum of their own
SIGN = 128  # offset that makes an int8 weight unsigned: a dot product grows by SIGN times the sum of x

@dataclass(frozen=True)
class GroupLayout:
  """
  Memory layout of a group of activations, in words (weights/numerics.py).

  First the words that hold `bytes` int8, then the float32 scale. Then int32 sums times -SIGN: one of each HALF and, if
  there are several halves, one of all bytes.
  """
  bytes: int
  @property
  def scale(self) -> int: return self.bytes // BYTES
  @property
  def words(self) -> int: return self.scale + 1 + (halves := self.bytes // HALF) + (halves > 1)

LAYOUTS = (GroupLayout(HALF), GroupLayout(2 * HALF))

@dataclass(frozen=True)
class Group:
  """
  A product of an int8 of x, its group's scale, and other factors.

  loops: the loops over all bytes of a group, or of a half of it; total: the stored int32 for these bytes, -SIGN times
  their sum.
  """
  byte: UOp
  scale: UOp
  others: tuple[UOp, ...]
  loops: tuple[UOp, ...]
  total: UOp

  def scaled(self) -> UOp:
    """The product without the byte."""
    return product(self.others, self.scale)

  def summed(self) -> UOp:
    """The product's sum over the loops."""
    return self.scaled() * (self.total.cast(dtypes.float) * (-1 / SIGN))

def _place(load: UOp) -> UOp: return load.src[1].get_idx()

def find(factors: Sequence[UOp], over: Iterable[UOp]) -> Group|None:
  """The Group that some factors form, with its loops (over a group or a half) among `over`; None if they form none."""
  for byte, scale in itertools.permutations(factors, 2):
    # an index may depend on other loads, such as the number of a row
    own = byte.toposort(gate=lambda u: u.op is not Ops.INDEX)
    words = [*dict.fromkeys(s for u in own for s in u.src if s.op is Ops.INDEX and s.src[0].op is Ops.PARAM)]
    if byte.op is not Ops.CAST or byte.src[0].dtype is not dtypes.int8 or len(words) != 1: continue
    if scale.op is not Ops.BITCAST or scale.dtype is not dtypes.float or scale.src[0].op is not Ops.INDEX: continue
    word, load = words[0], scale.src[0]
    if load.src[0] is not word.src[0] or (valid := load.src[1].get_valid()) is not word.src[1].get_valid(): continue
    of_group = tuple(r for r in byte.ranges if r not in load.ranges)
    others = tuple(f for f in factors if f not in (byte, scale))
    loops = tuple(r for r in of_group if r in set(over))
    if any(r in f.ranges for r in of_group for f in others): continue
    for layout in LAYOUTS:
      if (at := _total(layout, byte, word, load, of_group, loops)) is None: continue
      place = (_place(load) + at).valid(valid)
      return Group(byte.src[0], scale, others, loops, load.replace(src=(load.src[0], place)).bitcast(dtypes.int))
  return None

def _total(layout: GroupLayout, byte: UOp, word: UOp, scale: UOp, of_group: Sequence[UOp], loops: Sequence[UOp]
           ) -> UOp|None:
  """
  The offset of the stored sum of the bytes in `loops`, in words after the scale.

  None if these bytes are not a group and not a half of one.
  """
  amount = next((u.src[1] for u in byte.toposort() if u.op is Ops.SHR), None)
  if steps(of_group) != layout.bytes or steps(loops) not in (HALF, layout.bytes) or amount is None: return None
  group, words = ({t for t in u.simplify().split_uop(Ops.ADD) if t.op is not Ops.CONST or t.val}
                  for u in (_place(scale) - layout.scale, _place(word)))
  if not group <= words or any(term.divides(layout.words) is None for term in group): return None
  inside, half = words - group, [r for r in of_group if r not in loops]
  if not _counts(inside, amount, of_group, layout.bytes): return None
  if not half: return UOp.const(layout.words - 1 - layout.scale)
  of_half = {t for t in inside if set(half).intersection(t.ranges)}
  if not of_half or not _counts(inside - of_half, amount, loops, HALF): return None
  number = added(of_half).divides(HALF // BYTES)
  return None if number is None else number + 1

def _counts(places: Iterable[UOp], amount: UOp, loops: Sequence[UOp], n: int) -> bool:
  """
  Whether `loops` enumerate n consecutive bytes, each once.

  places: the terms of the word's index; amount: the shift that selects a byte of the word.
  """
  places, found = list(places), set()
  for at in itertools.product(*[range(size(r)) for r in loops]):
    values: dict[UOp, int|float] = dict(zip(loops, at))
    if not values.keys() >= {r for u in (*places, amount) for r in u.ranges}: return False
    found.add((sum(evaluate(u, values) for u in places), evaluate(amount, values)))
  return found == set(itertools.product(range(n // BYTES), range(0, 8 * BYTES, 8)))
