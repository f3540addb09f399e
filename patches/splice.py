"""
Small integers become floats by their bits: an OR and a subtraction, both exact.

Why: GPUs convert integers at a fraction of the rate of other arithmetic (16 a clock and multiprocessor of 128 on sm_80 and
  later: CUDA C++ Programming Guide, throughput of native arithmetic instructions), and a packed weight converts each.
How: q in [0, 2**23) put into the mantissa of 2**23 is the float 2**23 + q. A constant that is subtracted from the weight
  anyway folds into the 2**23. The CPU converts vectors at full rate and keeps its conversion.
Numbers: conversions of integers in the CUDA source of a Q4_K matvec (4 rows a thread): 144 -> 16, those of halves; no card
  was at hand to time it.
Upstream: not sent.
"""
from __future__ import annotations
from tinygrad.dtype import dtypes
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import Ops, PatternMatcher, UOp, UPat, graph_rewrite
from tinygrad_llm.patches import passes

SEAMS = {"tinygrad.codegen:full_rewrite_to_sink": "a1124f83af03"}

BITS = 23  # of a float's mantissa

def splice(q: UOp) -> UOp|None:
  if not (0 <= q.vmin and q.vmax < 1 << BITS) or not q.op_in_backward_slice_with_self(Ops.INDEX): return None
  return (q.cast(dtypes.uint32) | (127 + BITS << BITS)).bitcast(dtypes.float32) - float(1 << BITS)

pm_splice = PatternMatcher([
  (UPat(Ops.CAST, dtypes.float32, src=(UPat.var("q", dtypes.ints),)), splice),
])

def run(sink: UOp, ren: Renderer) -> UOp:
  if not ren.has_local: return sink
  sums = [u for u in sink.toposort() if u.op is Ops.REDUCE]
  return sink.substitute({u: graph_rewrite(u, pm_splice, name="splice") for u in sums}) if sums else sink

def install() -> None: passes.after_opts.append(run)
