"""ir/sums.py: multiplying an expression out keeps its value."""
import functools
import operator
import random

import pytest
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import Ops, UOp

from tinygrad_llm.patches.ir.indices import evaluate
from tinygrad_llm.patches.ir.sums import Factors, frees_a_factor, has_constant, sum_of_products

RANGES = [UOp.range(100, i) for i in range(4)]

def expression(rng: random.Random, depth: int) -> UOp:
  if depth == 0: return rng.choice([*RANGES, UOp.const(rng.randint(-5, 5), dtypes.weakint)])
  left, right = (expression(rng, rng.randrange(depth)) for _ in range(2))
  return UOp(rng.choice((Ops.ADD, Ops.MUL)), src=(left, right))

def value(u: UOp, values: dict[UOp, int]) -> int: return evaluate(u, dict(values))

def total(products: list[Factors], values: dict[UOp, int]) -> int:
  return sum(functools.reduce(operator.mul, (value(f, values) for f in p)) for p in products)

@pytest.mark.parametrize("seed", range(60))
def test_expansion_preserves_values(seed):
  rng = random.Random(seed)
  u, values = expression(rng, 6), {r: rng.randint(0, 9) for r in RANGES}
  wanted = value(u, values)
  ways = {"none": lambda products: True, "all": lambda products: False, "drawn": lambda products: rng.random() < 0.5,
          "constants": has_constant}
  for is_whole in ways.values(): assert total(sum_of_products(u, is_whole), values) == wanted
  assert total(frees_a_factor(u, frozenset(RANGES[:2])), values) == wanted
  assert all(f.op not in (Ops.ADD, Ops.MUL) for p in sum_of_products(u, ways["all"]) for f in p)

def test_only_products_that_free_a_factor_are_expanded():
  a, b, c, _ = RANGES
  def made(u: UOp) -> list[Factors]: return frees_a_factor(u, frozenset((a, b)))
  add, mul = (lambda *src: UOp(Ops.ADD, src=src)), (lambda *src: UOp(Ops.MUL, src=src))
  assert made(mul(c, add(a, b))) == [(c, a), (c, b)]      # terms of different ranges
  assert made(mul(c, add(a, mul(a, a)))) == [(c, add(a, mul(a, a)))]  # terms of the same ranges
  assert made(mul(c, add(a, UOp.const(1, dtypes.weakint)))) == [(c, add(a, UOp.const(1, dtypes.weakint)))]
