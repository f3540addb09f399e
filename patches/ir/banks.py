"""
Bank conflicts in a GPU's shared memory: 32 banks of 4 bytes, each of which serves one word of a pass. Pure functions.
"""
from __future__ import annotations
from collections import Counter
from collections.abc import Sequence

BANKS, BANK = 32, 4  # bytes

def wavefronts(places: Sequence[int], width: int) -> int:
  """
  The number of passes (wavefronts) that a warp's request takes.

  Threads that together access 128 bytes go at the same time; different words of one bank take a pass each.

  places: the address of each thread of the warp, in bytes; width: bytes that each thread accesses.
  """
  together, passes = max(1, BANKS * BANK // max(width, BANK)), 0
  for i in range(0, len(places), together):
    words = {at // BANK + k for at in places[i:i + together] for k in range(max(1, width // BANK))}
    passes += max(Counter(word % BANKS for word in words).values())
  return passes
