"""
Rotary position embedding and its scaling in float64 (https://arxiv.org/abs/2104.09864; YaRN:
https://arxiv.org/abs/2309.00071). As in llama.cpp, the bounds of YaRN's ramp are rounded to whole dimensions.
"""
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING: from tests.support.reference import Reference


def frequencies(ref: "Reference", n: int, sliding: bool) -> tuple[np.ndarray, float]:
  """The n/2 frequencies of a layer, and the factor by which the rotated dimensions are multiplied."""
  base = float(ref.param("rope.freq_base", 10000.0)) * float(ref.param("rope.scaling.alpha", 1.0)) ** (n / (n - 2))
  if sliding: base = float(ref.param("rope.freq_base_swa", 10000.0 if ref.arch == "gemma3" else base))
  freqs = base ** (-np.arange(0, n, 2) / n)
  if factors := next((name for name in factor_names(ref) if name in ref.w), ""): freqs = freqs / ref.w[factors]
  kind, factor = ref.param("rope.scaling.type", "none"), float(ref.param("rope.scaling.factor", 1.0))
  attn_factor = float(ref.param("rope.scaling.attn_factor", 1.0))
  if sliding and not ref.traits.window_scaling: return freqs, attn_factor if ref.arch == "gemma3" else 1.0
  if kind in ("none", "longrope"): return freqs, attn_factor
  if kind == "linear": return freqs / factor, attn_factor
  assert kind == "yarn", kind
  original = int(ref.param("rope.scaling.original_context_length", int(ref.param("context_length"))))
  def turns(count: float) -> float:
    """The pair of dimensions that makes `count` turns over the original context."""
    return n * np.log(original / (count * 2 * np.pi)) / (2 * np.log(base))
  low = max(0, np.floor(turns(float(ref.param("rope.scaling.yarn_beta_fast", 32.0)))))
  high = min(n - 1, np.ceil(turns(float(ref.param("rope.scaling.yarn_beta_slow", 1.0)))))
  slow = np.clip((np.arange(n // 2) - low) / max(0.001, high - low), 0, 1)
  magnitude = 1 if ref.arch == "deepseek2" else 1 + 0.1 * np.log(factor)  # deepseek2 scales its scores instead
  if ref.arch != "deepseek2": magnitude /= 1 + 0.1 * multiplier(ref) * np.log(factor)
  return freqs / factor * slow + freqs * (1 - slow), magnitude * attn_factor

def multiplier(ref: "Reference") -> float:
  """YaRN's multiplier of the logarithm for all dimensions (mscale_all_dim), 0: none."""
  return ref.traits.log_multiplier * float(ref.param("rope.scaling.yarn_log_multiplier", 0.0))

def factor_names(ref: "Reference") -> tuple[str, str]:
  """The tensors that may divide the frequencies; the second depends on the positions that are allocated."""
  original = int(ref.param("rope.scaling.original_context_length", int(ref.param("context_length"))))
  return "rope_freqs.weight", f"rope_factors_{'long' if ref.context > original else 'short'}.weight"

def rotate(ref: "Reference", x: np.ndarray, n: int, sliding=False, interleaved: bool | None = None) -> np.ndarray:
  """x: (T, heads, dim), row t at position t; the first n dimensions are rotated, by default in the model's pairs."""
  freqs, magnitude = frequencies(ref, n, sliding)
  angle = (np.arange(len(x))[:, None] * freqs)[:, None]  # (T, 1, n/2)
  cos, sin, out = np.cos(angle) * magnitude, np.sin(angle) * magnitude, x.copy()
  a, b = slice(0, n // 2), slice(n // 2, n)
  if ref.traits.interleaved if interleaved is None else interleaved: a, b = slice(0, n, 2), slice(1, n, 2)
  out[..., a] = x[..., a] * cos - x[..., b] * sin
  out[..., b] = x[..., a] * sin + x[..., b] * cos
  return out
