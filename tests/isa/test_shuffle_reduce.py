"""isa/shuffle_reduce: which threads of a block are neighbours in a warp, all of whose threads are there."""
import pytest
from tinygrad.uop.ops import AxisType, UOp
from tinygrad_llm.patches.ir.targets import WARP
from tinygrad_llm.patches.isa.shuffle_reduce import neighbours

def group(*sizes: int) -> list[UOp]: return [UOp.range(n, i, AxisType.GROUP_REDUCE) for i, n in enumerate(sizes)]
def others(*sizes: int) -> list[UOp]: return [UOp.range(n, 10 + i, AxisType.LOCAL) for i, n in enumerate(sizes)]

@pytest.mark.parametrize(("sums", "rows", "lanes"), [
  ((8,), (4,), 1), ((8,), (8,), 1), ((2,), (16,), 1), ((WARP,), (), 1), ((WARP,), (3,), 1), ((4, 8), (2,), 2),
  ((WARP, 4), (), 1), ((8,), (2, 4), 1), ((4, 8, 2), (4,), 2), ((4, 8), (2, 4), 2),
  ((2, 2, 8, 2), (4,), 3)])
def test_neighbours(sums, rows, lanes):
  """Numbered first, in whole warps: a row's threads, or a warp of those that add up one sum."""
  assert neighbours(of := group(*sums), others(*rows)) == of[:lanes]

@pytest.mark.parametrize(("sums", "rows"), [
  ((8,), (3,)), ((8,), ()), ((16,), (1,)),   # the last warp is not full: its missing threads would be read
  ((3,), (32,)), ((12,), (8,)),              # no power of two: an exchange leaves its row
  ((16, 4), ()), ((8, 8), (1,)),             # several warps, which share a sum with a part of each
  ((WARP,), (2, 2, 2)), ((2, 16), (2, 2, 2))])  # more axes than a thread's number has, before these
def test_no_neighbours(sums, rows): assert neighbours(group(*sums), others(*rows)) == []

def test_threads_of_rows_before_those_of_sums():
  """Rows are numbered first: neighbours are of other sums."""
  rows, sums = UOp.range(4, 0, AxisType.LOCAL), UOp.range(8, 1, AxisType.GROUP_REDUCE)
  assert neighbours([sums], [rows]) == []
