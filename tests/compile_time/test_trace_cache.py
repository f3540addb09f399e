"""compile_time/trace_cache: a function is traced once for equivalent arguments, and again for others."""
import pytest
from tinygrad import Tensor, UOp, function
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.compile_time import trace_cache

pytestmark = pytest.mark.skipif(not is_on("trace_cache"), reason="it is off")

class Scaled:
  """A layer that counts its traces."""
  traced = 0

  def __init__(self, n: int, factor: float):
    self.w, self.factor = Tensor.full((n, n), factor).contiguous().realize(), factor

  @function(precompile=True, allow_implicit=True)
  def __call__(self, x: Tensor, start: UOp) -> Tensor:
    Scaled.traced += 1
    return (x @ self.w + start) * self.factor

def traced(*layers: Scaled, x: Tensor | None = None, start: int = 1) -> tuple[int, list]:
  """Applies the layers in turn: (number of traces, result)."""
  Scaled.traced, bound = 0, UOp.variable("start", 0, 9).bind(start)
  x = Tensor.ones(2, 8).contiguous().realize() if x is None else x
  for scaled in layers: x = scaled(x, bound)
  return Scaled.traced, x.tolist()

def expected(*factors: float, x: float = 1, start: int = 1, n: int = 8) -> float:
  for factor in factors: x = (n * x * factor + start) * factor
  return x

def test_equal_layers_are_traced_once():
  """Equal layers share a trace whatever their weights; the first layer's input is of another form, hence two."""
  a, b, c = (Scaled(8, 0.5) for _ in range(3))
  b.w.assign(b.w * 2).realize()
  trace_cache.traces.clear()
  count, values = traced(a, b, c)
  first = (8 * 1 * 0.5 + 1) * 0.5
  second = (8 * first * 1.0 + 1) * 0.5
  assert count == 2 and values == [[(8 * second * 0.5 + 1) * 0.5] * 8] * 2

def test_different_layers_are_traced():
  trace_cache.traces.clear()
  same, other = [Scaled(8, 0.5) for _ in range(2)], Scaled(8, 0.25)
  assert traced(*same, other, x=Tensor.ones(2, 8).contiguous().realize())[0] == 3
  assert traced(*same)[0] == 0
  count, values = traced(*same, start=3)  # a variable's value is no part of the trace
  assert values == [[expected(0.5, 0.5, start=3)] * 8] * 2
  assert traced(*same, x=Tensor.ones(3, 8).contiguous().realize())[0] == 2
  wide = Scaled(8, 0.5)
  wide.w = wide.w.half().realize()
  assert traced(same[0], wide)[0] == 1

def test_trace_with_implicit_tensors_is_not_cached():
  hidden = Tensor.full((2, 8), 3.0).contiguous().realize()
  @function(allow_implicit=True)
  def add(x: Tensor) -> Tensor: return x + hidden
  trace_cache.traces.clear()
  assert add(Tensor.ones(2, 8).contiguous().realize()).tolist() == [[4.0] * 8] * 2
  hidden = Tensor.full((2, 8), 5.0).contiguous().realize()
  assert add(Tensor.ones(2, 8).contiguous().realize()).tolist() == [[6.0] * 8] * 2
  assert not trace_cache.traces

def test_number_of_cached_traces_is_bounded(monkeypatch):
  monkeypatch.setattr(trace_cache, "KEPT", 3)
  for n in range(1, trace_cache.KEPT + 4): traced(Scaled(8, 0.5), x=Tensor.ones(n, 8).contiguous().realize())
  assert len(trace_cache.traces) == trace_cache.KEPT
