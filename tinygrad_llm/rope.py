"""Rotary position embedding (Su et al. 2021, https://arxiv.org/abs/2104.09864)."""
from __future__ import annotations
import numpy as np
from tinygrad import Tensor
from tinygrad_llm.config import ModelConfig

def rope_table(config: ModelConfig, positions: int, factors: np.ndarray | None = None) -> np.ndarray:
  """
  (positions, 2, rope_dim / 2) float32: the cosine and the sine of each position's angles, computed in float64.

  `factors` (rope_dim / 2,) divides the frequencies (the `rope_freqs.weight` tensor of Llama 3.x files).
  """
  freqs = config.rope_theta ** (-np.arange(0, config.rope_dim, 2, dtype=np.float64) / config.rope_dim)
  if factors is not None: freqs = freqs / factors
  angles = np.outer(np.arange(positions) * config.rope_scale, freqs)
  return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)

def rotate(x: Tensor, table: Tensor, style: str) -> Tensor:
  """Rotates x (B, H, T, D) by table (T, 2, R / 2); dimensions from R on pass through. `style`: see config.Arch."""
  B, H, T, D = x.shape
  R = table.shape[-1] * 2
  cos, sin = table[:, 0], table[:, 1]  # (T, R / 2)
  axis = -1 if style == "norm" else -2
  a, b = x[..., :R].reshape(B, H, T, *((R // 2, 2) if style == "norm" else (2, R // 2))).split(1, dim=axis)
  a, b = a.squeeze(axis), b.squeeze(axis)  # (B, H, T, R / 2)
  y = Tensor.stack(a * cos - b * sin, a * sin + b * cos, dim=axis).reshape(B, H, T, R)
  return y if R == D else y.cat(x[..., R:], dim=-1)
