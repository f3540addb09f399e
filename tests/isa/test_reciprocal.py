"""isa/reciprocal: a reciprocal in CUDA C, before and after."""
import pytest
from tests.gpu import gpu_renderers
from tests.support.random_sums import kernel, load
from tinygrad import dtypes
from tinygrad.renderer.cstyle import CUDARenderer
from tinygrad.uop.ops import Ops, PatternMatcher, UOp
from tinygrad_llm.patches.isa.reciprocal import pm_reciprocal, reciprocal

STOCK = PatternMatcher([rule for rule in CUDARenderer.string_rewrite.patterns if rule[1] is not reciprocal])
X = UOp.param(0, dtypes.float, (64,)).index(UOp.const(3))

def text(rules: PatternMatcher, x: UOp) -> str:
  ren = gpu_renderers.named("CUDA")
  ren.r = {x.src[0]: "x"}
  return rules.rewrite(x, ctx=ren)

def test_division_becomes_fdividef():
  """1 / x --> __fdividef(1, x)"""
  assert text(STOCK, X.reciprocal()) == "(1/x)"
  assert text(pm_reciprocal + STOCK, X.reciprocal()) == "__fdividef(1.0f,x)"

@pytest.mark.parametrize("dtype", [dtypes.half, dtypes.float64])
def test_other_float_types_unchanged(dtype):
  """Other float types are divided as before: the instruction is for 32 bits."""
  u = UOp(Ops.RECIPROCAL, dtype, (X.cast(dtype),))
  assert text(pm_reciprocal + STOCK, u) == text(STOCK, u) and "fdividef" not in text(STOCK, u)

@pytest.mark.parametrize("rules", [STOCK, pm_reciprocal + STOCK])
def test_rendered_kernel(monkeypatch, rules):
  monkeypatch.setattr(CUDARenderer, "string_rewrite", rules)
  source = gpu_renderers.render(kernel(load(0).reciprocal() + load(1)), "CUDA")
  assert ("__fdividef(1.0f,val0)" in source, "(1/val0)" in source) == (rules is not STOCK, rules is STOCK)
