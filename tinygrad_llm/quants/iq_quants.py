"""IQ types: unevenly spaced levels, or codes that stand for 4 or 8 weights each. h: 16-bit halves, w: words."""
from __future__ import annotations
from tinygrad import Tensor
from tinygrad_llm.quants.bit_fields import bit_plane, fields, grouped, half, nibbles, octets, split, to_float, to_int
from tinygrad_llm.quants.grids import look_up
from tinygrad_llm.quants.row import Row

def _iq4(code: Tensor) -> Tensor:
  """4 bits -> the 16 levels of IQ4_NL and IQ4_XS, by a polynomial whose floor is exact for all 16 codes."""
  q = to_int(code)
  return to_float((((104 * q + 2036) * q - 89903) * q + 1584249) * q + 126684 >> 16) - 128

def _iq4_nl(h: Tensor) -> Tensor: return half(h[..., :1]) * _iq4(nibbles(h[..., 1:], 2))

def _iq4_xs(w: Tensor) -> Tensor:
  scale = fields(w[..., 1], 4, (8, 4)) + (fields(w[..., 0] >> 16, 2, (8, 2)) << 4)
  return grouped(8, half(w[..., :1]) * (to_float(scale) - 32), _iq4(nibbles(split(w[..., 2:], 8, 4), 4).flatten(-2)))

# *** blocks of 256 weights with codes for 4 or 8 weights. d is the first half, after two bytes of padding

def _d(w: Tensor) -> Tensor: return half(w[..., :1] >> 16)

def _even(signs: Tensor) -> Tensor:
  """7 sign bits -> 8: the last bit makes the number of ones even."""
  return signs + (((0x6996 >> ((signs ^ (signs >> 4)) & 15)) & 1) << 7)

def _with_signs(q: Tensor, signs: Tensor) -> Tensor:
  """
  Applies signs: q (..., codes, numbers per code), 256 in all; signs (..., 32) of 8 bits, 1 is minus -> (..., 256).
  """
  return to_float(split(q.flatten(-2), 32, 8) * (1 - (to_int(fields(signs, 1, (8, 1))) << 1))).flatten(-2)

def _scales_iq2(w: Tensor, scales: Tensor) -> Tensor:
  """16 scales: d times the nibbles of the words `scales`, plus 0.5, divided by 4."""
  return _d(w) * ((to_float(fields(scales, 4, (8, 4)).flatten(-2)) + 0.5) * 0.25)

def _iq2_xxs(w: Tensor) -> Tensor:
  """Each 32 weights have a word of 4 codes, and a word of 4 times 7 signs and the scale."""
  codes, rest = split(w[..., 1:], 8, 2)[..., 0], split(w[..., 1:], 8, 2)[..., 1]
  q = _with_signs(look_up("IQ2_XXS", octets(codes)), _even(fields(rest, 7, (4, 7)).flatten(-2)))
  return grouped(8, _d(w) * ((to_float(rest >> 28) + 0.5) * 0.25), q)

def _iq2_xs(w: Tensor) -> Tensor:
  """Each half holds a code in its low 9 bits, then 7 signs."""
  h = fields(w[..., 1:17], 16, (2, 16)).flatten(-2)
  return grouped(16, _scales_iq2(w, w[..., 17:]), _with_signs(look_up("IQ2_XS", h & 511), _even(h >> 9)))

def _iq2_s(w: Tensor) -> Tensor:
  code = octets(w[..., 1:9]) + (fields(w[..., 17:19], 2, (16, 2)).flatten(-2) << 8)
  return grouped(16, _scales_iq2(w, w[..., 19:]), _with_signs(look_up("IQ2_S", code), octets(w[..., 9:17])))

def _iq3_xxs(w: Tensor) -> Tensor:
  """16 words of 4 codes each, then for each 32 weights a word of 4 times 7 signs and the scale."""
  rest = w[..., 17:]
  q = _with_signs(look_up("IQ3_XXS", octets(w[..., 1:17])), _even(fields(rest, 7, (4, 7)).flatten(-2)))
  return grouped(8, _d(w) * ((to_float(rest >> 28) + 0.5) * 0.5), q)

def _iq3_s(w: Tensor) -> Tensor:
  code = octets(w[..., 1:17]) + (bit_plane(w[..., 17:19], 32) << 8)
  scale = _d(w) * to_float((fields(w[..., 27], 4, (8, 4)) << 1) + 1)
  return grouped(8, scale, _with_signs(look_up("IQ3_S", code), octets(w[..., 19:27])))

def _shifted(code: Tensor, minus: Tensor) -> Tensor:
  """
  IQ1's numbers -1, 0, 1 for code (..., 32), plus 1/8, or minus 1/8 where `minus` (..., groups) is 1 -> (..., 256).
  """
  groups = int(minus.shape[-1])
  q = split(look_up("IQ1_S", code).flatten(-2), groups, 256 // groups)
  return to_float((q << 3) - 7 - (to_int(minus) << 1).unsqueeze(-1)).flatten(-2) * 0.125

def _iq1_s(w: Tensor) -> Tensor:
  """
  Each 32 weights have 4 bytes of codes, and a half with the codes' 4 times 3 high bits, the scale and shift's sign.
  """
  h = fields(w[..., 9:], 16, (2, 16)).flatten(-2)
  code = octets(w[..., 1:9]) + (fields(h, 3, (4, 3)).flatten(-2) << 8)
  return grouped(8, _d(w) * to_float((((h >> 12) & 7) << 1) + 1), _shifted(code, h >> 15))

def _iq1_m(w: Tensor) -> Tensor:
  """No padding. 4 halves hold 4 scales of 3 bits each in their low bits; their high nibbles make up d."""
  low, high = w[..., 12:13], w[..., 13:]
  d = half(((low >> 12) & 15) + (low >> 28 << 4) + (((high >> 12) & 15) << 8) + (high >> 28 << 12))
  scale = d * to_float((fields(w[..., 12:], 3, (2, 16), (4, 3)).flatten(-3) << 1) + 1)
  h = fields(w[..., 8:12], 4, (8, 4)).flatten(-2)
  return grouped(16, scale, _shifted(octets(w[..., :8]) + ((h & 7) << 8), h >> 3))

ROWS = (
  Row("IQ4_NL",   18, _iq4_nl, (1, 9)),
  Row("IQ4_XS",  136, _iq4_xs, (2, 34)),
  Row("IQ1_S",    52, _iq1_s, front=2, grid=True),
  Row("IQ1_M",    56, _iq1_m, grid=True),
  Row("IQ2_XXS",  68, _iq2_xxs, front=2, grid=True),
  Row("IQ2_XS",   76, _iq2_xs, front=2, grid=True),
  Row("IQ2_S",    84, _iq2_s, front=2, grid=True),
  Row("IQ3_XXS", 100, _iq3_xxs, front=2, grid=True),
  Row("IQ3_S",   112, _iq3_s, front=2, grid=True),
)
