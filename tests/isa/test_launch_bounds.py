"""isa/launch_bounds: a kernel's launch bounds in CUDA C, before and after."""
import pytest
from tinygrad_llm.patches.isa import launch_bounds
from tinygrad_llm.patches.isa.launch_bounds import FILE, REGISTERS, blocks

@pytest.mark.parametrize(("threads", "count"), [
  (32, 16), (33, 8), (64, 8), (96, 5), (128, 4), (129, 3), (256, 2), (512, 1), (1024, 1)])
def test_blocks_per_multiprocessor(threads, count):
  """As many blocks as fit at 128 registers a thread, in whole warps; at least one."""
  warps = -(-threads // 32)
  assert blocks(threads) == count and (count * warps * 32 * REGISTERS <= FILE or count == 1)
  assert (count + 1) * warps * 32 * REGISTERS > FILE

@pytest.mark.parametrize(("before", "after"), [
  ("__global__ void __launch_bounds__(128) f(", "__global__ void __launch_bounds__(128, 4) f("),
  ("void __launch_bounds__(1) f(", "void __launch_bounds__(1, 16) f("), ("void f(int a) {", "void f(int a) {")])
def test_launch_bounds_in_source(monkeypatch, before, after):
  """__launch_bounds__(threads) --> __launch_bounds__(threads, blocks)"""
  monkeypatch.setattr(launch_bounds, "_render_kernel", lambda ren, name, **options: before, raising=False)
  assert launch_bounds.render_kernel(None, "f", uops=[]) == after
