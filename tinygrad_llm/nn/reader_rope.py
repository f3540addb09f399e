"""Reads what a file says about rotations, beside their base and scaling."""
from __future__ import annotations
from collections.abc import Sequence
from dataclasses import replace
import numpy as np
from tinygrad_llm.nn.archs import Arch
from tinygrad_llm.nn.keys import Keys
from tinygrad_llm.nn.layers import Rope, Temperature

def with_factors(keys: Keys, rope: Rope, context: int) -> Rope:
  """
  The rotation with the tensors that divide its frequencies. context: positions that the model was trained for.

  Two of them belong together (LongRoPE, https://arxiv.org/abs/2402.13753), for short and for long contexts.
  """
  long, short = (f"rope_factors_{kind}.weight" for kind in ("long", "short"))
  if "rope_freqs.weight" in keys.file.tensors: return replace(rope, factors="rope_freqs.weight")
  if long not in keys.file.tensors: return rope
  original = keys.size("rope.scaling.original_context_length", context, high=1 << 31)
  return replace(rope, factors=short, long_factors=long, short_context=original)

def rotated_layers(features: Arch, windows: Sequence[int]) -> list[bool]:
  """Which layers are rotated. windows: each layer's; 0: none."""
  if not features.rope: return [False] * len(windows)
  if features.chunked and not any(windows): return [True] * len(windows)
  if features.rope_layers == "3 of 4": return [(i + 1) % 4 != 0 for i in range(len(windows))]
  return [features.rope_layers == "all" or bool(window) or not any(windows) for window in windows]

def rope_style(keys: Keys) -> str:
  """
  How dimensions pair up, see archs.Arch.

  Models with images divide the pairs into sections (M-RoPE, https://arxiv.org/abs/2409.12191): time, height and width
  of an image's part. In a text, all three are the position.
  """
  key, features = "rope.dimension_sections", keys.features
  if not features.sections or not keys.has(key): return features.rope
  sections = keys.file.kv[f"{keys.prefix}.{key}"]
  if not isinstance(sections, np.ndarray) or sections.dtype.kind not in "iu" or len(sections) > 4:
    keys.fail(key, f"{' '.join(repr(sections).split()):.40} are not up to 4 numbers of type int")
  if sections[3:].any(): keys.fail(key, "it has a fourth section", "supported: time, height and width")
  return features.sections if sections[:2].all() else features.rope

def temperature(keys: Keys, context: int, rotated: Sequence[bool]) -> Temperature | None:
  """
  How queries grow with their position. context: positions that the model was trained for. rotated: of each layer.
  """
  if keys.features.temperature == "unrotated":
    return None if all(rotated) else Temperature(0.1, keys.features.window, offset=1)
  if keys.features.temperature != "file" or not (scale := keys.number("attention.temperature_scale", 0.0)): return None
  return Temperature(scale, keys.size("rope.scaling.original_context_length", context, high=1 << 31))
