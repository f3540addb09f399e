"""Passes of patches/graph: what a graph computes after each is what it computed before; by numpy."""
import random

import numpy as np
import pytest
from tests.support.interpret import Interpreter, same, steps
from tests.support.random_sums import LOOPS, OUTPUTS, drawn, load
from tinygrad import dtypes
from tinygrad.schedule.indexing import BufferizeOpts
from tinygrad.uop.ops import Ops, UOp, graph_rewrite
from tinygrad_llm.patches.graph import clamps, merge_sums, split_products

A, B, C = LOOPS
ROW, COLUMN = OUTPUTS

def test_merged_sums():
  """Of expressions with sums inside of sums that are drawn; some change."""
  changed = 0
  for seed in range(300):
    rng = random.Random(seed)
    before = drawn(rng, (*OUTPUTS, A), (B, C)).reduce(A, arg=Ops.ADD)
    after = graph_rewrite(before, merge_sums.pm_flatten)
    assert same(before, after), seed
    changed += after is not before
  assert changed > 30

def test_a_sum_of_sums_is_one():
  """sum a: w[a] * (sum b: x[a b]) --> sum a b: w[a] * x[a b]; a term without a sum is one of its own"""
  inner = load(1, A, B, ROW).reduce(B, arg=Ops.ADD)
  wanted = (load(1, A, B, ROW) * load(0, A)).reduce(B, A, arg=Ops.ADD)
  assert merge_sums.flatten((inner * load(0, A)).reduce(A, arg=Ops.ADD)) is wanted
  made = merge_sums.flatten(((inner + load(2, A)) * load(0, A)).reduce(A, arg=Ops.ADD))
  assert made is wanted + (load(2, A) * load(0, A)).reduce(A, arg=Ops.ADD)

def test_a_product_of_sums_is_left():
  """sum a: (sum b: x) * (sum c: y) has no one loop over all of them."""
  x, y = load(0, A, B).reduce(B, arg=Ops.ADD), load(1, A, C).reduce(C, arg=Ops.ADD)
  assert merge_sums.flatten((x * y).reduce(A, arg=Ops.ADD)) is None
  assert merge_sums.flatten((x * load(2, A)).reduce(A, arg=Ops.MAX)) is not x  # and other sums are none
  assert graph_rewrite((x * load(2, A)).reduce(A, arg=Ops.MAX), merge_sums.pm_flatten).arg[0] is Ops.MAX

@pytest.mark.parametrize("most", [-2, 0, 5])
def test_the_smaller_of_two_is_a_largest(most):
  """c < x ? c : x --> -max(-x, -c), whose bounds tinygrad knows"""
  x, c = UOp.param(0, dtypes.int, (8,)).index(UOp.range(8, 0)), UOp.const(most, dtypes.int)
  before = (c < x).where(c, x)
  after = graph_rewrite(before, clamps.pm_bounds)
  assert after is not before and after.vmax == most
  ids = {0: np.arange(-4, 4)}
  assert Interpreter(ids, after).value(after).ravel().tolist() == np.minimum(ids[0], most).tolist()

def test_a_bound_goes_to_who_reads():
  """store max(x, 2); read it --> store x; max(read it, 2)"""
  r = UOp.range(8, 0)
  stored = UOp(Ops.STAGE, src=(UOp.param(0, dtypes.int, (8,)).index(r).maximum(2), r), arg=BufferizeOpts(device="CPU"))
  before = stored.index(UOp.range(8, 1))
  after = graph_rewrite(before, clamps.pm_bounds)
  assert after.op is Ops.MAX and after.vmin == 2 and not any(u.op is Ops.MAX for u in after.src[0].toposort())
  assert same(before, after)

def test_of_two_products_one_is_stored():
  """(sum k: a) + (sum l: b), both large --> the second is read from where it is stored"""
  k, l = UOp.range(128, 5), UOp.range(256, 6)
  before = load(0, k, ROW).reduce(k, arg=Ops.ADD) + load(1, l, ROW).reduce(l, arg=Ops.ADD)
  after = graph_rewrite(before, split_products.pm_separate)
  staged, = [u for u in after.toposort() if u.op is Ops.STAGE]
  assert staged.src[1:] == (ROW,) and same(before, after)
  small = load(0, k, ROW).reduce(k, arg=Ops.ADD) + load(1, A, ROW).reduce(A, arg=Ops.ADD)
  assert graph_rewrite(small, split_products.pm_separate) is small
  assert steps(before) == 4 * (128 + 256)
