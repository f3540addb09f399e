"""
Quantisers: float32 weights -> GGML blocks, in numpy. K-quants and MXFP4 are here; `gguf.quants` does the simpler types.

A K-quant super-block is 256 weights in sub-blocks of 16 or 32. A sub-block has an integer scale (Q4_K, Q5_K: and an
integer minimum). An fp16 factor of the super-block turns these integers into floats. There are two steps:

1. Fit each sub-block with float scale and minimum. Stretch it by a range of scales, round the weights, fit scale and
   minimum by least squares, and keep the best fit.
2. Try the integer scales and minima next to that fit, with exactly the numbers that a reader will see. Keep the ones
   with the smallest error.

Arrays have sub-blocks as columns, (weights of a sub-block, sub-blocks): summing rows is fast in numpy.
"""
from __future__ import annotations
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
import gguf
import numpy as np
from tinygrad_llm.patches.host.cores import threads

CHUNK = 1 << 16          # weights that a thread works on at a time: its arrays stay in the cache
NEGLIGIBLE = 1e-30       # smaller weights are set to zero: they are zero in every type, and 1 / scale would overflow
F16_TINY, F16_MAX = np.float32(2 ** -24), np.float32(65504)
BETTER = np.float32(1 + 2e-6)    # margin, so that rounding errors do not choose between equal fits: the first one stays
# levels added to a type's levels when a sub-block is stretched; the smallest change first
AFFINE_STRETCH = sorted(np.linspace(-3, 1, 9, dtype=np.float32), key=abs)
SYMMETRIC_STRETCH = sorted(np.linspace(-4, 4, 9, dtype=np.float32), key=abs)
# (scale, minimum) candidates, relative to the nearest integers
AFFINE_MOVES = [(s, m) for m in (0, -1, 1) for s in (0, -1, 1)]
SYMMETRIC_MOVES = [(0, 0), (-1, 0), (1, 0)]
MXFP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12], np.float32)    # twice the e2m1 values

Pair = tuple[np.ndarray, np.ndarray]

def quantize_array(x: np.ndarray, name: str) -> np.ndarray:
  """
  Quantises rows of finite float32 weights, (R, n), to the GGML type `name` ("Q4_K"): uint8 (R, bytes of a row).

  Minimises the squared error, with all weights equally important. Uses all CPU cores. Layouts: ggml's block structs
  (ggml-common.h); MXFP4: OCP Microscaling Formats 1.0. ValueError if the type is not in KNOWN, or if n is not a
  multiple of the type's block: 256 weights for K-quants, 32 for other quantised types, 1 for floats.
  """
  if name not in KNOWN: raise ValueError(f"cannot quantise to {name}; known: {', '.join(KNOWN)}")
  qtype = gguf.GGMLQuantizationType[name]
  block, nbytes = gguf.GGML_QUANT_SIZES[qtype]
  rows, n = x.shape
  if n % block: raise ValueError(f"rows of {n} weights do not fit {name}: not a multiple of {block}")
  blocks = np.ascontiguousarray(x, np.float32).reshape(-1, block)
  out, step = np.empty((len(blocks), nbytes), np.uint8), CHUNK // block

  def delegate(chunk: np.ndarray) -> np.ndarray:
    return gguf.quants.quantize(chunk.reshape(1, -1), qtype).view(np.uint8).reshape(-1, nbytes)
  quantize = QUANTIZERS.get(name, delegate)

  def run(start: int) -> None:
    chunk = blocks[start:start + step]
    if block > 1: chunk = np.where(np.abs(chunk) < NEGLIGIBLE, np.float32(0), chunk)
    out[start:start + step] = quantize(chunk)
  with ThreadPoolExecutor(threads()) as pool: list(pool.map(run, range(0, len(blocks), step)))
  return out.reshape(rows, n // block * nbytes)

def _columns(blocks: np.ndarray, size: int) -> np.ndarray: return np.ascontiguousarray(blocks.reshape(-1, size).T)

def _bytes(x: np.ndarray) -> np.ndarray: return np.ascontiguousarray(x).view(np.uint8)

def _ratio(a: np.ndarray | float, b: np.ndarray) -> np.ndarray:
  # a / b, and 0 where b is 0
  quotient: np.ndarray = np.zeros(np.broadcast_shapes(np.shape(a), b.shape), np.float32)
  np.divide(a, b, out=quotient, where=b != 0)
  return quotient

def _farthest(x: np.ndarray, axis: int) -> np.ndarray:
  low, high = x.min(axis), x.max(axis)
  found: np.ndarray = np.where(-low > high, low, high)
  return found

def _fit_affine(x: np.ndarray, levels: int) -> Pair:
  # x: (n, B) -> scale and minimum, (B,) each: x ~ scale * q + minimum, q in 0..levels, minimum <= 0 <= scale
  n, low = len(x), np.minimum(x.min(0), 0)
  span = x.max(0) - low
  y = (x - low) * _ratio(1, span)                  # in 0..1: sums neither cancel nor overflow
  sum_y, highest = y.sum(0), _ratio(-low, span)    # the format has no minimum above zero
  scale, shift, gain = np.zeros_like(span), np.zeros_like(span), np.zeros_like(span)
  q, t = np.empty_like(x), np.empty_like(x)
  for stretch in AFFINE_STRETCH:
    np.minimum(np.rint(np.multiply(y, levels + stretch, out=q), out=q), levels, out=q)
    sum_q, sum_qq, sum_qy = q.sum(0), np.multiply(q, q, out=t).sum(0), np.multiply(q, y, out=t).sum(0)
    a = _ratio(n * sum_qy - sum_q * sum_y, n * sum_qq - sum_q * sum_q)
    b = (sum_y - a * sum_q) / n
    free = (a > 0) & (b <= highest)
    b = np.where(free, b, highest)
    a = np.where(free, a, _ratio(sum_qy - b * sum_q, sum_qq))
    explained = 2 * (a * sum_qy + b * sum_y - a * b * sum_q) - a * a * sum_qq - b * b * n    # sum(y^2) - squared error
    better = explained > gain * BETTER
    for best, new in ((scale, a), (shift, b), (gain, explained)): np.copyto(best, new, where=better)
  return scale * span, shift * span + low

def _fit_symmetric(x: np.ndarray, levels: int) -> np.ndarray:
  # x: (n, B) -> scale, (B,), of either sign: x ~ scale * q, q in -levels..levels-1
  extreme = _farthest(x, 0)                        # mapped to -levels, the longer side
  y = x * _ratio(-1, extreme)
  scale, gain = np.zeros_like(extreme), np.zeros_like(extreme)
  q, t = np.empty_like(x), np.empty_like(x)
  for stretch in SYMMETRIC_STRETCH:
    np.clip(np.rint(np.multiply(y, levels + stretch, out=q), out=q), -levels, levels - 1, out=q)
    sum_qq, sum_qy = np.multiply(q, q, out=t).sum(0), np.multiply(q, y, out=t).sum(0)
    a = _ratio(sum_qy, sum_qq)
    better = a * sum_qy > gain * BETTER
    for best, new in ((scale, a), (gain, a * sum_qy)): np.copyto(best, new, where=better)
  found: np.ndarray = -scale * extreme
  return found

def _factor(largest: np.ndarray, steps: int) -> np.ndarray:
  # (S,) -> (S, 1). The fp16 factor that maps the largest scale to `steps`. It is at least the smallest fp16 number, so
  # that a tiny scale becomes a step or two instead of 0.
  size = np.clip(np.abs(largest) / steps, F16_TINY, F16_MAX).astype(np.float16).astype(np.float32)
  return np.where(largest != 0, np.copysign(size, largest), np.float32(0))[:, None]

def _round(x: np.ndarray, scale: np.ndarray, low: np.ndarray, levels: tuple[int, int], out: np.ndarray) -> np.ndarray:
  np.rint(np.multiply(np.subtract(x, low, out=out), _ratio(1, scale), out=out), out=out)
  return np.clip(out, *levels, out=out)

def _search(x: np.ndarray, factors: Pair, wanted: Pair, moves: list[tuple[int, int]], limits: tuple[int, int],
            levels: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  # x: (n, B) -> the integer scales and minima near wanted / factors with the least error, (S, B/S) each, and q, (n, B)
  start_s, start_m = (np.rint(_ratio(v, d)) for v, d in zip(wanted, factors))
  best_s, best_m = start_s, start_m
  least, t = np.full(start_s.shape, np.inf, np.float32), np.empty_like(x)
  for move_s, move_m in moves:
    s, m = np.clip(start_s + move_s, *limits), np.clip(start_m + move_m, *limits)
    scale, low = (factors[0] * s).ravel(), (factors[1] * m).ravel()
    _round(x, scale, low, levels, t)
    np.subtract(np.add(np.multiply(t, scale, out=t), low, out=t), x, out=t)
    error = np.einsum("ij,ij->j", t, t).reshape(least.shape)
    better = error < least
    best_s, best_m, least = np.where(better, s, best_s), np.where(better, m, best_m), np.minimum(error, least)
  return best_s, best_m, _round(x, (factors[0] * best_s).ravel(), (factors[1] * best_m).ravel(), levels, t)

def _affine(blocks: np.ndarray, levels: int) -> Pair:
  # (S, 256) -> the common part of Q4_K and Q5_K: 16 bytes of factors, scales, minima, (S, 16), and q, uint8 (S, 8, 32)
  x = _columns(blocks, 32)
  scale, low = (v.reshape(-1, 8) for v in _fit_affine(x, levels))
  d, dm = _factor(scale.max(1), 63), _factor(low.min(1), 63)
  s, m, q = _search(x, (d, dm), (scale, low), AFFINE_MOVES, (0, 63), (0, levels))
  (s0, s1), (m0, m1) = np.split(s.astype(np.uint8), 2, 1), np.split(m.astype(np.uint8), 2, 1)
  bits = [s0 | s1 >> 4 << 6, m0 | m1 >> 4 << 6, s1 & 15 | (m1 & 15) << 4]
  head = np.concatenate([_bytes(d.astype(np.float16)), _bytes(-dm.astype(np.float16)), *bits], 1)
  return head, q.T.astype(np.uint8).reshape(-1, 8, 32)

def _q4_k(blocks: np.ndarray) -> np.ndarray:
  head, q = _affine(blocks, 15)
  return np.concatenate([head, (q[:, ::2] | q[:, 1::2] << 4).reshape(-1, 128)], 1)

def _q5_k(blocks: np.ndarray) -> np.ndarray:
  head, q = _affine(blocks, 31)
  high = np.packbits(q >> 4, axis=1, bitorder="little").reshape(-1, 32)
  return np.concatenate([head, high, (q[:, ::2] & 15 | (q[:, 1::2] & 15) << 4).reshape(-1, 128)], 1)

def _q6_k(blocks: np.ndarray) -> np.ndarray:
  x = _columns(blocks, 16)
  scale = _fit_symmetric(x, 32).reshape(-1, 16)
  d, zero = _factor(-_farthest(scale, 1), 128), np.zeros((len(blocks), 1), np.float32)
  s, _, q = _search(x, (d, zero), (scale, np.zeros_like(scale)), SYMMETRIC_MOVES, (-128, 127), (-32, 31))
  q = (q.T + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
  low = (q[:, :, :2] & 15 | (q[:, :, 2:] & 15) << 4).reshape(-1, 128)
  high = np.bitwise_or.reduce(q >> 4 << np.arange(0, 8, 2, dtype=np.uint8)[:, None], axis=2).reshape(-1, 64)
  return np.concatenate([low, high, _bytes(s.astype(np.int8)), _bytes(d.astype(np.float16))], 1)

def _mxfp4(blocks: np.ndarray) -> np.ndarray:
  # tries the exponent that puts the largest weight in 4..8 (the largest e2m1 value is 6), and the next exponent
  x = _columns(blocks, 32)
  size = np.abs(x)
  exponent = np.frexp(size.max(0))[1] + 124        # exponent of half a unit, biased by 128
  tried = []
  for move in (0, 1):
    e = np.clip(exponent + move, 1, 254)
    half = np.ldexp(np.float32(1), e - 128)
    r = size * (1 / half)
    code = np.rint(np.minimum(np.minimum(r, r / 2 + 2), np.minimum(r / 4 + 4, 7))).astype(np.uint8)  # nearest value
    t = (MXFP4_VALUES[code] - r) * half
    tried.append((e, code, np.einsum("ij,ij->j", t, t)))
  (e0, code0, error0), (e1, code1, error1) = tried
  second = error1 < error0
  code = (np.where(second, code1, code0) + 8 * (x < 0).astype(np.uint8)).T
  return np.concatenate([np.where(second, e1, e0).astype(np.uint8)[:, None], code[:, :16] | code[:, 16:] << 4], 1)

Quantizer = Callable[[np.ndarray], np.ndarray]         # (blocks, weights of a block) -> (blocks, bytes of a block)
QUANTIZERS: dict[str, Quantizer] = {"Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k, "MXFP4": _mxfp4}
KNOWN = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", *QUANTIZERS)
