"""analysis/live_values: bytes of vectors alive at once, in hand-written and random programs."""
import random

import pytest
from tinygrad import UOp, dtypes
from tinygrad.dtype import AddrSpace
from tinygrad.uop.ops import Ops
from tinygrad_llm.analysis.live_values import most_alive

IN = UOp.param(0, dtypes.float, (4096,), "CPU")

def vector(i: int, n: int = 16) -> UOp: return IN.shrink(((i * n, i * n + n),)).load()

def test_a_value_lives_to_its_last_use():
  a, b, c, d = map(vector, range(4))
  one, two = a + b, c + d
  total = one + two
  assert most_alive([a, b, one, c, d, two, total, total.sink()]) == 3 * 64  # one, c, d
  assert most_alive([a, b, c, d, one, two, total, total.sink()]) == 4 * 64
  assert most_alive([a, b, one, c, d, two, total]) == 3 * 64 and most_alive([a, b]) == 0  # a and b are unused

def test_value_used_in_loop_lives_to_loop_end():
  """A value used in a loop lives to the loop's end, inner loops included; a value made in the loop does not."""
  before, outer, inner = vector(0), UOp.range(4, 0), UOp.range(4, 1)
  x = UOp(Ops.ADD, before.dtype, (before, before))
  many = [vector(i) for i in range(1, 4)]
  sums = [v + v for v in many]
  last = sums[-1] + sums[-2]
  end = last.sink().end(inner)
  assert most_alive([before, outer, inner, x, end, *many, *sums, last]) == 3 * 64
  assert most_alive([before, outer, inner, x, *many, *sums, last, end]) == 4 * 64
  far = UOp.sink(last).end(outer)
  assert most_alive([before, outer, inner, x, end, *many, *sums, last, far]) == 4 * 64

def test_which_values_count():
  """Register arrays count by their size. Scalars, constants, addresses and values below 16 bytes do not count."""
  scalar = IN.index(UOp.const(3, dtypes.int)).load()
  constants = UOp(Ops.STACK, dtypes.float, (UOp.const(1.0, dtypes.float),) * 16)
  assert most_alive([scalar, constants, scalar + scalar, constants + constants]) == 0
  small, least = vector(0, 3), vector(0, 4)
  assert most_alive([small, small + small]) == 0 and most_alive([least, least + least]) == 16
  registers = UOp.placeholder((128,), dtypes.float, 0, addrspace=AddrSpace.REG)
  store = registers.index(UOp.const(0, dtypes.int)).store(scalar)
  array = [u for u in registers.toposort() if u.op is Ops.BUFFER]
  assert most_alive([*array, scalar, store]) == 128 * 4

@pytest.mark.parametrize("seed", range(20))
def test_random_programs_match_direct_count(seed):
  """The result equals a direct count, at every operation, of the values that are used later."""
  rng = random.Random(seed)
  ops = [vector(i) for i in range(3)]
  for _ in range(40): ops.append(rng.choice(ops[-9:]) + rng.choice(ops[-9:]))
  ops = list(dict.fromkeys(ops))
  def alive(i: int) -> int: return sum(any(u in later.src for later in ops[i + 1:]) for u in ops[:i + 1])
  assert most_alive(ops) == 64 * max(map(alive, range(len(ops))))
