"""graph/merge_sums: merges nested sums into one; graphs before and after, evaluated by numpy."""
import random

from tests.support.random_sums import LOOPS, OUTPUTS, changed, drawn, load
from tinygrad.uop.ops import Ops, UOp, graph_rewrite
from tinygrad_llm.patches.graph import merge_sums

A, B, C = LOOPS
ROW, COLUMN = OUTPUTS

def merged(u: UOp) -> UOp: return graph_rewrite(u, merge_sums.pm_flatten)

def test_rewrite_preserves_values():
  """Random expressions with nested sums keep their values; some change."""
  graphs = (drawn(random.Random(seed), (*OUTPUTS, A), (B, C)).reduce(A, arg=Ops.ADD) for seed in range(300))
  assert changed(merged, graphs) > 30

def test_nested_sums_are_merged():
  """sum a: w[a] * (sum b: x[a b]) --> sum a b: w[a] * x[a b]; a term without an inner sum gets its own sum"""
  inner = load(1, A, B, ROW).reduce(B, arg=Ops.ADD)
  wanted = (load(1, A, B, ROW) * load(0, A)).reduce(B, A, arg=Ops.ADD)
  assert merge_sums.flatten((inner * load(0, A)).reduce(A, arg=Ops.ADD)) is wanted
  made = merge_sums.flatten(((inner + load(2, A)) * load(0, A)).reduce(A, arg=Ops.ADD))
  assert made is wanted + (load(2, A) * load(0, A)).reduce(A, arg=Ops.ADD)

def test_products_of_sums_unchanged():
  """sum a: (sum b: x) * (sum c: y) cannot be one sum; maxima are left, too."""
  x, y = load(0, A, B).reduce(B, arg=Ops.ADD), load(1, A, C).reduce(C, arg=Ops.ADD)
  assert merge_sums.flatten((x * y).reduce(A, arg=Ops.ADD)) is None
  assert merge_sums.flatten((x * load(2, A)).reduce(A, arg=Ops.MAX)) is not x  # other reductions do not match
  assert merged((x * load(2, A)).reduce(A, arg=Ops.MAX)).arg[0] is Ops.MAX
