"""
Integer-to-float conversion by magic numbers: an OR into the mantissa and a subtraction, both exact.

Why: GPUs convert integers at a fraction of the rate of other arithmetic. A multiprocessor of sm_80 and later converts
  16 a clock and does 128 other operations (CUDA C++ Programming Guide, throughput of native arithmetic instructions).
  Every packed weight needs a conversion.
How: With q in [0, 2**23) in its mantissa, the float 2**23 becomes 2**23 + q. With q in [-2**22, 2**22) added to its
  bits, the float 1.5 * 2**23 becomes 1.5 * 2**23 + q. The subtraction merges with a constant that is subtracted from
  the weight anyway. The pass bounds an integer by its masks and shifts. An integer that depends only on loops and on
  fields of at most 8 bits is evaluated for all their values. A converted integer that is itself a term of a sum keeps
  its conversion: otherwise the sum would add up the large numbers, beyond the precision of a float. CPUs convert
  vectors at full rate and keep their conversion.
Rewrite:
  float(q), 0 <= q < 2**23
  --> as_float(q | bits(2**23)) - 2**23
Numbers: Conversions of integers a weight in a matvec, 2048 x 2048: with the bounds that tinygrad knows, Q4_K keeps
  0.125, Q6_K 0.06, Q8_0 and MXFP4 1; with the pass's bounds none keeps any. On an H100 decode of a 1B Llama in Q4_K_M
  takes 1.07 times as long without it, a prompt of 480 tokens 1.09 times.
Upstream: not sent; there, a rule of the GPU renderers. It is exact, so it needs no flag.
"""
from __future__ import annotations
import itertools
from tinygrad.dtype import dtypes
from tinygrad.helpers import prod
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import GroupOp, Ops, PatternMatcher, UOp, UPat, graph_rewrite
from tinygrad_llm.patches import hooks
from tinygrad_llm.patches.ir.indices import evaluate

SEAMS = {
  "tinygrad.codegen:full_rewrite_to_sink": "a1124f83af03",
  "tinygrad.uop.ops:exec_alu": "8e39e85b4a5a",
}

BITS = 23     # mantissa bits of a float32
TRIED = 1024  # combinations of values that are tried, at most

def _leaves(u: UOp, found: dict[UOp, range]) -> bool:
  """Whether a value depends on loops and fields below 256 alone; puts these into `found` with all their values."""
  if u in found or u.op is Ops.CONST: return True
  if u.op is Ops.RANGE: found[u] = range(int(u.vmax) + 1)
  elif u.op is Ops.AND and u.src[1].op is Ops.CONST and 0 <= u.src[1].val < 256 and u.op_in_backward_slice_with_self(
      Ops.INDEX): found[u] = range(u.src[1].val + 1)
  else: return u.op in GroupOp.ALU | {Ops.CAST} and all(_leaves(s, found) for s in u.src)
  return prod(map(len, found.values())) <= TRIED

def _limits(u: UOp, memo: dict[UOp, tuple[int, int]]) -> tuple[int, int]:
  """The smallest and the largest value that an integer may have."""
  if u not in memo: memo[u] = _find_limits(u, memo)
  return memo[u]

def _find_limits(u: UOp, memo: dict[UOp, tuple[int, int]]) -> tuple[int, int]:
  least, most = int(u.dtype.min), int(u.dtype.max)
  found: dict[UOp, range] = {}
  if _leaves(u, found) and found:
    tried = [evaluate(u, dict(zip(found, values))) for values in itertools.product(*found.values())]
    return int(min(tried)), int(max(tried))
  if not any(_may_wrap(s) for s in u.backward_slice_with_self):
    least, most = max(least, int(u.vmin)), min(most, int(u.vmax))
  known = [s for s in u.src if dtypes.is_int(s.dtype) and s.dtype is not dtypes.weakint or s.op is Ops.CONST]
  if u.op not in GroupOp.ALU | {Ops.CAST} or len(known) != len(u.src): return least, most
  low, high = _interval(u, [_limits(s, memo) for s in known]) or (least, most)
  return (max(least, low), min(most, high)) if u.dtype.min <= low <= high <= u.dtype.max else (least, most)

def _may_wrap(u: UOp) -> bool:
  """Whether a cast may wrap. tinygrad's bounds ignore that, so they are wrong for everything computed from it."""
  if u.op is not Ops.CAST or not dtypes.is_int(u.dtype) or u.dtype is dtypes.weakint: return False
  source = u.src[0]
  return dtypes.is_int(source.dtype) and not u.dtype.min <= source.vmin <= source.vmax <= u.dtype.max

def _interval(u: UOp, of: list[tuple[int, int]]) -> tuple[int, int]|None:
  """The limits of an operation's exact result, from its operands' limits (interval arithmetic); None if unknown."""
  (low, high), (low2, high2) = of[0], of[-1]
  if u.op is Ops.CAST: return low, high
  if u.op is Ops.ADD: return low + low2, high + high2
  if u.op is Ops.MUL: return min(ends := [a * b for a in of[0] for b in of[1]]), max(ends)
  if u.op is Ops.SHR and low2 >= 0: return low >> (low2 if low < 0 else high2), high >> (high2 if high < 0 else low2)
  if u.op is Ops.SHL and 0 <= low2 <= high2 < 64: return min(low, low << high2), max(high, high << high2)
  if u.op is Ops.AND and max(low, low2) >= 0: return 0, min(most for least, most in of if least >= 0)
  if u.op in (Ops.OR, Ops.XOR) and min(low, low2) >= 0: return 0, (1 << max(high, high2).bit_length()) - 1
  return None

def int_to_float(ctx: dict[UOp, tuple[int, int]], q: UOp) -> UOp|None:
  if not q.op_in_backward_slice_with_self(Ops.INDEX): return None
  least, most = _limits(q, ctx)
  if least >= 0 and most < 1 << BITS:
    return (q.cast(dtypes.uint32) | (127 + BITS << BITS)).bitcast(dtypes.float32) - float(1 << BITS)
  if not -(1 << BITS - 1) <= least <= most < 1 << BITS - 1: return None
  return (q.cast(dtypes.int32) + (2 * (127 + BITS) + 1 << BITS - 1)).bitcast(dtypes.float32) - float(3 << BITS - 1)

pm_int_to_float = PatternMatcher([
  (UPat(Ops.CAST, dtypes.float32, src=(UPat.var("q", dtypes.ints),)), int_to_float),
])

def run(sink: UOp, ren: Renderer) -> UOp:
  if not ren.has_local: return sink
  sums = [u for u in sink.toposort() if u.op is Ops.REDUCE]
  terms = [t.src[0] for u in sums for t in u.src[0].split_uop(Ops.ADD) if t.op is Ops.CAST]
  def limits() -> dict[UOp, tuple[int, int]]: return dict.fromkeys(terms, (-(1 << BITS), 1 << BITS))
  # code that fills an array is rewritten alike for all of the array's readers
  fills = {u for red in sums for u in red.toposort() if u.op is Ops.AFTER}
  new = {u: graph_rewrite(u, pm_int_to_float, ctx=limits(), name="int to float") for u in (*sums, *fills)}
  return sink.substitute(new) if new else sink

def install() -> None: hooks.after_opts.append(run)
