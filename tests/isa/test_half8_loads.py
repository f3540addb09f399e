"""isa/half8_loads: halves that a thread loads at once, before and after."""
import pytest
from tests.gpu import gpu_renderers
from tests.support.random_sums import OUT
from tinygrad import dtypes
from tinygrad.codegen.late import coalesce
from tinygrad.codegen.opt import Opt, OptOps
from tinygrad.uop.ops import AxisType, KernelInfo, Ops, UOp
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.isa import half8_loads

pytestmark = pytest.mark.skipif(not is_on("hooks"), reason="hooks are off")

def width(target: str, dtype=dtypes.half, unrolled: int = 8) -> int:
  """Elements of the widest load of a sum with `unrolled` unrolled iterations."""
  row, k = UOp.range(32, 0, AxisType.WEAK), UOp.range(64, 1, AxisType.REDUCE)
  x = UOp.param(0, dtype, (32 * 64,)).index(row * 64 + k).cast(dtypes.float)
  store = UOp.param(OUT, dtypes.float, (32,)).index(row).store(x.reduce(k, arg=Ops.ADD))
  ast = UOp.sink(store.end(row), arg=KernelInfo(opts_to_apply=(Opt(OptOps.UNROLL, 0, unrolled),)))
  return max(u.max_numel() for u in gpu_renderers.lowered(ast, target) if u.op is Ops.LOAD and u.dtype is dtype)

@pytest.mark.parametrize("target", ["CUDA", "OpenCL"])
def test_adjacent_half4_loads_are_merged(monkeypatch, target):
  """load half4 a; load half4 b, adjacent --> load half8"""
  monkeypatch.setattr(coalesce, "getenv", half8_loads._getenv)
  assert width(target) == 4
  monkeypatch.setattr(coalesce, "getenv", half8_loads.getenv)
  assert (width(target), width(target, unrolled=4), width(target, dtypes.float)) == (8, 4, 4)

@pytest.mark.parametrize("target", ["AMD gfx1100", "PTX"])
def test_targets_without_half8(monkeypatch, target):
  monkeypatch.setattr(coalesce, "getenv", half8_loads.getenv)
  assert width(target) <= 4

def test_getenv_overrides_one_variable():
  """getenv() overrides only ALLOW_HALF8, and only while a kernel is lowered."""
  assert half8_loads.getenv("NO_SUCH", 7) == 7 and half8_loads.getenv("ALLOW_HALF8", 0) == 0
