"""compile_time/kernel_calls: schedules are the same as without the pass, and each kernel is traversed once."""
import random

import pytest
from tests.compile_time.layers import random_graph
from tinygrad import Tensor, UOp, dtypes, function
from tinygrad.uop.ops import Ops
from tinygrad_llm.device.captured import scheduled
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.compile_time import kernel_calls

pytestmark = pytest.mark.skipif(not is_on("kernel_calls"), reason="it is off")

@function(precompile=True, allow_implicit=True)
def layer(x: Tensor, w: Tensor, start: UOp) -> Tensor: return (x @ w + start).relu().softmax() + x

def schedule(layers: int, value: int = 2) -> UOp:
  start, x = UOp.variable("start", 0, 9).bind(value), Tensor.empty(4, 8).realize()
  weights = [Tensor.empty(8, 8).realize() for _ in range(layers)]
  def model(x: Tensor) -> Tensor:
    for w in weights: x = layer(x, w, start)
    return x
  linear, variables = scheduled(model, x)
  assert variables == {"start": value}
  return linear

def test_kernel_is_traversed_once(monkeypatch):
  """A kernel is traversed once for all layers and all values of the variable; its calls have different buffers."""
  kernel_calls._replaced.cache_clear()
  kernel_calls._of_kernel.cache_clear()
  linear = schedule(layers=6)
  kernels = {call.src[0] for call in linear.src}
  assert len(linear.src) == 6 * len(kernels) > 6 and len({call.src[1:] for call in linear.src}) == len(linear.src)
  assert kernel_calls._replaced.cache_info().misses == len(kernels)
  used = {v.expr for kernel in kernels for v in kernel.variables()}
  assert used == {"start"}  # the layer's parameters are replaced
  before = kernel_calls._replaced.cache_info().misses
  assert {call.src[0] for call in schedule(layers=2, value=7).src} == kernels
  assert kernel_calls._replaced.cache_info().misses == before

@pytest.mark.parametrize("seed", range(10))
def test_variables_match_tinygrad(seed):
  """variables() of graphs, kernels and calls (with bound and unbound variables as arguments) equals tinygrad's."""
  rng = random.Random(seed)
  a, b, c = (UOp.variable(name, 0, 9) for name in rng.sample("abcdef", 3))
  kernel = UOp.sink(random_graph(rng), a + 1, UOp.param(0, dtypes.int, (4,), "CPU").index(b))
  call = UOp(Ops.CALL, src=(kernel, UOp.new_buffer("CPU", 4, dtypes.int), c.bind(3), a))
  for graph in (a + b, kernel, kernel, call, UOp.sink(), call.src[1], UOp(Ops.LINEAR, src=(call,))):
    assert graph.variables() == kernel_calls._variables(graph)
  assert [v.expr for v in call.variables()] == sorted(v.expr for v in (a, b, c))

@pytest.mark.parametrize("seed", range(5))
def test_substitute_matches_tinygrad(seed):
  """substitute() equals tinygrad's, also for replaced buffers, and for several kernels and substitutes at a time."""
  rng = random.Random(seed)
  a, b, buffer = UOp.variable("a", 0, 9), UOp.variable("b", 0, 9), UOp.new_buffer("CPU", 4, dtypes.int)
  graphs = [UOp.sink(random_graph(rng), a * 2, b + a), UOp.sink(a, b), a + b, buffer, a.bind(2)]
  for subs in ({a: b}, {b: a}, {a: a}, {buffer: a}, {}):
    for graph in graphs * 2:
      assert graph.substitute(subs, name=kernel_calls.OF_CALLS) is kernel_calls._substitute(graph, subs)
