"""
Instructions of patches in PTX, which tinygrad's renderer of it has no place for.

Why: tinygrad's renderers of C-like languages put a CUSTOM's operands into its text; that of PTX, the other one of its
  NV device, knows no CUSTOM: exchanges between threads and dot products of bytes had no spelling there.
How: a text with {d} is an instruction: {d} is a register of its own, declared before it, for the result.
Numbers: Q4_K matvec, 2048 x 2048, sm_90: shared memory and a barrier -> 5 exchanges a row. It was not timed.
Upstream: not sent.
"""
from __future__ import annotations
from tinygrad.renderer import ptx
from tinygrad.uop.ops import Ops, PatternMatcher, UOp, UPat
from tinygrad_llm.patches import places
from tinygrad_llm.patches.ir import intrinsics

SEAMS = {
  "tinygrad.renderer.ptx:PTXRenderer": "99ed003cf700",
}

def instruction(ctx: ptx.PTXRenderer, x: UOp) -> list[str]|None:
  """An instruction's lines; its register is known for those that use it."""
  if "{d}" not in x.arg: return None
  ctx.r[x] = register = f"%custom{ctx.uops.index(x)}"
  return [f".reg .{ctx.types[x.dtype]} {register};", x.arg.format(*(ctx.r[s] for s in x.src), d=register)]

pm_instruction = PatternMatcher([(UPat(Ops.CUSTOM, name="x"), instruction)])

def install() -> None:
  places.rules(ptx, "string_rewrite", pm_instruction, first=True)
  intrinsics.languages[ptx.PTXRenderer] = intrinsics.Language.PTX
