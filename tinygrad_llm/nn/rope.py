"""Rotary position embedding (Su et al. 2021, https://arxiv.org/abs/2104.09864)."""
from __future__ import annotations
import math
import numpy as np
from tinygrad import Tensor
from tinygrad_llm.nn.layers import Rope, Temperature

def rope_table(rope: Rope, positions: int, factors: np.ndarray | None = None) -> np.ndarray:
  """
  Cosine and sine of each position's angles, (positions, 2, rope.dim / 2) float32, computed in float64.

  factors: (rope.dim / 2,) divide the frequencies (the `rope_freqs.weight` tensor of Llama 3.x files).
  """
  freqs = rope.theta ** (-np.arange(0, rope.dim, 2, dtype=np.float64) / rope.dim)
  if factors is not None: freqs = freqs / factors
  kept = yarn_kept(rope)
  angles = np.outer(np.arange(positions), freqs * (rope.scale * (1 - kept) + kept))
  return (np.stack([np.cos(angles), np.sin(angles)], axis=1) * rope.magnitude).astype(np.float32)

def yarn_kept(rope: Rope) -> np.ndarray:
  """
  How much of each frequency stays unscaled, (rope.dim / 2,) (YaRN, https://arxiv.org/abs/2309.00071, 3.2).

  It falls from 1 to 0 between the pair that turns beta_fast times in the original context and the pair that turns
  beta_slow times. As in the models' own code, the ramp begins and ends at whole pairs.
  """
  if (yarn := rope.yarn) is None: return np.zeros(rope.dim // 2)
  def pair(turns: float) -> float:
    return rope.dim * math.log(yarn.context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))
  low, high = max(0, math.floor(pair(yarn.beta_fast))), min(rope.dim - 1, math.ceil(pair(yarn.beta_slow)))
  return 1 - np.clip((np.arange(rope.dim // 2) - low) / max(0.001, high - low), 0, 1)

def rotate(x: Tensor, table: Tensor, style: str) -> Tensor:
  """Rotates x (B, H, T, D) by table (T, 2, R / 2); dimensions from R on pass through. `style`: see archs.Arch."""
  B, H, T, D = x.shape
  R = table.shape[-1] * 2
  cos, sin = table[..., 0, :], table[..., 1, :]  # (T, R / 2)
  axis = -1 if style == "norm" else -2
  a, b = x[..., :R].reshape(B, H, T, *((R // 2, 2) if style == "norm" else (2, R // 2))).split(1, dim=axis)
  a, b = a.squeeze(axis), b.squeeze(axis)  # (B, H, T, R / 2)
  y = Tensor.stack(a * cos - b * sin, a * sin + b * cos, dim=axis).reshape(B, H, T, R)
  return y if R == D else y.cat(x[..., R:], dim=-1)

def temperature_table(temperature: Temperature, positions: int) -> np.ndarray:
  """The factor of each position's queries, (positions,) float32."""
  steps = (np.arange(positions) + temperature.offset) // temperature.length
  return (1 + temperature.scale * np.log1p(steps)).astype(np.float32)
