"""32-bit words for the tests of isa/: kernel arguments, lowered constants, and their numpy values."""
import numpy as np
from tinygrad.dtype import DType, _to_np_dtype, dtypes
from tinygrad.uop.ops import Ops, ParamArg, UOp
from tinygrad_llm.patches.ir.intrinsics import Language, named
from tinygrad_llm.patches.isa.fields_in_place import LOP3
from tinygrad_llm.patches.isa.table_lookup_gpu import PERMUTE

AND_XOR, PERMUTED = LOP3.texts[Language.CUDA], PERMUTE.texts[Language.CUDA]

WORDS = np.random.default_rng(0).integers(0, 1 << 32, (3, 64), dtype=np.uint32)
LEAVES = [UOp(Ops.PARAM, dtypes.uint32, (), ParamArg(i, dtypes.uint32)) for i in range(3)]
ALU = {Ops.AND: np.bitwise_and, Ops.OR: np.bitwise_or, Ops.XOR: np.bitwise_xor, Ops.SHL: np.left_shift,
       Ops.SHR: np.right_shift, Ops.ADD: np.add, Ops.MUL: np.multiply, Ops.WHERE: np.where, Ops.CMPLT: np.less}

def number(n: float, dtype: DType = dtypes.uint32) -> UOp:
  weak = dtypes.weakfloat if dtype is dtypes.float32 else dtypes.weakint
  return UOp(Ops.CAST, dtype, (UOp(Ops.CONST, weak, (), n),), dtype)

def value(u: UOp) -> np.ndarray:
  """An expression's values for all WORDS."""
  if u.op is Ops.PARAM: return WORDS[u.arg.slot]
  kind = _to_np_dtype(u.dtype)
  if u.op is Ops.CAST and u.src[0].op is Ops.CONST: return np.full(WORDS.shape[1], u.src[0].arg).astype(kind)
  src = [value(s) for s in u.src]
  if u.op is Ops.CAST: return src[0].astype(kind)
  if u.op is Ops.BITCAST: return src[0].view(kind)
  if named(u.arg) is LOP3: return src[0] & src[1] ^ src[2]
  if named(u.arg) is PERMUTE: return permuted(*src)
  return ALU[u.op](*src).astype(kind)

def permuted(a: np.ndarray, b: np.ndarray, at: np.ndarray) -> np.ndarray:
  """PTX's prmt: nibble i selects byte i from the bytes of b and a; its top bit replicates the byte's sign instead."""
  known, made = np.stack([a, b], -1).view(np.uint8), np.zeros_like(a)
  for i in range(4):
    code = at >> np.uint32(4 * i) & 15
    byte = np.take_along_axis(known, (code & 7).astype(np.int64)[:, None], 1)[:, 0]
    made |= np.where(code > 7, np.where(byte > 127, 255, 0), byte).astype(np.uint32) << np.uint32(8 * i)
  return made
