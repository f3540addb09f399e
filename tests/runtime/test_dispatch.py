"""runtime/dispatch.py: a replay is one call a batch, with that replay's addresses and values."""
import time

import numpy as np
import pytest
from tests.support.extended import extended
from tests.support.child import run
from tinygrad import Context, Device, Tensor, TinyJit, UOp
from tinygrad.engine.realize import graph_cache
from tinygrad.uop.ops import Ops
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.runtime.dispatch import CPUGraph

pytestmark = pytest.mark.skipif(Device.DEFAULT != "CPU" or not is_on("dispatch"), reason="no dispatch to test")

def graphs(jit: TinyJit) -> list[UOp]:
  """The batches of a captured step."""
  assert jit.captured is not None
  return [call.src[0] for call in jit.captured.linear.src if call.src[0].op is Ops.CUSTOM_FUNCTION]

def chain(n: int, jit: int = 1) -> TinyJit:
  """A step of n kernels: x + n * v."""
  @TinyJit
  def step(x: Tensor, v: UOp) -> Tensor:
    for _ in range(n): x = (x + v).contiguous()
    return x.realize()
  with Context(JIT=jit):
    for _ in range(2): step(Tensor.zeros(16).contiguous().realize(), UOp.variable("v", -100, 100).bind(1))
  return step

def test_step_is_one_call():
  step = chain(100)
  assert step.captured is not None
  assert len(step.captured.linear.src) == len(graphs(step)) == (1 if is_on("graph_batches") else 3)
  assert sum(len(g.src[0].src) for g in graphs(step)) == 100
  assert all(isinstance(graph_cache[g], CPUGraph) for g in graphs(step))

@pytest.mark.parametrize("env", [{"NO_DISPATCH": "1"}, {"NO_PATCHES": "1"}], ids=str)
def test_disabled_by_switches(env: dict[str, str]):
  code = "import tinygrad_llm; from tinygrad import Device; print(Device['CPU'].graph)"
  assert run(code, DEV="CPU", **env).stdout == "None\n"
  assert "CPUGraph" in run(code, DEV="CPU").stdout

def test_inputs_and_variables():
  """Each replay uses its own inputs and variables, in other buffers than the captured ones."""
  step, inputs = chain(40), [Tensor(np.arange(16, dtype=np.float32) * i).realize() for i in range(5)]
  for v in (1, -100, 100, 0, -1, 7):
    for x in inputs:
      y = step(x, UOp.variable("v", -100, 100).bind(v))
      np.testing.assert_array_equal(y.numpy(), x.numpy() + 40 * v)

def test_views_of_inputs():
  @TinyJit
  def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    a = (x[4:8] + 1).contiguous()
    return (a * y[2]).contiguous().realize(), (x.reshape(4, 4).permute(1, 0).contiguous() + a).realize()
  base = [Tensor(np.arange(64, dtype=np.float32) + 100 * i).realize() for i in range(4)]
  for i in range(6):
    x, y = base[i % 4], base[(i + 1) % 4]
    got = step(x[16:32], y[8:12])
    a, b = x.numpy()[16:32], y.numpy()[8:12]
    np.testing.assert_array_equal(got[0].numpy(), (a[4:8] + 1) * b[2])
    np.testing.assert_array_equal(got[1].numpy(), a.reshape(4, 4).T + a[4:8] + 1)

def test_symbolic_shapes():
  cache = Tensor.zeros(64, 32).contiguous().realize()
  w = Tensor.randn(32, 64).realize()
  @TinyJit
  def step(x: Tensor, at: UOp) -> Tensor:
    cache[at:at + 1].assign(x).realize()
    return ((cache[:at + 1] @ w).sum(0) + 1).contiguous().realize()
  rows = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
  for i in range(64):
    got = step(Tensor(rows[i:i + 1]).realize(), UOp.variable("at", 0, 63).bind(i))
    np.testing.assert_allclose(got.numpy(), (rows[:i + 1] @ w.numpy()).sum(0) + 1, rtol=1e-3, atol=1e-3)
  assert graphs(step)

def test_in_place_update_of_input():
  """A step may change a state in place, as everywhere with TinyJit."""
  state = Tensor.zeros(16).contiguous().realize()
  @TinyJit
  def step(x: Tensor) -> Tensor:
    state.assign(state + x).realize()
    return (state * 2).contiguous().realize()
  for i in range(1, 8): assert (step(Tensor.ones(16).contiguous().realize()).numpy() == 2 * i).all()

def test_kernels_of_another_device_in_between():
  @TinyJit
  def step(x: Tensor) -> Tensor:
    a = ((x + 1).contiguous() * 2).contiguous()
    b = ((a.to("CPU:1") * 3).contiguous() + 1).contiguous()
    return ((b.to("CPU") + a).contiguous() * 2).contiguous().realize()
  for i in range(5):
    x = Tensor(np.arange(1 << 16, dtype=np.float32) + i).realize()
    np.testing.assert_array_equal(step(x).numpy(), ((x.numpy() + 1) * 2 * 4 + 1) * 2)
  assert {g.src[0].src[0].src[1].device for g in graphs(step)} == {"CPU", "CPU:1"}

def test_tensors_over_two_devices():
  """Tensors sharded over two devices are in no graph and run as usual."""
  devices = ("CPU", "CPU:1")
  @TinyJit
  def step(x: Tensor) -> Tensor: return ((x + 1).contiguous() * 2).contiguous().realize()
  for i in range(4):
    x = Tensor(np.arange(16, dtype=np.float32) + i).shard(devices, 0).realize()
    np.testing.assert_array_equal(step(x).numpy(), (x.numpy() + 1) * 2)
  assert not graphs(step)

def test_freed_intermediates_are_reallocated():
  step, x, v = chain(40), Tensor.ones(16).contiguous().realize(), UOp.variable("v", -100, 100)
  assert (step(x, v.bind(2)).numpy() == 81).all()
  before = [graph_cache[g] for g in graphs(step)]
  assert step.captured is not None
  step.captured.free_intermediates()
  assert not any(g in graph_cache for g in graphs(step))
  assert (step(x, v.bind(3)).numpy() == 121).all()
  assert before != [graph_cache[g] for g in graphs(step)]

def test_debug_2_prints_times():
  """DEBUG=2 waits for each call and prints its time."""
  done = run('''
import tinygrad_llm
from tinygrad import Tensor, TinyJit
w = Tensor.ones(2048, 2048).contiguous().realize()
@TinyJit
def step(x):
  for _ in range(5): x = (w @ x).contiguous() * 2**-11
  return x.realize()
for _ in range(3): x = step(Tensor.ones(2048).contiguous().realize())
assert (x.numpy() == 1).all()
''', DEV="CPU", DEBUG="2", NO_COLOR="1")
  [line] = [line for line in done.stdout.splitlines() if "batched" in line][-1:]
  assert " tm " in line and "us/" in line or "ms/" in line

@extended
def test_model_matches_without_dispatch(model_file):
  """A model's tokens and decode_cost() are the same with and without dispatch."""
  code = f'''
import tinygrad_llm
llm = tinygrad_llm.load({str(model_file(types="Q8_0", vocab=384, context=96))!r})
print(list(llm.generate([5, 17, 300, 44], max_tokens=12, ignore_eos=True)), llm.decode_cost())
'''
  assert run(code, DEV="CPU").stdout == run(code, DEV="CPU", NO_DISPATCH="1", NO_THREADS="1").stdout

def test_host_time_per_kernel():
  """Host time a kernel is far below tinygrad's own loop, measured interleaved in one process."""
  n, x, v = 200, Tensor.zeros(16).contiguous().realize(), UOp.variable("v", -100, 100).bind(1)
  steps, best = {jit: chain(n, jit) for jit in (1, 2)}, dict.fromkeys((1, 2), float("inf"))
  assert graphs(steps[1]) and not graphs(steps[2])
  for _ in range(30):
    for jit, step in steps.items():
      start = time.perf_counter()
      step(x, v)
      best[jit] = min(best[jit], (time.perf_counter() - start) / n)
  print(f"host time a kernel: {best[1] * 1e6:.2f} us, tinygrad's own {best[2] * 1e6:.2f} us")
  assert best[1] < best[2] / 4
