"""
PTX for the passes' own instructions, which tinygrad's PTX renderer has no place for.

Why: tinygrad's renderers of C-like languages put a CUSTOM's operands into its text. The PTX renderer, the other one of
  the NV device, knows no CUSTOM, so it could not spell shuffles between threads and dot products of bytes.
How: A text with {d} is an instruction. {d} is its result register, which is declared in the line before.
Numbers: Q4_K matvec, 2048 x 2048, sm_90: shared memory and a barrier -> 5 exchanges a row. It was not timed.
Upstream: not sent; its rules could go to tinygrad's PTX renderer one by one, each with its figure.
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
  """The lines of an instruction; its result register is recorded for its users. None if it is an expression."""
  if "{d}" not in x.arg: return None
  ctx.r[x] = register = f"%custom{ctx.uops.index(x)}"
  return [f".reg .{ctx.types[x.dtype]} {register};", x.arg.format(*(ctx.r[s] for s in x.src), d=register)]

pm_instruction = PatternMatcher([(UPat(Ops.CUSTOM, name="x"), instruction)])

def install() -> None:
  places.rules(ptx, "string_rewrite", pm_instruction, first=True)
  intrinsics.languages[ptx.PTXRenderer] = intrinsics.Language.PTX
