"""
A sum of two matrix products is two kernels, not one.

Why: the scheduler puts everything that an output element needs into one kernel. If the outputs of routed experts and of
  a shared expert are added up, that kernel has two sums over columns, of matrices with different sizes and types. A
  kernel has only one schedule: the matrix that it does not fit is read by few threads, or a byte at a time.
How: in a + b, where both have a large sum in them, b is stored.
Rewrite:
  y = (sum k: a[k]) + (sum l: b[l]), one kernel
  --> t = sum l: b[l]; y = (sum k: a[k]) + t, two kernels
Numbers: decode of a deepseek2 shape (64 experts of 1408, 6 used, 2 shared, 6 layers), Q4_K_M, tok/s: 34 -> 69
  (AMD EPYC with AVX-512, 2 threads, medians of 4 interleaved rounds)
Upstream: not sent; there, a kernel with two large sums should be split before BEAM sees it.
"""
from __future__ import annotations
from tinygrad.dtype import dtypes
from tinygrad.schedule import rangeify
from tinygrad.schedule.indexing import BufferizeOpts
from tinygrad.uop.ops import Ops, PatternMatcher, UOp, UPat, recursive_property
from tinygrad_llm.patches import places
from tinygrad_llm.patches.ir.indices import steps

SEAMS = {
  "tinygrad.schedule.rangeify:get_kernel_graph": "410b0e3486ef",
  "tinygrad.schedule.indexing:BufferizeOpts": "e931bd7ff25e",
  "tinygrad.uop.ops:recursive_property": "900fc653014f",
}

LARGE = 128  # steps from which a sum is large
NONE = frozenset[UOp]()

def loops(us: tuple[UOp, ...]) -> set[UOp]: return {r for u in us for r in u.ranges}

def sums(u: UOp) -> list[UOp]:
  """The sums in the kernel that computes u."""
  return [s for s in u.toposort(lambda s: s.op is not Ops.STAGE) if s.op is Ops.REDUCE]

def is_large(red: UOp) -> bool: return red.arg == (Ops.ADD, 0) and steps(loops(red.src[1:])) >= LARGE

@recursive_property
def _large_below(u: UOp) -> frozenset[UOp]:
  """The large sums in the kernel that computes u, u itself excluded. Each node caches its own set."""
  found = NONE
  for s in () if u.op is Ops.STAGE else u.src:
    if not (more := large_sums(s)) <= found: found = found | more if found else more
  return found

def large_sums(u: UOp) -> frozenset[UOp]:
  """The large sums in the kernel that computes u, u included."""
  below: frozenset[UOp] = _large_below.__get__(u)
  return below | {u} if u.op is Ops.REDUCE and is_large(u) else below

def store_one(u: UOp, a: UOp, b: UOp) -> UOp|None:
  of_a, of_b = large_sums(a), large_sums(b)
  if not of_a - of_b or not of_b - of_a or not (outputs := tuple(b.ranges)): return None
  stored = UOp(Ops.STAGE, src=(b, *outputs), arg=BufferizeOpts(device=u.device, removable=False))
  return u.replace(src=(a, stored.index(*outputs)))

pm_separate = PatternMatcher([(UPat(Ops.ADD, dtypes.floats, src=(UPat.var("a"), UPat.var("b")), name="u"), store_one)])

def install() -> None: places.rules(rangeify, "pm_reduce_simplify", pm_separate)
