"""4-bit floats with 1 sign, 2 exponent and 1 mantissa bits (e2m1), in small groups with a scale. b: bytes, w: words."""
from __future__ import annotations
from tinygrad import Tensor, dtypes
from tinygrad_llm.quants.bit_fields import fields, nibbles, split, to_float, to_int
from tinygrad_llm.quants.row import Row

def _e2m1(code: Tensor) -> Tensor:
  """4 bits -> twice the e2m1 float: 0 1 2 3 4 6 8 12, then the same negated; -0 becomes 0."""
  size, minus = to_int((0xC8643210 >> ((code & 7) << 2)) & 15), to_int(code >> 3)
  return to_float(((size ^ -minus) + minus) + 12) - 12

def _e8m0_half(e: Tensor) -> Tensor:
  """A byte e -> 2**(e-128), as a product of two normal powers of two, so that subnormal results are right, too."""
  low = e >> 1
  return ((low + 63) << 23).bitcast(dtypes.float32) * ((e - low + 63) << 23).bitcast(dtypes.float32)

def _ue4m3_half(x: Tensor) -> Tensor:
  """
  A byte -> half the unsigned float with 4 exponent bits (bias 7) and 3 mantissa bits. 127 (NaN) becomes 0; bit 7 is
  ignored.
  """
  exponent = (x >> 3) & 15
  is_normal, is_number = (exponent + 15) >> 4, ((x ^ 127) + 255) >> 8  # 0 or 1
  return to_float((((x & 7) + (is_normal << 3)) << (exponent - is_normal)) * is_number) * 2**-10

def _mxfp4(b: Tensor) -> Tensor: return _e8m0_half(b[..., :1]) * _e2m1(nibbles(b[..., 1:], 1))

def _nvfp4(w: Tensor) -> Tensor:
  """A block has 4 scales, then 4 groups of 16 weights. A group has the low nibbles of 8 bytes, then the high ones."""
  return _ue4m3_half(fields(w[..., 0], 8, (4, 8))).unsqueeze(-1) * _e2m1(nibbles(split(w[..., 1:], 4, 2), 4))

ROWS = (
  Row("MXFP4", 17, _mxfp4, (1, 17)),
  Row("NVFP4", 36, _nvfp4, (1, 9)),
)
