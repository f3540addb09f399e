"""Weights of -1, 0 and 1, 256 a block; the scale is the last half. w: words."""
from __future__ import annotations
from tinygrad import Tensor
from tinygrad_llm.quants.bit_fields import chunked, half, octets, steps, to_float
from tinygrad_llm.quants.row import Row

def _tq2_0(w: Tensor) -> Tensor: return half(w[..., 16:]) * (to_float(chunked(w[..., :16], 2, 2, 4)) - 1)

def _trits(byte: Tensor, count: int) -> Tensor:
  """(..., bytes) -> (..., count * bytes), 0 to 2: first digits of all fractions byte/256 in base 3, then the next."""
  n = steps(count, 1, 1)
  power = ((n & 1) * 2 + 1) * (((n >> 1) & 1) * 8 + 1) * ((n >> 2) * 80 + 1)  # 3**n
  return (((byte.unsqueeze(-2) * power & 255) * 3) >> 8).flatten(-2)

def _tq1_0(w: Tensor) -> Tensor:
  """5 digits of 32 bytes, 5 of 16 bytes and 4 of 4 bytes."""
  b = octets(w[..., :13])
  q = _trits(b[..., :32], 5).cat(_trits(b[..., 32:48], 5), _trits(b[..., 48:], 4), dim=-1)
  return half(w[..., 13:]) * (to_float(q) - 1)

ROWS = (
  Row("TQ1_0", 56, _tq1_0),
  Row("TQ2_0", 68, _tq2_0, (16, 17)),
)
