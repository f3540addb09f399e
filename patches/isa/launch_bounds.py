"""
Launch bounds: a minimum of blocks a multiprocessor, so that each thread may have 128 registers.

Why: If ptxas knows only the threads of a block, it chooses between registers and occupancy by itself. Some kernels
  spilled to the stack to fit one more block, others took 185 registers.
How: The pass sets the second number of __launch_bounds__, the minimum of blocks: as many as fit a multiprocessor's
  register file with REGISTERS a thread. The file has FILE registers on every card since sm_50 (CUDA C++ Programming
  Guide, launch bounds). PTX of tinygrad's own renderer is left alone: its loads stand far ahead of their uses, and with
  128 registers it spilled.
Cost: Kernels that ptxas had kept to 96 registers for a fifth block of 128 threads take up to 122, and have four.
Numbers: A step of DeepSeek-V2-Lite, of gpt-oss and of Llama 1B: stack 8 bytes (sm_100, ffn_down_exps) -> 0. Registers
  of a thread at most 134 -> 128 (sm_90); the head of gpt-oss has 8 bytes of stack for it. On an H100 decode takes as
  long without it.
Upstream: not sent; there, CUDARenderer could write the second number, and a search could choose it.
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

FILE = 1 << 16   # registers of a multiprocessor's register file
REGISTERS = 128  # registers of a thread

def blocks(threads: int) -> int:
  """How many blocks of so many threads a multiprocessor holds with REGISTERS registers a thread; at least 1."""
  return max(1, FILE // (REGISTERS * WARP * ceildiv(threads, WARP)))

_render_kernel: Callable[..., str]

def render_kernel(self: CUDARenderer, *args: Any, **kwargs: Any) -> str:
  """The source of a kernel, with the minimum of blocks in its launch bounds."""
  return re.sub(r"__launch_bounds__\((\d+)\)", lambda m: f"__launch_bounds__({m[1]}, {blocks(int(m[1]))})",
                _render_kernel(self, *args, **kwargs))

def install() -> None:
  global _render_kernel
  _render_kernel = places.wrap(CUDARenderer, "render_kernel", render_kernel)
