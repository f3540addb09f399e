"""
Online softmax: one kernel computes the scores, softmax and values of attention for a part of the positions.

Why: flash_decoding.py leaves a part with one value for each column, and each value would compute all scores again.
How: decode_gpu.py, decode_cpu.py, prefill_gpu.py and prefill_cpu.py write the loops. This module recognises the kernel
  of a part (part.py) and chooses one of them, by the device and the number of queries.
Rewrite:
  m[p], l[p], o[p, column], each of which computes all scores of its part
  --> for blocks of positions: s = q @ k; M = max(m, max s); l = l * exp(m - M) + sum exp(s - M); o likewise; m = M
Numbers: 1B shape at depth 4,096 (16 layers, 8 heads of keys of 64 elements that 4 queries share), for sm_90, a layer.
  By the cost model: five kernels of 565 us -> 6 us, and 2 to combine 63 parts. Threads 8 to 1,024 -> 64,512; longest
  loop of a thread 4,097 steps -> 2; 80 registers. H100, us at depth 128 of a 1B Llama: 2.5, and 1.5 to combine; 5.6
  at 4,096.
Upstream: not sent; a kernel of several sums that wait for each other has no schedule there.
"""
from __future__ import annotations
from collections.abc import Callable
from tinygrad import codegen
from tinygrad.codegen.opt import Opt
from tinygrad.helpers import NOOPT
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import UOp
from tinygrad_llm.patches import places
from tinygrad_llm.patches.attention import prefill_cpu, prefill_gpu
from tinygrad_llm.patches.attention.decode_cpu import on_cpu
from tinygrad_llm.patches.attention.decode_gpu import on_gpu
from tinygrad_llm.patches.attention.part import Part
from tinygrad_llm.patches.ir import labels
from tinygrad_llm.patches.ir.targets import has_vectors

SEAMS = {
  "tinygrad.codegen:full_rewrite_to_sink": "a1124f83af03",
}

_full_rewrite_to_sink: Callable[..., UOp]

def schedule(part: Part, ren: Renderer, opts: tuple[Opt, ...]) -> UOp|None:
  """The kernel of a part; None if it, or the schedule `opts`, does not fit."""
  if ren.has_local: return on_gpu(part, opts) if part.tokens is None else prefill_gpu.on_gpu(part, ren, opts)
  return None if not has_vectors(ren) else (on_cpu if part.tokens is None else prefill_cpu.on_cpu)(part, ren, opts)

def full_rewrite_to_sink(ast: UOp, ren: Renderer, optimize: bool = True) -> UOp:
  if optimize and not NOOPT and (part := Part.of(ast)) is not None and (
      made := schedule(part, ren, ast.arg.opts_to_apply or ())) is not None:
    return labels.renamed(_full_rewrite_to_sink(made, ren, False), "online_softmax")
  return _full_rewrite_to_sink(ast, ren, optimize)

def install() -> None:
  global _full_rewrite_to_sink
  _full_rewrite_to_sink = places.wrap(codegen, "full_rewrite_to_sink", full_rewrite_to_sink)
