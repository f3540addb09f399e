"""
Vectorised loads of 16 bytes: eight halves at once, where a renderer has a vector of them.

Why: GPUs load 16 bytes a thread best. tinygrad loads at most four numbers at once, which is 8 bytes of halves.
How: tinygrad's memory_coalescing allows vectors of 8 halves if an environment variable is set. The pass answers that it
  is set.
Rewrite:
  load half4 a; load half4 b, side by side
  --> load half8
Numbers: Bytes of a load of an F16 matvec on CUDA: 8 -> 16. On an H100 a product with 8192 x 28672 halves takes 187 to
  208 us with it and 190 without: no difference that can be told.
Upstream: not sent. There it would be a property of the renderer.
"""
from __future__ import annotations
from typing import Any
from tinygrad.codegen.late import coalesce
from tinygrad.renderer import Renderer
from tinygrad.renderer.cstyle import CUDARenderer, OpenCLRenderer
from tinygrad_llm.patches import hooks, places

SEAMS = {
  "tinygrad.codegen:full_rewrite_to_sink": "a1124f83af03",
  "tinygrad.codegen.late.coalesce:memory_coalescing": "a31fb374cc17",
}

VECTORS: tuple[type[Renderer], ...] = (CUDARenderer, OpenCLRenderer)  # they have a vector type of 8 halves

_getenv = coalesce.getenv

def getenv(key: str, default: Any = 0) -> Any:
  if key == "ALLOW_HALF8" and isinstance(hooks.lowering(), VECTORS): return 1
  return _getenv(key, default)

def install() -> None: places.replace(coalesce, "getenv", getenv)
