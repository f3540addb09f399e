"""
Quantised weights: the table of GGML types, how their blocks lie in memory, and the lazy expression that decodes them.

A weight keeps the bits that the file has, seen as uint32 words; only what makes rows, or fields, whole words is padded.
How the words lie in memory is layout.py's business, for types whose row of the table names the fields of a block; the
others keep the file's order. A decode expression is arithmetic on those words: shifts, masks and products that are
constant along an axis, and no table, select or gather, so that it stays inside the kernel that uses the weight. Two
exceptions: types with a grid look numbers up, and TQ1_0 has selects until it is compiled, because the parts of its
blocks differ in shape.
Layouts: ggml-common.h and ggml-quants.c of llama.cpp; OCP Microscaling Formats (MX) 1.0 for e2m1 and e8m0.
"""
from __future__ import annotations
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias
import numpy as np
from tinygrad import Tensor, dtypes
from tinygrad.dtype import DType
from tinygrad.helpers import ceildiv
from tinygrad.renderer import Renderer
from tinygrad_llm.errors import InputError
from tinygrad_llm.gguf import GGML_TYPES, TensorInfo
from tinygrad_llm.layout import Blocks, Layout, Units, choose, unpack
from tinygrad_llm.quant_grids import look_up

Buffer: TypeAlias = bytes | bytearray | memoryview | np.ndarray

@dataclass(frozen=True)
class QuantType:
  """
  One GGML type.

  id: its number in a GGUF file; block: weights a block; nbytes, held: bytes of a block in the file, in memory;
  dtype: its storage in memory; decode: (..., blocks, units) -> float32 (..., blocks, [a block's weights in order]).
  The units of a block of uint32 are words where `held` is a multiple of 4, else 16-bit halves or bytes, one a uint32.
  front: how many of the padding's bytes come before a block, not after it; grid: whether decode looks numbers up;
  fields: the last unit + 1 of each part of a block that may lie apart from the others; none: it stays as in the file.
  """
  id: int
  name: str
  block: int
  nbytes: int
  held: int
  dtype: DType
  decode: Callable[[Any], Tensor]
  front: int = 0
  grid: bool = False
  fields: tuple[int, ...] = ()

  @property
  def unit(self) -> int:
    """Bytes of a unit of a block of uint32."""
    return 1 if self.held % 2 else 2 if self.held % 4 else 4

  def row_nbytes(self, n: int) -> int:
    """Bytes of a row of n weights in the file. ValueError if they are not whole blocks."""
    if n <= 0 or n % self.block: raise ValueError(f"{n} weights are not whole blocks of {self.block} ({self.name})")
    return n // self.block * self.nbytes

  def row_items(self, n: int) -> int:
    """Items (of `dtype`) of a row of n weights in memory."""
    return ceildiv(self.row_nbytes(n) // self.nbytes * self.held, self.dtype.itemsize)

  def verbatim(self, n: int) -> bool:
    """Whether rows of n weights lie in memory just as in the file, and may be read in place without pack()."""
    return self.row_items(n) * self.dtype.itemsize == self.row_nbytes(n)

# *** what the decode expressions are made of

def _steps(count: int, step: int, trailing: int = 0) -> Tensor:
  """0, step, 2*step, .. and `trailing` axes of size 1, uint32. It is no buffer: it becomes the index of a loop."""
  return (Tensor.arange(count) * step).cast(dtypes.uint32).reshape(count, *[1] * trailing)

def _fields(w: Tensor, bits: int, *axes: tuple[int, int]) -> Tensor:
  """(...) -> (..., count, ..): fields of `bits` bits of each unit; each pair (count, distance in bits) is an axis."""
  shift = sum((_steps(*axis, len(axes) - i - 1) for i, axis in enumerate(axes)), start=_steps(1, 0))
  return (w.reshape(*w.shape, *[1] * len(axes)) >> shift) & ((1 << bits) - 1)

def _split(x: Tensor, *shape: int) -> Tensor:
  """(..., prod(shape)) -> (..., *shape)"""
  return x.reshape(*x.shape[:-1], *shape)

def _order(x: Tensor, *order: int) -> Tensor:
  """The last len(order) axes in that order, made one."""
  lead = x.ndim - len(order)
  return x.permute(*range(lead), *[lead + i for i in order]).flatten(lead)

def _float(x: Tensor) -> Tensor: return x.cast(dtypes.float32)
def _int(x: Tensor) -> Tensor: return x.cast(dtypes.int32)
def _signed(byte: Tensor) -> Tensor: return _float(byte ^ 128) - 128
def _half(w: Tensor) -> Tensor: return _float((w & 0xFFFF).cast(dtypes.uint16).bitcast(dtypes.float16))
def _halves(w: Tensor) -> Tensor: return _half(_fields(w, 16, (2, 16)))  # (...) -> (..., 2)

# *** codes that stand for other numbers, as arithmetic

def _e2m1(code: Tensor) -> Tensor:
  """4 bits -> twice the float of 1 sign, 2 exponent and 1 mantissa bits: 0 1 2 3 4 6 8 12, then negated; -0 is 0."""
  size, minus = _int((0xC8643210 >> ((code & 7) << 2)) & 15), _int(code >> 3)
  return _float(((size ^ -minus) + minus) + 12) - 12

def _iq4(code: Tensor) -> Tensor:
  """4 bits -> the 16 levels of IQ4_NL and IQ4_XS, by a polynomial whose floor is exact at all of them."""
  q = _int(code)
  return _float((((104 * q + 2036) * q - 89903) * q + 1584249) * q + 126684 >> 16) - 128

def _e8m0_half(e: Tensor) -> Tensor:
  """A byte -> 2**(e-128), as the product of two normal powers of two: right where the result is subnormal too."""
  low = e >> 1
  return ((low + 63) << 23).bitcast(dtypes.float32) * ((e - low + 63) << 23).bitcast(dtypes.float32)

def _ue4m3_half(x: Tensor) -> Tensor:
  """A byte -> half the unsigned float of 4 exponent (bias 7) and 3 mantissa bits; 127 (NaN) is 0, bit 7 is ignored."""
  exponent = (x >> 3) & 15
  is_normal, is_number = (exponent + 15) >> 4, ((x ^ 127) + 255) >> 8  # 0 or 1
  return _float((((x & 7) + (is_normal << 3)) << (exponent - is_normal)) * is_number) * 2**-10

# *** blocks of 32 weights (NVFP4: 64), units -> (..., 32). h: 16-bit halves, w: words, b: bytes

def _nibbles(units: Tensor, unit_bytes: int) -> Tensor:
  """(..., units) -> (..., weights): all low nibbles, then all high ones."""
  return _order(_fields(units, 4, (2, 4), (unit_bytes, 8)), 1, 0, 2)

def _bits(units: Tensor, unit_bits: int) -> Tensor:
  """(..., units) -> (..., weights): bit j is weight j's."""
  return _fields(units, 1, (unit_bits, 1)).flatten(-2)

def _q4_0(h: Tensor) -> Tensor: return _half(h[..., :1]) * (_float(_nibbles(h[..., 1:], 2)) - 8)

def _q4_1(w: Tensor) -> Tensor: return _half(w[..., :1]) * _float(_nibbles(w[..., 1:], 4)) + _half(w[..., :1] >> 16)

def _q5_0(h: Tensor) -> Tensor:
  return _half(h[..., :1]) * (_float(_nibbles(h[..., 3:], 2) + (_bits(h[..., 1:3], 16) << 4)) - 16)

def _q5_1(w: Tensor) -> Tensor:
  q = _nibbles(w[..., 2:], 4) + (_bits(w[..., 1:2], 32) << 4)
  return _half(w[..., :1]) * _float(q) + _half(w[..., :1] >> 16)

def _q8_0(h: Tensor) -> Tensor: return _half(h[..., :1]) * _signed(_fields(h[..., 1:], 8, (2, 8)).flatten(-2))

def _iq4_nl(h: Tensor) -> Tensor: return _half(h[..., :1]) * _iq4(_nibbles(h[..., 1:], 2))

def _mxfp4(b: Tensor) -> Tensor: return _e8m0_half(b[..., :1]) * _e2m1(_nibbles(b[..., 1:], 1))

def _nvfp4(w: Tensor) -> Tensor:
  """4 scales, then 4 groups of 16 weights: the low nibbles of 8 bytes, then the high ones."""
  return _ue4m3_half(_fields(w[..., 0], 8, (4, 8))).unsqueeze(-1) * _e2m1(_nibbles(_split(w[..., 1:], 4, 2), 4))

# *** blocks of 256 weights, words -> (..., groups, weights of a group)
# Their weights are fields of chunks (c) of 32 bytes: (c, field f, word i, byte b) is the order of the weights.

def _chunks(w: Tensor, bits: int, chunks: int, fields: int) -> Tensor:
  """(..., chunks*8) -> (..., 256): the low bits of all bytes of a chunk, then the next."""
  return _order(_fields(_split(w, chunks, 8), bits, (fields, bits), (4, 8)), 0, 2, 1, 3)

def _planes(w: Tensor, chunks: int, fields: int) -> Tensor:
  """(..., 8) -> (..., 256): one bit a weight: all chunks share 32 bytes, (c, f, i, b) has bit c*fields+f."""
  return _order(_fields(w, 1, (chunks, fields), (fields, 1), (4, 8)), 1, 2, 0, 3)

def _grouped(groups: int, scale: Tensor, q: Tensor) -> Tensor:
  """scale (..., groups) times q (..., 256)"""
  return scale.unsqueeze(-1) * _split(q, groups, 256 // groups)

def _grouped_min(groups: int, scale: Tensor, q: Tensor) -> Tensor:
  """scale (..., 2, groups): one that multiplies q (..., 256), one that is subtracted"""
  return _grouped(groups, scale[..., 0, :], q) - scale[..., 1, :].unsqueeze(-1)

def _scales_k4(w: Tensor) -> Tensor:
  """
  Q4_K's and Q5_K's words -> (..., 2, 8): the scales (k = 0) and mins (k = 1), 6 bits each, times d and dmin.

  Byte b of word 1+k has number b in its low 6 bits (h = 0), and above them the top 2 bits of number 4+b (h = 1), whose
  low 4 bits are nibble k of byte b of word 3.
  """
  k, h, b = _steps(2, 4, 2), _steps(2, 1, 1), _steps(4, 8)
  own, rest = _split(w[..., 1:3], 2, 1, 1), _split(w[..., 3:4], 1, 1, 1)
  scale = (((own >> (b + h * 6)) & (63 - h * 60)) << (h * 4)) + ((rest >> (b + k)) & (h * 15))
  return _halves(w[..., 0]).unsqueeze(-1) * _float(scale.flatten(-2))

def _q2_k(w: Tensor) -> Tensor:
  scale = _split(_order(_fields(w[..., :4], 4, (4, 8), (2, 4)), 2, 0, 1), 2, 16)
  return _grouped_min(16, _halves(w[..., 20]).unsqueeze(-1) * _float(scale), _float(_chunks(w[..., 4:20], 2, 2, 4)))

def _q3_k(w: Tensor) -> Tensor:
  """The low 4 bits of the 16 scales are the nibbles of 8 bytes, all low ones first; the top 2 the pairs of 4 bytes."""
  scale = _nibbles(w[..., 24:26], 4) + (_fields(w[..., 26], 2, (4, 2), (4, 8)).flatten(-2) << 4)
  q = _chunks(w[..., 8:24], 2, 2, 4) + (_planes(w[..., :8], 2, 4) << 2)
  return _grouped(16, _half(w[..., 27:]) * (_float(scale) - 32), _float(q) - 4)

def _q4_k(w: Tensor) -> Tensor: return _grouped_min(8, _scales_k4(w), _float(_chunks(w[..., 4:], 4, 4, 2)))

def _q5_k(w: Tensor) -> Tensor:
  q = _chunks(w[..., 12:], 4, 4, 2) + (_planes(w[..., 4:12], 4, 2) << 4)
  return _grouped_min(8, _scales_k4(w), _float(q))

def _q6_k(w: Tensor) -> Tensor:
  """The low 4 bits come in chunks of 64 bytes, the top 2 in chunks of 32."""
  low = _order(_fields(_split(w[..., :32], 2, 16), 4, (2, 4), (4, 8)), 0, 2, 1, 3)
  scale = _half(w[..., 52:]) * _signed(_fields(w[..., 48:52], 8, (4, 8)).flatten(-2))
  return _grouped(16, scale, _float(low + (_chunks(w[..., 32:48], 2, 2, 4) << 4)) - 32)

def _iq4_xs(w: Tensor) -> Tensor:
  scale = _fields(w[..., 1], 4, (8, 4)) + (_fields(w[..., 0] >> 16, 2, (8, 2)) << 4)
  return _grouped(8, _half(w[..., :1]) * (_float(scale) - 32), _iq4(_nibbles(_split(w[..., 2:], 8, 4), 4).flatten(-2)))

# *** ternary blocks of 256 weights: d is the last half

def _tq2_0(w: Tensor) -> Tensor: return _half(w[..., 16:]) * (_float(_chunks(w[..., :16], 2, 2, 4)) - 1)

def _trits(byte: Tensor, count: int) -> Tensor:
  """(..., bytes) -> (..., count * bytes), 0 to 2: first digits of all fractions byte/256 in base 3, then the next."""
  n = _steps(count, 1, 1)
  power = ((n & 1) * 2 + 1) * (((n >> 1) & 1) * 8 + 1) * ((n >> 2) * 80 + 1)  # 3**n
  return (((byte.unsqueeze(-2) * power & 255) * 3) >> 8).flatten(-2)

def _tq1_0(w: Tensor) -> Tensor:
  """5 digits of 32 bytes, 5 of 16 bytes and 4 of 4 bytes."""
  b = _bytes(w[..., :13])
  q = _trits(b[..., :32], 5).cat(_trits(b[..., 32:48], 5), _trits(b[..., 48:], 4), dim=-1)
  return _half(w[..., 13:]) * (_float(q) - 1)

# *** blocks of 256 weights with codes for 4 or 8 of them. d is the first half, after two bytes of padding

def _bytes(w: Tensor) -> Tensor: return _fields(w, 8, (4, 8)).flatten(-2)

def _d(w: Tensor) -> Tensor: return _half(w[..., :1] >> 16)

def _even(signs: Tensor) -> Tensor:
  """7 bits -> 8: the last one makes the number of ones even."""
  return signs + (((0x6996 >> ((signs ^ (signs >> 4)) & 15)) & 1) << 7)

def _with_signs(q: Tensor, signs: Tensor) -> Tensor:
  """q (..., codes, numbers of a code), 256 in all; signs (..., 32), 8 bits, ones for minus -> (..., 256)"""
  return _float(_split(q.flatten(-2), 32, 8) * (1 - (_int(_fields(signs, 1, (8, 1))) << 1))).flatten(-2)

def _scales_iq2(w: Tensor, scales: Tensor) -> Tensor:
  """16 scales, each the nibble of a word of `scales`."""
  return _d(w) * ((_float(_fields(scales, 4, (8, 4)).flatten(-2)) + 0.5) * 0.25)

def _iq2_xxs(w: Tensor) -> Tensor:
  """For 32 weights a word of 4 codes, and one of 4 times 7 signs and the scale."""
  codes, rest = _split(w[..., 1:], 8, 2)[..., 0], _split(w[..., 1:], 8, 2)[..., 1]
  q = _with_signs(look_up("IQ2_XXS", _bytes(codes)), _even(_fields(rest, 7, (4, 7)).flatten(-2)))
  return _grouped(8, _d(w) * ((_float(rest >> 28) + 0.5) * 0.25), q)

def _iq2_xs(w: Tensor) -> Tensor:
  """A half has a code in its low 9 bits, and 7 signs."""
  h = _fields(w[..., 1:17], 16, (2, 16)).flatten(-2)
  return _grouped(16, _scales_iq2(w, w[..., 17:]), _with_signs(look_up("IQ2_XS", h & 511), _even(h >> 9)))

def _iq2_s(w: Tensor) -> Tensor:
  code = _bytes(w[..., 1:9]) + (_fields(w[..., 17:19], 2, (16, 2)).flatten(-2) << 8)
  return _grouped(16, _scales_iq2(w, w[..., 19:]), _with_signs(look_up("IQ2_S", code), _bytes(w[..., 9:17])))

def _iq3_xxs(w: Tensor) -> Tensor:
  """8 words of 8 codes, then for 32 weights a word of 4 times 7 signs and the scale."""
  rest = w[..., 17:]
  q = _with_signs(look_up("IQ3_XXS", _bytes(w[..., 1:17])), _even(_fields(rest, 7, (4, 7)).flatten(-2)))
  return _grouped(8, _d(w) * ((_float(rest >> 28) + 0.5) * 0.5), q)

def _iq3_s(w: Tensor) -> Tensor:
  code = _bytes(w[..., 1:17]) + (_bits(w[..., 17:19], 32) << 8)
  scale = _d(w) * _float((_fields(w[..., 27], 4, (8, 4)) << 1) + 1)
  return _grouped(8, scale, _with_signs(look_up("IQ3_S", code), _bytes(w[..., 19:27])))

def _shifted(code: Tensor, minus: Tensor) -> Tensor:
  """IQ1's numbers -1, 0, 1 at code (..., 32), plus 1/8, or minus 1/8 where `minus` (..., groups) is 1 -> (..., 256)"""
  groups = int(minus.shape[-1])
  q = _split(look_up("IQ1_S", code).flatten(-2), groups, 256 // groups)
  return _float((q << 3) - 7 - (_int(minus) << 1).unsqueeze(-1)).flatten(-2) * 0.125

def _iq1_s(w: Tensor) -> Tensor:
  """For 32 weights 4 bytes, and a half of the codes' 4 times 3 high bits, the scale, and the sign of the shift."""
  h = _fields(w[..., 9:], 16, (2, 16)).flatten(-2)
  code = _bytes(w[..., 1:9]) + (_fields(h, 3, (4, 3)).flatten(-2) << 8)
  return _grouped(8, _d(w) * _float((((h >> 12) & 7) << 1) + 1), _shifted(code, h >> 15))

def _iq1_m(w: Tensor) -> Tensor:
  """No padding; d is the high nibbles of 4 halves that have 4 scales of 3 bits each below them."""
  low, high = w[..., 12:13], w[..., 13:]
  d = _half(((low >> 12) & 15) + (low >> 28 << 4) + (((high >> 12) & 15) << 8) + (high >> 28 << 12))
  scale = d * _float((_fields(w[..., 12:], 3, (2, 16), (4, 3)).flatten(-3) << 1) + 1)
  h = _fields(w[..., 8:12], 4, (8, 4)).flatten(-2)
  return _grouped(16, scale, _shifted(_bytes(w[..., :8]) + ((h & 7) << 8), h >> 3))

# *** the table: name, bytes of a block in memory, storage, decode

def _row(name: str, held: int, dtype: DType, decode: Callable[[Any], Tensor], fields: tuple[int, ...] = (),
         front=0, grid=False) -> QuantType:
  id = next(id for id, known in GGML_TYPES.items() if known[0] == name)
  return QuantType(id, *GGML_TYPES[id], held, dtype, decode, front, grid, fields)

# stored numbers that gguf-py leaves alone. Those of 8 bytes become float32 in memory: not every device has them
_NUMBERS = {"F64": np.float64, "I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64}

QUANT_TYPES: dict[int, QuantType] = {qt.id: qt for qt in (
  _row("F32",      4, dtypes.float32, lambda x: x),
  _row("F16",      2, dtypes.float16, _float),
  _row("BF16",     2, dtypes.uint32, lambda h: (h << 16).bitcast(dtypes.float32)),
  _row("F64",      4, dtypes.float32, lambda x: x),
  _row("I8",       1, dtypes.int8, _float),
  _row("I16",      2, dtypes.int16, _float),
  _row("I32",      4, dtypes.int32, _float),
  _row("I64",      4, dtypes.float32, lambda x: x),
  _row("Q4_0",    18, dtypes.uint32, _q4_0, (1, 9)),
  _row("Q4_1",    20, dtypes.uint32, _q4_1, (1, 5)),
  _row("Q5_0",    22, dtypes.uint32, _q5_0, (1, 3, 11)),
  _row("Q5_1",    24, dtypes.uint32, _q5_1, (1, 2, 6)),
  _row("Q8_0",    34, dtypes.uint32, _q8_0, (1, 17)),
  _row("Q2_K",    84, dtypes.uint32, _q2_k, (4, 20, 21)),
  _row("Q3_K",   112, dtypes.uint32, _q3_k, (8, 24, 28)),
  _row("Q4_K",   144, dtypes.uint32, _q4_k, (4, 36)),
  _row("Q5_K",   176, dtypes.uint32, _q5_k, (4, 12, 44)),
  _row("Q6_K",   212, dtypes.uint32, _q6_k, (32, 48, 52, 53)),
  _row("IQ4_NL",  18, dtypes.uint32, _iq4_nl, (1, 9)),
  _row("IQ4_XS", 136, dtypes.uint32, _iq4_xs, (2, 34)),
  _row("MXFP4",   17, dtypes.uint32, _mxfp4, (1, 17)),
  _row("NVFP4",   36, dtypes.uint32, _nvfp4, (1, 9)),
  _row("TQ1_0",   56, dtypes.uint32, _tq1_0),
  _row("TQ2_0",   68, dtypes.uint32, _tq2_0, (16, 17)),
  _row("IQ1_S",   52, dtypes.uint32, _iq1_s, front=2, grid=True),
  _row("IQ1_M",   56, dtypes.uint32, _iq1_m, grid=True),
  _row("IQ2_XXS", 68, dtypes.uint32, _iq2_xxs, front=2, grid=True),
  _row("IQ2_XS",  76, dtypes.uint32, _iq2_xs, front=2, grid=True),
  _row("IQ2_S",   84, dtypes.uint32, _iq2_s, front=2, grid=True),
  _row("IQ3_XXS", 100, dtypes.uint32, _iq3_xxs, front=2, grid=True),
  _row("IQ3_S",   112, dtypes.uint32, _iq3_s, front=2, grid=True),
)}

def quant_type(info: TensorInfo) -> QuantType:
  """The table's row for a tensor of a file. InputError if it has none."""
  if (qt := QUANT_TYPES.get(info.type)) is not None: return qt
  raise InputError(f"{info.path}: tensor {ascii(info.name)}: type {GGML_TYPES[info.type][0]} is not supported; "
                   f"convert the model to one of {', '.join(qt.name for qt in QUANT_TYPES.values())}")

# *** bytes in, weights out

def pack(qt: QuantType, src: Buffer, n: int, out: np.ndarray) -> None:
  """
  Rows of n weights, as a GGUF file holds them, into `out`: C-contiguous (..., qt.row_items(n)) of the storage dtype.

  Padding is zeroed; numbers of 8 bytes are rounded to float32. ValueError if the sizes do not fit.
  """
  raw, nbytes, items = np.frombuffer(src, dtype=np.uint8), qt.row_nbytes(n), qt.row_items(n)
  fits = out.shape[-1] == items and out.itemsize == qt.dtype.itemsize and out.flags.c_contiguous
  if not fits or raw.size * items != nbytes * out.size:
    raise ValueError(f"{raw.size} bytes of {qt.name} rows of {n} do not fit {out.dtype} {out.shape}")
  if qt.held < qt.nbytes:
    with np.errstate(over="ignore"): out[...] = raw.view(_NUMBERS[qt.name]).reshape(out.shape)
    return
  # the padded unit is the block where a block is padded, else the row
  used, size = (qt.nbytes, qt.held) if qt.held > qt.nbytes else (nbytes, items * out.itemsize)
  to, end = out.view(np.uint8).reshape(-1, size), qt.front + used
  to[:, :qt.front], to[:, qt.front:end], to[:, end:] = 0, raw.reshape(-1, used), 0

def layout(qt: QuantType, ren: Renderer, rows: int, n: int) -> Layout|None:
  """How rows of n weights lie in memory for what runs them; None: as pack() lays them out."""
  return choose(ren, Blocks(qt.unit, qt.fields), rows, n // qt.block) if qt.fields else None

def dequantize(qt: QuantType, packed: Tensor, n: int, layout: Layout|None = None) -> Tensor:
  """
  packed (..., items of a row) -> float32 (..., n), lazy: nothing is computed or stored here.

  To take some rows or experts, `select` them.
  """
  blocks, size, units = n // qt.block, qt.dtype.itemsize, packed
  if layout is not None: return qt.decode(Units(layout, packed, blocks)).reshape(*packed.shape[:-1], n)
  if qt.dtype == dtypes.uint32 and qt.held % 4:
    size = qt.unit
    units = unpack(packed, size)[..., :blocks * qt.held // size]
  return qt.decode(_split(units, blocks, qt.held // size)).reshape(*packed.shape[:-1], n)

def select(qt: QuantType, packed: Tensor, n: int, index: Tensor | tuple[Tensor | slice, ...],
           layout: Layout|None = None) -> Tensor:
  """
  dequantize(qt, packed, n, layout)[index], lazy; index: chooses rows, or experts, as for a tensor, and leaves the last
  axis.

  Indexing the weights reads the chosen ones alone and stays in the kernel that uses them (see patches/gathers.py);
  indexing `packed` copies them first.
  """
  return dequantize(qt, packed, n, layout)[index]

def reference(qt: QuantType, src: Buffer, n: int) -> np.ndarray:
  """The same by gguf-py, in numpy, for tests: file bytes of rows of n weights -> float32 (rows, n)."""
  if qt.name in _NUMBERS:
    with np.errstate(over="ignore"): return np.frombuffer(src, _NUMBERS[qt.name]).astype(np.float32).reshape(-1, n)
  from gguf import GGMLQuantizationType, quants
  rows = np.frombuffer(src, dtype=np.uint8).reshape(-1, qt.row_nbytes(n))
  return quants.dequantize(rows, GGMLQuantizationType(qt.id)).reshape(-1, n)
