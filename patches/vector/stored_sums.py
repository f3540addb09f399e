"""
Groups of activations of 8 bits whose sums are stored beside them. A part of operand_packing.py: what is subtracted from
all weights multiplies sums of x alone.
"""
from __future__ import annotations
import functools, itertools, operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.expressions import evaluate, size, steps

BYTES = 4  # of a word
# of a group (nn/weights/activations.py): words of bytes, the scale, and minus the sum of the bytes, SIGN times
SCALE, SUM, WORDS = 4, 5, 6
SIGN = 128  # times an int8 is what the same bits as an unsigned number are too much

@dataclass(frozen=True)
class Group:
  """
  A product of an int8 of x, its group's scale, and others. loops: over all bytes of a group; total: the stored int32.
  """
  byte: UOp
  scale: UOp
  others: tuple[UOp, ...]
  loops: tuple[UOp, ...]
  total: UOp

  def scaled(self) -> UOp:
    """All but the byte."""
    return functools.reduce(operator.mul, self.others, self.scale)

  def summed(self) -> UOp:
    """The product's sum over the loops."""
    return self.scaled() * (self.total.cast(dtypes.float) * (-1 / SIGN))

def _place(load: UOp) -> UOp: return load.src[1].get_idx()

def find(factors: Sequence[UOp], over: Iterable[UOp]) -> Group|None:
  """What some factors are, the loops of a group being among `over`."""
  for byte, scale in itertools.permutations(factors, 2):
    words = [u for u in byte.toposort() if u.op is Ops.INDEX and u.src[0].op is Ops.PARAM]
    if byte.op is not Ops.CAST or byte.src[0].dtype is not dtypes.int8 or len(words) != 1: continue
    if scale.op is not Ops.BITCAST or scale.dtype is not dtypes.float or scale.src[0].op is not Ops.INDEX: continue
    word, load = words[0], scale.src[0]
    if load.src[0] is not word.src[0] or (valid := load.src[1].get_valid()) is not word.src[1].get_valid(): continue
    loops = tuple(r for r in byte.ranges if r not in load.ranges)
    others = tuple(f for f in factors if f not in (byte, scale))
    if not set(over).issuperset(loops) or any(r in f.ranges for r in loops for f in others): continue
    if not _is_group(byte, word, load, loops): continue
    at = (_place(load) + (SUM - SCALE)).valid(valid)
    return Group(byte.src[0], scale, others, loops, load.replace(src=(load.src[0], at)).bitcast(dtypes.int))
  return None

def _is_group(byte: UOp, word: UOp, scale: UOp, loops: Sequence[UOp]) -> bool:
  """Whether loops are over all bytes of a group, and those alone."""
  amount = next((u.src[1] for u in byte.toposort() if u.op is Ops.SHR), None)
  if steps(loops) != SCALE * BYTES or amount is None: return False
  group, words = ({t for t in u.simplify().split_uop(Ops.ADD) if t.op is not Ops.CONST or t.val}
                  for u in (_place(scale) - SCALE, _place(word)))
  if not group <= words or any(term.divides(WORDS) is None for term in group): return False
  places, inside = set(), words - group
  for at in itertools.product(*[range(size(r)) for r in loops]):
    values: dict[UOp, int|float] = dict(zip(loops, at))
    if not values.keys() >= {r for u in (*inside, amount) for r in u.ranges}: return False
    places.add((sum(evaluate(u, values) for u in inside), evaluate(amount, values)))
  return places == set(itertools.product(range(SCALE), range(0, 8 * BYTES, 8)))
