"""
Launch sizes: a graph's kernels are added with sizes that a card accepts, from the least values of variables.

Why: CUDA's and Metal's graphs are made before the values of variables are known, with 0 for each. A prompt's length is
  at least 1. At 0 its kernels have a grid of 0 blocks, and a driver refuses to add such a node (CUDA: invalid
  argument). The first prompt ends there.
How: a value below a variable's least value is replaced by that. Values in range are taken as they are, and each launch
  of a graph has its own. The queues of NV and AMD keep sizes as expressions until they are launched.
Numbers: graphs of a prompt on CUDA: refused -> launched, on a driver of the tests (tests/support/cuda_stub.py)
Upstream: not sent; there, its graph runners could take a variable's least value, a line in each.
"""
from __future__ import annotations
from tinygrad.uop.ops import ProgramInfo, UOp
from tinygrad_llm.patches import places

SEAMS = {
  "tinygrad.uop.ops:ProgramInfo.launch_dims": "76631a8123ea",
  "tinygrad.runtime.graph.cuda:CUDAGraph.__init__": "da250ee020e8",
  "tinygrad.runtime.graph.metal:MetalGraph.__init__": "e6c934d44499",
}

_stock = ProgramInfo.launch_dims

def launch_dims(self: ProgramInfo, var_vals: dict[str, int]) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
  sizes: tuple[object, ...] = (*self.global_size, *(self.local_size or ()))
  least = {v.expr: int(v.vmin) for size in sizes if isinstance(size, UOp) for v in size.variables()}
  return _stock(self, var_vals | {name: max(var_vals[name], n) for name, n in least.items() if name in var_vals})

def install() -> None: places.replace(ProgramInfo, "launch_dims", launch_dims)
