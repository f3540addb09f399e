"""isa/ptx: a pass's instruction in PTX gets a register of its own."""
from types import SimpleNamespace

import pytest
from tests.gpu import gpu_renderers
from tests.support.random_sums import OUT
from tinygrad import dtypes
from tinygrad.uop.ops import AxisType, KernelInfo, Ops, UOp
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.ir.intrinsics import Language
from tinygrad_llm.patches.isa.dot_int8_gpu import DOT4
from tinygrad_llm.patches.isa.ptx import instruction
from tinygrad_llm.patches.isa.shuffle_reduce import EXCHANGES

A, B, C = (UOp.variable(name, 0, 9, dtype) for name, dtype in zip("abc", (dtypes.uint32, dtypes.uint32, dtypes.int)))

def context(*uops: UOp) -> SimpleNamespace:
  return SimpleNamespace(r={A: "%a", B: "%b", C: "%c"}, uops=[A, B, C, *uops],
                         types={dtypes.int: "s32", dtypes.float: "f32"})

def test_custom_instruction():
  """CUSTOM dp4a(a, b, c) --> .reg .s32 %custom3; dp4a.s32.s32 %custom3, %a, %b, %c;"""
  dot = UOp(Ops.CUSTOM, dtypes.int, (A, B, C), DOT4.texts[Language.PTX])
  ctx = context(dot)
  assert instruction(ctx, dot) == [".reg .s32 %custom3;", "dp4a.s32.s32 %custom3, %a, %b, %c;"]
  assert ctx.r[dot] == "%custom3"  # where its users look it up

def test_instructions_have_distinct_registers():
  one, two = (UOp(Ops.CUSTOM, dtypes.float, (A,), EXCHANGES[bit].texts[Language.PTX]) for bit in (1, 2))
  ctx = context(one, two)
  assert [instruction(ctx, u)[0] for u in (one, two)] == [".reg .f32 %custom3;", ".reg .f32 %custom4;"]

def test_rejects_c_text():
  """C text is no PTX instruction: it has no placeholder for a result."""
  u = UOp(Ops.CUSTOM, dtypes.int, (A, B, C), DOT4.texts[Language.CUDA])
  assert instruction(ctx := context(u), u) is None and u not in ctx.r

@pytest.mark.skipif(not (is_on("ptx") and is_on("shuffle_reduce")), reason="they are off")
def test_shuffle_in_kernel():
  """A shuffled value is used through its register."""
  i = UOp.range(32, 0, AxisType.LOCAL)
  x, y = (UOp.param(slot, dtypes.float, (32,)).index(i) for slot in (0, OUT))
  other = UOp(Ops.CUSTOM, dtypes.float, (x,), EXCHANGES[4].texts[Language.PTX])
  source = gpu_renderers.render(UOp.sink(y.store(other * 2.0).end(i), arg=KernelInfo(opts_to_apply=())), "PTX")
  lines = [line.split() for line in source.splitlines()]
  (_, register, *_), = [words for words in lines if words[:1] == ["shfl.sync.bfly.b32"]]
  assert [".reg", ".f32", f"{register.rstrip(',')};"] in lines
  assert any(words[:1] == ["mul.f32"] and register in words for words in lines)
