"""
The banks of a GPU's shared memory: 32 of 4 bytes, each of which takes one word of a pass. Pure functions.
"""
from __future__ import annotations
from collections import Counter
from collections.abc import Sequence

BANKS, BANK = 32, 4  # bytes

def wavefronts(places: Sequence[int], width: int) -> int:
  """
  Passes that a warp's request takes: threads that want 128 bytes together go at the same time, and wait for each other
  where they want different words of one bank. places: of the warp's threads, in bytes; width: bytes of each.
  """
  together, passes = max(1, BANKS * BANK // max(width, BANK)), 0
  for i in range(0, len(places), together):
    words = {at // BANK + k for at in places[i:i + together] for k in range(max(1, width // BANK))}
    passes += max(Counter(word % BANKS for word in words).values())
  return passes
