"""Ternary types: weights of -1, 0 and 1 in blocks of 256; the scale is the last half. w: words."""
from __future__ import annotations
from tinygrad import Tensor
from tinygrad_llm.quants.bit_fields import chunked, half, octets, steps, to_float
from tinygrad_llm.quants.row import Row

def _tq2_0(w: Tensor) -> Tensor: return half(w[..., 16:]) * (to_float(chunked(w[..., :16], 2, 2, 4)) - 1)

def _trits(byte: Tensor, count: int) -> Tensor:
  """
  (..., bytes) -> (..., count * bytes), 0 to 2: the base-3 digits of the fractions byte/256. First digits of all bytes
  come first, then second digits, and so on.
  """
  n = steps(count, 1, 1)
  power = ((n & 1) * 2 + 1) * (((n >> 1) & 1) * 8 + 1) * ((n >> 2) * 80 + 1)  # 3**n
  return (((byte.unsqueeze(-2) * power & 255) * 3) >> 8).flatten(-2)

def _tq1_0(w: Tensor) -> Tensor:
  """A block has 5 digits in each of 32 bytes, 5 in each of 16 bytes and 4 in each of 4 bytes."""
  b = octets(w[..., :13])
  q = _trits(b[..., :32], 5).cat(_trits(b[..., 32:48], 5), _trits(b[..., 48:], 4), dim=-1)
  return half(w[..., 13:]) * (to_float(q) - 1)

ROWS = (
  Row("TQ1_0", 56, _tq1_0),
  Row("TQ2_0", 68, _tq2_0, (16, 17)),
)
