"""vector/vectorizer: horizontal sums of several vectors, checked by the numbers that their additions add."""
import functools

import pytest
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.vector.vectorizer import sums

def numbers(count: int, lanes: int) -> list[list[int]]: return [[1 << (v * lanes + i) for i in range(lanes)]
                                                                for v in range(count)]

def made(values: list[list[int]]) -> list[UOp]:
  """Vectors of these numbers. Lanes are variables, because additions of constants would be folded."""
  return [UOp(Ops.STACK, src=tuple(UOp.variable(f"v{x.bit_length()}", 0, 1, dtypes.int) for x in v)) for v in values]

@functools.cache
def value(u: UOp) -> int | list[int]:
  """The value of additions with variable v<n> = 2 ** (n - 1), which shows elements added twice or not at all."""
  match u.op:
    case Ops.STACK: return [value(s) for s in u.src]
    case Ops.INDEX: return value(u.src[0])[int(u.src[1].vmax)]
    case Ops.ADD:
      a, b = map(value, u.src)
      return [x + y for x, y in zip(a, b, strict=True)] if isinstance(a, list) else a + b
    case _: return 1 << int(u.expr[1:]) - 1

def additions(found: list[UOp]) -> int:
  """The number of vector additions."""
  return sum(u.op is Ops.ADD and u.max_numel() > 1 for u in UOp.sink(*found).toposort())

@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8, 16, 21])
def test_lane_sums(count, lanes):
  vectors = numbers(count, lanes)
  assert [value(total) for total in sums(made(vectors))] == [sum(v) for v in vectors]

def test_vectors_share_additions():
  """16 vectors of 16 lanes share additions and take 15; a single vector takes 3, down to two lanes."""
  assert [additions(sums(made(numbers(n, 16)))) for n in (1, 2, 4, 16)] == [3, 4, 5, 15]
