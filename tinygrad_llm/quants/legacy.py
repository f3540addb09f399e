"""Blocks of 32 weights (Q1_0: 128) with a scale; Q4_1 and Q5_1 also have a minimum. h: 16-bit halves, w: words."""
from __future__ import annotations
from tinygrad import Tensor
from tinygrad_llm.quants.bit_fields import bit_plane, fields, half, nibbles, signed_byte, to_float
from tinygrad_llm.quants.row import Row

def _q4_0(h: Tensor) -> Tensor: return half(h[..., :1]) * (to_float(nibbles(h[..., 1:], 2)) - 8)

def _q4_1(w: Tensor) -> Tensor: return half(w[..., :1]) * to_float(nibbles(w[..., 1:], 4)) + half(w[..., :1] >> 16)

def _q5_0(h: Tensor) -> Tensor:
  return half(h[..., :1]) * (to_float(nibbles(h[..., 3:], 2) + (bit_plane(h[..., 1:3], 16) << 4)) - 16)

def _q5_1(w: Tensor) -> Tensor:
  q = nibbles(w[..., 2:], 4) + (bit_plane(w[..., 1:2], 32) << 4)
  return half(w[..., :1]) * to_float(q) + half(w[..., :1] >> 16)

def _q8_0(h: Tensor) -> Tensor: return half(h[..., :1]) * signed_byte(fields(h[..., 1:], 8, (2, 8)).flatten(-2))

def _q1_0(h: Tensor) -> Tensor: return half(h[..., :1]) * (to_float(bit_plane(h[..., 1:], 16) << 1) - 1)

ROWS = (
  Row("Q1_0", 18, _q1_0, (1, 9)),
  Row("Q4_0", 18, _q4_0, (1, 9)),
  Row("Q4_1", 20, _q4_1, (1, 5)),
  Row("Q5_0", 22, _q5_0, (1, 3, 11)),
  Row("Q5_1", 24, _q5_1, (1, 2, 6)),
  Row("Q8_0", 34, _q8_0, (1, 17)),
)
