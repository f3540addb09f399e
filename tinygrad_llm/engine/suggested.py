"""
The sampling settings that a file suggests: `general.sampling.*` of its metadata, as llama.cpp reads them
(https://github.com/ggml-org/llama.cpp, src/llama-arch.cpp).
"""
from __future__ import annotations
from collections.abc import Mapping
from typing import Any
from tinygrad_llm.engine.sampling import Sampler
from tinygrad_llm.errors import InputError, warn

KEYS = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "penalty_repeat": "repeat_penalty"}

def suggested(kv: Mapping[str, Any]) -> dict[str, Any]:
  """Settings by their names in Sampler. What is no number, or out of range, is a warning and left out."""
  found: dict[str, Any] = {}
  for key, name in KEYS.items():
    if (value := kv.get(field := f"general.sampling.{key}")) is None: continue
    if name == "top_k" and isinstance(value, (int, float)) and value < 0: value = 0  # llama.cpp: all
    try: Sampler(**{name: value})
    except (InputError, TypeError):
      warn(f"{field}: {value!r:.60} is no {name}; it is left out")
      continue
    # a float32 of the file, as it is written
    found[name] = float(f"{value:.6g}") if isinstance(value, float) else value
  return found
