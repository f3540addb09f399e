"""Kernels for the tests of searches: small products, as they are scheduled."""
from __future__ import annotations
import tinygrad_llm  # noqa: F401  # before tinygrad: it applies the patches
from tinygrad import Device, Tensor, dtypes
from tinygrad.uop.ops import Ops
from tinygrad_llm.patches.search.tuner import Kernel, kernel_of
from tinygrad_llm.target.programs import scheduled

def product(rows: int = 256, columns: int = 512, dtype: str = "half") -> Kernel:
  """A matrix times a vector on the default device."""
  w = Tensor.empty(rows, columns, dtype=getattr(dtypes, dtype))
  x = Tensor.empty(columns)
  linear, variables = scheduled(lambda w, x: (w.float() * x).sum(1), w, x)
  ast, = [call.src[0] for call in linear.src if call.src[0].op is Ops.SINK]
  return kernel_of(ast, Device.DEFAULT, variables, f"{rows} x {columns} {dtype}")
