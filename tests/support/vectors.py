"""A loop over 16 lanes that adds up a value, for rules of the vectoriser."""
from tinygrad import Device
from tinygrad.dtype import AddrSpace
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.ir.builder import lanes
from tinygrad_llm.patches.ir.targets import LANES
from tinygrad_llm.patches.vector.vectorizer import Vectorizer

LANE = lanes(LANES, 0)

def vectorizer(value: UOp) -> Vectorizer:
  """A vectoriser for a kernel that stores a value in each lane of an array."""
  array = UOp.placeholder((LANES,), value.dtype, 5, AddrSpace.REG)
  sink = UOp.sink(array.index(LANE).store(value).end(LANE))
  return Vectorizer(sink, LANE, Device["CPU"].renderer)

def added(*terms: UOp) -> UOp:
  """A sum as it is after all constants are folded."""
  total = terms[0]
  for term in terms[1:]: total = total.alu(Ops.ADD, term)
  return total
