"""Kernel launches (CALL) as the scheduler emits them, built by hand."""
from collections.abc import Iterable, Sequence

import numpy as np
from tests.support.interpret import Interpreter
from tinygrad import dtypes
from tinygrad.uop.ops import AxisType, KernelInfo, Ops, UOp

def buffer(n: int = 4096, device: str = "CPU") -> UOp: return UOp.new_buffer(device, n, dtypes.float)

def mapped(n: int, out: UOp, *xs: UOp) -> UOp:
  """out[i] = 2 * (x0[i] + x1[i] + ..) + 1 for n elements, as a launch."""
  i = UOp.range(n, 0, AxisType.WEAK)
  params = [UOp.param(slot, dtypes.float, (4096,)) for slot in range(1 + len(xs))]
  value = UOp.const(1.0, dtypes.float)
  for x in params[1:]: value = value + x.index(i) * 2.0
  return UOp.sink(params[0].index(i).store(value).end(i), arg=KernelInfo()).call(out, *xs)

def product(rows: int, n: int, out: UOp, x: UOp, w: UOp, op: Ops = Ops.ADD) -> UOp:
  """out[row] = sum k: w[row, k] * x[k], as a launch."""
  row, k = UOp.range(rows, 0, AxisType.WEAK), UOp.range(n, 1, AxisType.REDUCE)
  y, of, weights = (UOp.param(slot, dtypes.float, (size,)) for slot, size in enumerate((rows, n, rows * n)))
  total = (weights.index(row * n + k) * of.index(k)).reduce(k, arg=op)
  return UOp.sink(y.index(row).store(total).end(row), arg=KernelInfo()).call(out, x, w)

def linear(calls: Sequence[UOp]) -> UOp: return UOp(Ops.LINEAR, dtypes.void, tuple(calls))

def launched(calls: Iterable[UOp]) -> dict[UOp, np.ndarray]:
  """The contents of all buffers after the launches, interpreted; a kernel may be a chain of several stages."""
  held: dict[UOp, np.ndarray] = {}
  for call in calls:
    for b in call.src[1:]: held.setdefault(b, (np.arange(b.max_numel()) % 7).astype(float))
    for stage in call.src[0].src if call.src[0].src[0].op is Ops.SINK else [call.src[0]]:
      Interpreter({i: held[b] for i, b in enumerate(call.src[1:])}, stage).value(stage)
  return held
