"""
Estimates of a kernel's memory traffic and operations are in their simplest form.

Why: of a kernel for any number of tokens tinygrad adds up the bytes load by load, min(min(a + b, size) + c, size) ..:
  300 loads nest 957 levels deep (MXFP4, 4 of 32 experts). The kernel's key is made of its text, by recursion, which
  Python ends at 1,000 levels.
How: min(min(a, size) + b, size) is min(a + b, size) where b is not negative; what is left is simplified.
Numbers: nodes in the bytes of 300 loads, each of n numbers of one buffer, 1,175 -> 9.
Upstream: not sent; a rule of its symbolic arithmetic there.
"""
from tinygrad.renderer import Estimates
from tinygrad.uop.ops import Ops, PatternMatcher, UOp, UPat, graph_rewrite, sint
from tinygrad.uop.symbolic import symbolic

SEAMS = {
  "tinygrad.renderer:Estimates": "da5a9e4893db",
  "tinygrad.codegen:do_estimates": "40d8df2643c3",
}

_stock = Estimates.from_uops

def _least(x: UPat) -> UPat:
  """min(x, c), as UOp.minimum spells it for integers."""
  return UPat(Ops.MAX, src=[x ^ -1, UPat.cvar("c")]) ^ -1

pm_least = symbolic + PatternMatcher([
  (_least(_least(UPat.var("x")) + UPat.var("y")), lambda x, y, c: (x + y).minimum(~c.val) if y.vmin >= 0 else None)])

def simple(x: sint) -> sint: return graph_rewrite(x, pm_least, name="estimates") if isinstance(x, UOp) else x

def from_uops(uops: tuple[UOp, ...], ignore_indexing: bool = False) -> Estimates:
  found = _stock(uops, ignore_indexing)
  return Estimates(simple(found.ops), simple(found.lds), simple(found.mem)).simplify()

def install() -> None: Estimates.from_uops = staticmethod(from_uops)  # type: ignore[method-assign,assignment]
