"""
Contiguous views: the start of a view in its buffer is read off the graph, not derived by algebra.

Why: to find the memory of a kernel's argument, tinygrad rewrites an index of the whole view by its algebra, 0.2 ms for
  each. That is a third of the time until a captured step of 304 kernels is ready.
How: a chain of reshapes, bitcasts and slices (SHRINK) of one axis says itself where the view begins. tinygrad finds the
  start of any other view.
Numbers: SmolLM2-135M with captures on disk, s (two runs each, Zen 4, 2 cores): the first prefill of 35 tokens 0.23,
  0.24 -> 0.10, 0.10; the first decode step 0.16, 0.10 -> 0.04, 0.04; both 0.03 and 0.005 from then on
Upstream: not sent; in tinygrad, a rule before the rewrite.
"""
from __future__ import annotations
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches import places

SEAMS = {"tinygrad.uop.ops:UOp.contiguous_view": "f1a9071d3e29"}

_stock = UOp.contiguous_view

def contiguous_view(self: UOp) -> tuple[UOp, int] | None:
  if self.op not in (Ops.BITCAST, Ops.SHRINK, Ops.RESHAPE): return _stock(self)
  return _stock(self) if (found := _read_off(self)) is None else found

def _read_off(view: UOp) -> tuple[UOp, int] | None:
  """A view's buffer or parameter, and its first element there; None if the chain does not tell."""
  u, first = view, 0
  while u.op is not Ops.BUFFER and u.op is not Ops.PARAM:
    if u.op is Ops.BITCAST and len(u.src[0].shape) == 1:
      first, rest = divmod(first * u.element_size(), u.src[0].element_size())
      if rest: return None
    elif u.op is Ops.SHRINK and len(u.src[0].shape) == 1:
      if not all(isinstance(n, int) for n in u.marg[0]): return None
      first += u.marg[0][0]
    elif u.op is not Ops.RESHAPE: return None
    u = u.src[0]
  return (u, first) if isinstance(u.device, str) and not u.device.startswith(("WEBGPU", "CL")) else None

def install() -> None: places.replace(UOp, "contiguous_view", contiguous_view)
