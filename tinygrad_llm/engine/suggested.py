"""
The sampling settings that a file suggests: `general.sampling.*` of its metadata, read as llama.cpp does
(https://github.com/ggml-org/llama.cpp, src/llama-arch.cpp).
"""
from __future__ import annotations
from collections.abc import Mapping
from typing import Any
from tinygrad_llm.engine.choice.penalties import PENALTY_TOKENS
from tinygrad_llm.engine.sampling import Sampler
from tinygrad_llm.errors import InputError, warn

PREFIX = "general.sampling."
KEYS = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "penalty_repeat": "repeat_penalty"}
# settings that are not supported, and their values that change nothing
OTHERS: dict[str, tuple[Any, ...]] = {
  "mirostat": (0,), "xtc_probability": (0,), "penalty_last_n": (PENALTY_TOKENS,), "sequence": ("",)}

def of_sampling(kv: Mapping[str, Any]) -> dict[str, Any]:
  """The part of a file's metadata that suggested() reads."""
  return {key: value for key, value in kv.items() if key.startswith(PREFIX)}

def suggested(kv: Mapping[str, Any]) -> dict[str, Any]:
  """Settings by their names in Sampler. A value that is no number, or out of range, is left out with a warning."""
  found: dict[str, Any] = {}
  for key, name in KEYS.items():
    if (value := kv.get(field := PREFIX + key)) is None: continue
    if name == "top_k" and isinstance(value, (int, float)) and value < 0: value = 0  # llama.cpp: all
    setting: dict[str, Any] = {name: value}
    try: Sampler(**setting)
    except (InputError, TypeError):
      warn(f"{field}: {value!r:.60} is not a valid {name}; it is ignored")
      continue
    # a float32 of the file, rounded to the decimal number that was meant
    found[name] = float(f"{value:.6g}") if isinstance(value, float) else value
  for key, nothing in OTHERS.items():
    if (value := kv.get(field := PREFIX + key)) is None: continue
    if isinstance(value, (int, float, str)) and value in nothing: continue
    if key == "penalty_last_n" and found.get("repeat_penalty", 1) == 1: continue
    warn(f"{field}: {value!r:.60} is not known here; it is ignored")
  return found
