"""A loop over 16 lanes that stores a value, for tests of the vectoriser's rules."""
from tinygrad import Device
from tinygrad.dtype import AddrSpace
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.ir.builder import lanes
from tinygrad_llm.patches.ir.targets import LANES
from tinygrad_llm.patches.vector.vectorizer import Vectorizer

LANE = lanes(LANES, 0)

def vectorizer(value: UOp) -> Vectorizer:
  """A Vectorizer of a kernel that stores a value in each lane of an array."""
  array = UOp.placeholder((LANES,), value.dtype, 5, AddrSpace.REG)
  sink = UOp.sink(array.index(LANE).store(value).end(LANE))
  return Vectorizer(sink, LANE, Device["CPU"].renderer)

def added(*terms: UOp) -> UOp:
  """A sum without tinygrad's simplification, as it is after all constants are folded."""
  total = terms[0]
  for term in terms[1:]: total = total.alu(Ops.ADD, term)
  return total
