"""Small matvec kernels as tinygrad schedules them, for tests of the kernel search."""
from __future__ import annotations
import tinygrad_llm  # noqa: F401  # before tinygrad: it applies the patches
import numpy as np
from tinygrad import Device, Tensor, dtypes
from tinygrad.engine.realize import compile_linear, run_linear
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.device.captured import scheduled
from tinygrad_llm.patches.ir.actions import Opts
from tinygrad_llm.patches.search.space import with_opts
from tinygrad_llm.patches.search.tuner import Kernel, kernel_of

def product(rows: int = 256, columns: int = 512, dtype: str = "half") -> Kernel:
  """The kernel of a matrix times a vector on the default device."""
  w = Tensor.empty(rows, columns, dtype=getattr(dtypes, dtype))
  x = Tensor.empty(columns)
  linear, variables = scheduled(lambda w, x: (w.float() * x).sum(1), w, x)
  ast, = [call.src[0] for call in linear.src if call.src[0].op is Ops.SINK]
  return kernel_of(ast, Device.DEFAULT, variables, f"{rows} x {columns} {dtype}")

def computed(linear: UOp, variables: dict[str, int], ast: UOp, opts: Opts) -> tuple[np.ndarray, UOp]:
  """Runs kernels with `opts` as the schedule of `ast`: the last kernel's output, and the program of `ast`."""
  out = linear.src[-1].src[1].buffer.ensure_allocated()
  out.copy_from(Tensor(np.full(out.size, np.nan, np.float32)).realize().uop.base.buffer)
  given = tuple(call.replace(src=(with_opts(ast, opts), *call.src[1:])) if call.src[0] is ast else call
                for call in linear.src)
  assert given != linear.src
  run_linear(made := compile_linear(linear.replace(src=given)), variables)
  program = next(call.src[0] for call, old in zip(made.src, linear.src, strict=True) if old.src[0] is ast)
  return np.frombuffer(out.as_memoryview(), np.float32), program
