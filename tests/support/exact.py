"""Floating-point formats of GPUs: bits to exact fractions, and fractions to the nearest bits."""
from fractions import Fraction

import numpy as np

# {format: (fraction bits, least exponent, greatest exponent)}
FORMATS = {"f16": (10, -14, 15), "bf16": (7, -126, 127), "f32": (23, -126, 127), "f64": (52, -1022, 1023)}
WIDTH = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}

def value(bits: int, t: str) -> Fraction:
  """The exact value of a finite number's bits. AssertionError if they are not finite."""
  fraction, least, most = FORMATS[t]
  exponent, part = bits >> fraction & (2 * most + 1), bits & ((1 << fraction) - 1)
  assert exponent <= 2 * most, "not finite"
  sign = -1 if bits >> (WIDTH[t] - 1) else 1
  whole = Fraction((part | (1 << fraction)) if exponent else part, 1 << fraction)
  return sign * whole * Fraction(2) ** ((exponent - most) if exponent else least)

def nearest(x: Fraction, t: str) -> int:
  """Rounds x to nearest, ties to even, and returns the bits; infinity beyond the greatest number. 0 is +0."""
  fraction, least, most = FORMATS[t]
  sign, x = int(x < 0) << (WIDTH[t] - 1), abs(x)
  if not x: return 0
  exponent = max(least, x.numerator.bit_length() - x.denominator.bit_length() - 1)
  while exponent < most and x >= Fraction(2) ** (exponent + 1): exponent += 1
  steps = round(x / Fraction(2) ** (exponent - fraction))  # Python rounds halves to even
  bits = steps + (exponent - least << fraction)            # carries into the exponent by itself
  return sign | min(bits, (2 * most + 1) << fraction)

def random_bits(rng: np.random.Generator, t: str, count: int, spread: int) -> list[int]:
  """Bits of random finite numbers with magnitudes up to 2 ** +-spread; each fourth number is a small integer."""
  fraction, _, most = FORMATS[t]
  spread = min(spread, most - 1)
  found = []
  for i in range(count):
    whole = int(rng.integers(-9, 10)) if i % 4 == 3 else None
    bits = (int(rng.integers(0, 2)) << (WIDTH[t] - 1) | int(rng.integers(most - spread, most + spread)) << fraction |
            int(rng.integers(0, 1 << fraction)))
    found.append(bits if whole is None else nearest(Fraction(whole), t))
  return found
