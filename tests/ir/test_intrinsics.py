"""ir/intrinsics.py: what passes name themselves has the pipe that they say."""
import pytest
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import Ops, UOp

from tinygrad_llm.patches.ir import intrinsics
from tinygrad_llm.patches.isa import dot_int8_gpu, shuffle_reduce, table_lookup
from tinygrad_llm.patches.search.cost import instructions

def custom(text: str) -> UOp: return UOp(Ops.CUSTOM, dtypes.int, (), text)

def test_pipes():
  for spelled in (dot_int8_gpu.CUDA, dot_int8_gpu.PTX):
    assert instructions.pipe(custom(spelled.dot)) == "dot"
    assert instructions.pipe(custom(spelled.select)) == "int"
  for text in shuffle_reduce.EXCHANGE.values():
    assert {instructions.pipe(custom(text.format(bit))) for bit in (1, 2, 4, 8, 16)} == {"shuffle"}
  assert instructions.pipe(custom(table_lookup.PSHUFB)) == "shuffle"
  assert instructions.pipe(custom("fold_shuffled_flags({0})")) == "int"  # no C is read

def test_one_text_has_one_pipe():
  assert intrinsics.register(table_lookup.PSHUFB, intrinsics.SHUFFLE) == table_lookup.PSHUFB
  with pytest.raises(ValueError, match="shuffle, and dot"): intrinsics.register(table_lookup.PSHUFB, intrinsics.DOT)
