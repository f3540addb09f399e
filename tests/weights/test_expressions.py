"""weights/expressions.py: a graph is built once per shape, and equals the graph built for each tensor."""
import numpy as np
from tinygrad import Tensor, Variable, dtypes
from tinygrad_llm.quants.table import QUANT_TYPES
from tinygrad_llm.weights import decode, numerics
from tinygrad_llm.weights.expressions import made_once

def counted():
  """A function of a tensor and a number, and a list of the calls that built its graph."""
  calls = list[tuple]()
  @made_once
  def f(x: Tensor, n: int) -> Tensor:
    calls.append((x.shape, x.dtype, n))
    return (x * n).reshape(-1, 2).sum(-1)
  return f, calls

def test_traced_once_per_kind():
  f, calls = counted()
  for rows in (2, 3, 2, 3):
    x = Tensor(np.arange(rows * 4, dtype=np.float32)).reshape(rows, 4).contiguous()
    for n in (2, 5): assert np.array_equal(f(x, n).numpy(), (x.numpy() * n).reshape(-1, 2).sum(-1))
  f(Tensor.empty(2, 4, dtype=dtypes.half), 2)
  assert len(calls) == 5 and calls[-1][1] is dtypes.half

def test_accepts_its_own_results():
  """The function accepts its own results like any other tensor."""
  f, calls = counted()
  x = Tensor(np.arange(8, dtype=np.float32))
  assert np.array_equal(f(f(f(x, 3), 3), 3).numpy(), [27 * 28]) and len(calls) == 3
  y = Tensor(np.arange(16, dtype=np.float32))
  assert f(y, 1).shape == (8,) and np.array_equal(f(f(y, 1), 3).numpy(), [3 * (16 * i + 6) for i in range(4)])

def test_graph_matches_per_tensor_graph():
  """The graphs are identical, and so are kernels and cached schedules."""
  n = Variable("n", 1, 9).bind(4)
  for x in (Tensor.empty(1, 1, 256), Tensor.empty(1, 9, 256)[:, :n], Tensor.empty(2, 128).reshape(1, 1, 256) * 2):
    for of, plain in ((numerics._quantized, lambda x: numerics.unpacked(numerics.pack(x, 32).contiguous())),
                      (numerics.fine, lambda x: numerics.unpacked_fine(numerics.pack_fine(x).contiguous()))):
      args = (32,) if of is numerics._quantized else ()
      for _ in range(2): assert of(x, *args).uop is plain(x).uop
  for qt in QUANT_TYPES.values():
    packed = Tensor.empty(3, qt.row_items(512), dtype=qt.dtype)
    assert decode.dequantize(qt, packed, 512).uop is decode._decoded.__wrapped__(packed, qt, 512, None).uop
