"""runtime/estimates.py: sums of many estimates count equal ones instead of adding them one by one."""
import random

import pytest
from tinygrad import UOp
from tinygrad.renderer import Estimates
from tinygrad.uop.ops import sym_infer
from tinygrad_llm.patches import is_on, load

@pytest.mark.skipif(not is_on("estimates"), reason="it is off")
def test_sum_of_estimates_equals_parts():
  n, m, rng = UOp.variable("n", 1, 64), UOp.variable("m", 1, 9), random.Random(2)
  def number(): return rng.choice((0, rng.randrange(9), n * rng.randrange(1, 5) + rng.randrange(3), n * m * 2, m + n))
  kinds = [Estimates(number(), number(), number()) for _ in range(7)]
  many = rng.choices(kinds, k=300)
  total = sum(many, Estimates())
  assert len(vars(total)["counts"]) <= 8  # and not 300
  both = total + sum(many[:9], Estimates()) + kinds[0]
  for values in ({"n": 1, "m": 1}, {"n": 17, "m": 5}):
    def of(e, values=values): return tuple(sym_infer(x, values) for x in (e.ops, e.lds, e.mem))
    def added(es, of=of): return tuple(map(sum, zip(*map(of, es))))
    assert of(total) == of(total.simplify()) == added(many) and of(both) == added([*many, *many[:9], kinds[0]])
  assert type(total.simplify()) is Estimates

def test_pass_is_installed(): assert (Estimates.__add__ is load("estimates").added) == is_on("estimates")
