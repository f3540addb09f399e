"""
exp2 of numbers that are at most 0, for the weights of a softmax. Used by decode_cpu.py.

Why: tinygrad's exp2 is for all numbers. It tests for NaN, for both infinities and for results without bounds: 54
  instructions for 16 numbers with AVX2, a fifth of the time of decode attention.
How: x = n + f, with n an integer and f in -0.5 .. 0.5. A float that is added to x has the bits of n as its lowest ones.
  2^f is tinygrad's polynomial of degree 6, and n is added to its exponent.
"""
from __future__ import annotations
import functools
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

POLYNOMIAL = (0.00015359208919107914, 0.0013392627006396651, 0.009618384763598442, 0.055503472685813904,
              0.24022644758224487, 0.6931471824645996, 1.0)  # of f, from the 6th degree down
ROUND, BITS = 1.5 * 2**23, 0x4B400000  # a float whose unit is 1, and its bits
LEAST, MANTISSA = -126.0, 23

def exp2(x: UOp) -> UOp:
  """2^x of a float32 up to 0: 0 below -126 and for -infinity, NaN for NaN."""
  bits = (x + ROUND).bitcast(dtypes.int)
  f = x - (bits - BITS).cast(dtypes.float)
  power = functools.reduce(lambda sum, factor: sum * f + factor, POLYNOMIAL[1:], x.const_like(POLYNOMIAL[0]))
  made = (power.bitcast(dtypes.int) + (bits << MANTISSA)).bitcast(dtypes.float)
  return (x < LEAST).where(x.const_like(0.0), made)
