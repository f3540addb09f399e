"""K-quants: blocks of 256 weights in groups. A group's scale is an integer times the block's scale. w: words."""
from __future__ import annotations
from tinygrad import Tensor
from tinygrad_llm.quants.bit_fields import (
  chunked, fields, grouped, half, halves, nibbles, reorder, signed_byte, split, steps, to_float)
from tinygrad_llm.quants.row import Row

def _planes(w: Tensor, chunks: int, count: int) -> Tensor:
  """(..., 8) -> (..., 256), one bit per weight. All chunks share 32 bytes; weight (c, f, i, b) has bit c*count+f."""
  return reorder(fields(w, 1, (chunks, count), (count, 1), (4, 8)), 1, 2, 0, 3)

def _grouped_min(groups: int, scale: Tensor, q: Tensor) -> Tensor:
  """q (..., 256) times scale[..., 0, :] minus scale[..., 1, :], per group; scale (..., 2, groups)."""
  return grouped(groups, scale[..., 0, :], q) - scale[..., 1, :].unsqueeze(-1)

def _scales_k4(w: Tensor) -> Tensor:
  """
  Q4_K's and Q5_K's words -> (..., 2, 8): the scales (k = 0) and mins (k = 1), 6 bits each, times d and dmin.

  Byte b of word 1+k has number b in its low 6 bits (h = 0). Its top 2 bits are the top 2 bits of number 4+b (h = 1).
  The low 4 bits of number 4+b are nibble k of byte b of word 3.
  """
  k, h, b = steps(2, 4, 2), steps(2, 1, 1), steps(4, 8)
  own, rest = split(w[..., 1:3], 2, 1, 1), split(w[..., 3:4], 1, 1, 1)
  scale = (((own >> (b + h * 6)) & (63 - h * 60)) << (h * 4)) + ((rest >> (b + k)) & (h * 15))
  return halves(w[..., 0]).unsqueeze(-1) * to_float(scale.flatten(-2))

def _q2_k(w: Tensor) -> Tensor:
  scale = split(reorder(fields(w[..., :4], 4, (4, 8), (2, 4)), 2, 0, 1), 2, 16)
  return _grouped_min(16, halves(w[..., 20]).unsqueeze(-1) * to_float(scale), to_float(chunked(w[..., 4:20], 2, 2, 4)))

def _q3_k(w: Tensor) -> Tensor:
  """
  The low 4 bits of the 16 scales are the nibbles of 8 bytes, all low nibbles first. Their top 2 bits are the bit pairs
  of 4 bytes.
  """
  scale = nibbles(w[..., 24:26], 4) + (fields(w[..., 26], 2, (4, 2), (4, 8)).flatten(-2) << 4)
  q = chunked(w[..., 8:24], 2, 2, 4) + (_planes(w[..., :8], 2, 4) << 2)
  return grouped(16, half(w[..., 27:]) * (to_float(scale) - 32), to_float(q) - 4)

def _q4_k(w: Tensor) -> Tensor: return _grouped_min(8, _scales_k4(w), to_float(chunked(w[..., 4:], 4, 4, 2)))

def _q5_k(w: Tensor) -> Tensor:
  q = chunked(w[..., 12:], 4, 4, 2) + (_planes(w[..., 4:12], 4, 2) << 4)
  return _grouped_min(8, _scales_k4(w), to_float(q))

def _q6_k(w: Tensor) -> Tensor:
  """The low 4 bits of the weights come in chunks of 64 bytes, the top 2 bits in chunks of 32."""
  low = reorder(fields(split(w[..., :32], 2, 16), 4, (2, 4), (4, 8)), 0, 2, 1, 3)
  scale = half(w[..., 52:]) * signed_byte(fields(w[..., 48:52], 8, (4, 8)).flatten(-2))
  return grouped(16, scale, to_float(low + (chunked(w[..., 32:48], 2, 2, 4) << 4)) - 32)

# for Q6_K and Q3_K, a thread wants the scales first, and a chunk's high bits before its low bits
ROWS = (
  Row("Q2_K",  84, _q2_k, (4, 20, 21)),
  Row("Q3_K", 112, _q3_k, (8, 24, 28), ((1, 2), (1, 0, 1))),
  Row("Q4_K", 144, _q4_k, (4, 36)),
  Row("Q5_K", 176, _q5_k, (4, 12, 44)),
  Row("Q6_K", 212, _q6_k, (32, 48, 52, 53), ((1, 2), (2, 1, 0), (1, 3))),
)
