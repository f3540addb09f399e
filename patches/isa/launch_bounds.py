"""
Launch bounds: how many blocks share a multiprocessor at least, so that each thread may have 128 registers.

Why: told only how many threads a block has, ptxas chooses between registers and the number of blocks by itself: some
  kernels kept numbers on the stack to have a block more, others took 185 registers.
How: the second number of __launch_bounds__: as many blocks as the registers of a multiprocessor, FILE on every card
  since sm_50, hold with REGISTERS a thread (CUDA C++ Programming Guide, launch bounds). PTX of tinygrad's own renderer
  is left alone: its loads stand far ahead of their uses, and what does not fit 128 registers went to the stack.
Cost: kernels that ptxas had kept to 96 registers for a fifth block of 128 threads take up to 122, and have four.
Numbers: a step of DeepSeek-V2-Lite, of gpt-oss and of Llama 1B: stack 8 bytes (sm_100, ffn_down_exps) -> 0; registers
  of a thread at most 134 -> 128 (sm_90), where the head of gpt-oss has 8 bytes of stack for it. On an H100 decode takes
  as long without it.
Upstream: not sent.
"""
from __future__ import annotations
import re
from collections.abc import Callable
from typing import Any
from tinygrad.helpers import ceildiv
from tinygrad.renderer.cstyle import CUDARenderer
from tinygrad_llm.patches import places
from tinygrad_llm.patches.ir.targets import WARP

SEAMS = {
  "tinygrad.renderer.cstyle:CUDARenderer": "1d185dc2e925",
}

FILE = 1 << 16   # registers of a multiprocessor
REGISTERS = 128  # of a thread

def blocks(threads: int) -> int:
  """That share a multiprocessor at least, of so many threads."""
  return max(1, FILE // (REGISTERS * WARP * ceildiv(threads, WARP)))

_render_kernel: Callable[..., str]

def render_kernel(self: CUDARenderer, *args: Any, **kwargs: Any) -> str:
  """The source code of a kernel."""
  return re.sub(r"__launch_bounds__\((\d+)\)", lambda m: f"__launch_bounds__({m[1]}, {blocks(int(m[1]))})",
                _render_kernel(self, *args, **kwargs))

def install() -> None:
  global _render_kernel
  _render_kernel = places.wrap(CUDARenderer, "render_kernel", render_kernel)
