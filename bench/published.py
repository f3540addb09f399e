"""
Published figures of llama.cpp on several cards, to compare a run of bench/gpu_check.py with. This project measured none
of them.

Sources: https://github.com/ggml-org/llama.cpp/discussions/15013 (NVIDIA) and /4167 (Apple), read in 2026-11. They have
llama-bench's pp512 and tg128 in tokens a second, for Llama 2 7B in Q4_0. Another model is compared by the cost of a
token: the bytes of its weights in decode, two operations per parameter in prefill.
"""
from __future__ import annotations
import re
from collections.abc import Iterable
from typing import NamedTuple

MODEL, BYTES, PARAMETERS = "llama 7B Q4_0", 3.83e9, 6.74e9

class Published(NamedTuple):
  """pp512, tg128: tokens a second of MODEL."""
  card: str
  pp512: float
  tg128: float

  @property
  def gbs(self) -> float:
    """GB/s of weights in decode."""
    return self.tg128 * BYTES / 1e9
  @property
  def tflops(self) -> float:
    """10^12 operations a second in prefill."""
    return self.pp512 * 2 * PARAMETERS / 1e12

FIGURES = (
  Published("RTX 3090", 5560, 162), Published("RTX 4090", 14771, 189), Published("A100", 5286, 201),
  Published("H100", 11263, 281), Published("M1 Max", 530, 61), Published("M2 Ultra", 1238, 94),
  Published("M4 Max", 885, 83))

def _words(text: str) -> list[str]: return re.split(r"[\s/-]+", text.lower())

def named_in(card: str, names: Iterable[str]) -> str | None:
  """Returns the longest of `names` that is in a driver's name of a card (NVIDIA GeForce RTX 4090), or None."""
  words = _words(card)
  def is_in(name: list[str]) -> bool: return any(words[i:i + len(name)] == name for i in range(len(words)))
  return max((name for name in names if is_in(_words(name))), key=len, default=None)

def published(card: str) -> Published | None:
  """Returns the figures for a card by its driver's name of it. None if there are none."""
  name = None if {"ti", "super", "laptop", "d"} & {*_words(card)} else named_in(card, (x.card for x in FIGURES))
  return next((x for x in FIGURES if x.card == name), None)
