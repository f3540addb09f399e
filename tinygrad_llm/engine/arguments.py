"""Checks the numbers and token ids that callers pass; errors name the argument."""
from __future__ import annotations
import operator
from collections.abc import Iterable
from typing import Any
import numpy as np
from tinygrad_llm.errors import InputError

MOST = 2**64 - 1

def whole(name: str, value: Any, least: int = 0, most: int = MOST, what: str = "") -> int:
  """
  A whole number as an int: from an int, numpy's integers, and floats such as 4.0.

  InputError, which names the argument, for True, texts, 1.7, NaN and numbers outside least..most. what: how the message
  describes a right value.
  """
  number = _index(value)
  if number is None or not least <= number <= most:
    raise InputError(f"{name}: {value!r:.60} is not {what or _range(least, most)}")
  return number

def number(name: str, value: Any, low: float, high: float, what: str) -> None:
  """InputError, which names the argument, unless the value is a number within low..high. what: as for whole()."""
  is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
  if not is_number or not low <= value <= high: raise InputError(f"{name}: {value!r:.60} is not {what}")

def token_ids(name: str, ids: Any, vocab_size: int) -> list[int]:
  """Token ids as a list of ints, which may be empty. InputError for a text, and for ids outside 0..vocab_size-1."""
  if isinstance(ids, (str, bytes, bytearray, dict)) or not isinstance(ids, Iterable):
    raise InputError(f"{name}: {ids!r:.60} is not a list of token ids; tokenizer.encode(text) gives one")
  found = []
  for i in ids:
    if (token := _index(i)) is None: raise InputError(f"{name}: {i!r:.60} is not a token id; give whole numbers from 0")
    if not 0 <= token < vocab_size:
      raise InputError(f"{name}: token {token} is not in 0..{vocab_size - 1}; use this model's tokenizer")
    found.append(token)
  return found

def _range(least: int, most: int) -> str:
  return f"a whole number from {least}" + (f" to {most}" if most != MOST else "")

def _index(value: Any) -> int | None:
  """The value as an int; None if it is no whole number."""
  if isinstance(value, (bool, np.bool_)): return None
  if isinstance(value, (float, np.floating)): return int(value) if float(value).is_integer() else None
  if isinstance(value, np.ndarray) and value.ndim: return None
  try: return operator.index(value)
  except TypeError: return None
