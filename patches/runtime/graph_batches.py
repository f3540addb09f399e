"""
Graph batches: a captured step is one launch wherever its device has graphs.

Why: tinygrad cuts a step into graphs of 32, 64, 128 .. kernels, so that a GPU begins while Python still prepares the
  later ones. A decode step of 165 kernels is three launches then, each with Python's work around it. Where the next
  step is launched before the last one is read, there is nothing left to hide.
How: graph_split_rewrite, which makes the graphs, begins with the largest batch that tinygrad has been tried with
  (https://github.com/tinygrad/tinygrad/pull/3771). This is so for CUDA, NV, AMD, Metal and the CPU's own graphs
  (dispatch). A call that no graph takes, such as a copy between devices, still ends a batch. JIT_BATCH_SIZE is obeyed
  if it is set.
Numbers: launches of a decode step of the 1B, 165 kernels: 3 -> 1. The host's time a token, on 2 cores that others used,
  too: 874 -> 675 us (medians of 3 interleaved profiles; 858 to 934, 651 to 715)
Upstream: not sent; there, the default of JIT_BATCH_SIZE could be the largest batch for graphs that are replayed often.
"""
from __future__ import annotations
import os
from tinygrad.engine import jit
from tinygrad.uop.ops import UOp
from tinygrad_llm.patches import places

SEAMS = {"tinygrad.engine.jit:graph_split_rewrite": "395468932786", "tinygrad.engine.jit:jit_lower": "3206ddd1ed56"}

STOCK, LARGEST = 32, 4096
_split = jit.graph_split_rewrite

def graph_split_rewrite(linear: UOp, max_batch_size: int = 0) -> UOp:
  chosen = "JIT_BATCH_SIZE" in os.environ or max_batch_size != STOCK
  return _split(linear, max_batch_size if chosen else LARGEST)

def install() -> None: places.replace(jit, "graph_split_rewrite", graph_split_rewrite)
