"""Reads what a file says about rotations, beside their base and scaling."""
from __future__ import annotations
from dataclasses import replace
from tinygrad_llm.nn.keys import Keys
from tinygrad_llm.nn.layers import Rope

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
