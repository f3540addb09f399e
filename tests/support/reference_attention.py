"""
Attention in float64: grouped-query (https://arxiv.org/abs/2305.13245) or latent (https://arxiv.org/abs/2405.04434),
causal or sliding-window, with or without sinks (https://arxiv.org/abs/2309.17453).
"""
from typing import TYPE_CHECKING

import numpy as np
from tests.support.reference_rope import rotate

if TYPE_CHECKING: from tests.support.reference import Reference


def half(x: np.ndarray) -> np.ndarray: return x.astype(np.float16).astype(np.float64)

def window(ref: "Reference", layer: int) -> int:
  """How many positions a layer sees, its own included; 0: all."""
  size = int(ref.param("attention.sliding_window", 0))
  pattern = ref.param("attention.sliding_window_pattern", {"gemma3": 6, "gpt-oss": 2}.get(ref.arch, 1))
  full = not pattern[layer] if isinstance(pattern, list) else layer % pattern == pattern - 1
  return 0 if full or ref.arch not in ("gemma3", "gpt-oss") else size

def grouped(ref: "Reference", x: np.ndarray, layer: int, kv_half: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """x (T, dim) -> q (T, heads, head_dim), k and v (T, kv_heads, head_dim)."""
  name, out, sliding = f"blk.{layer}.attn_", {}, bool(window(ref, layer))
  for part, heads in (("q", ref.heads), ("k", ref.kv_heads), ("v", ref.kv_heads)):
    y, weight = ref.linear(x, name + part), f"{name}{part}_norm.weight"
    if weight in ref.w and ref.arch == "olmoe": y = ref.norm(y, weight)
    y = y.reshape(len(x), heads, -1)
    if weight in ref.w and ref.arch != "olmoe": y = ref.norm(y, weight)
    if part != "v": y = rotate(ref, y, int(ref.param("rope.dimension_count", ref.head_dim)), sliding)
    out[part] = half(y) if kv_half and part != "q" else y
  return out["q"], out["k"], out["v"]

def latent(ref: "Reference", x: np.ndarray, layer: int, kv_half: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """x (T, dim) -> q, k (T, heads, nope + rope), v (T, heads, value). The latent and the rotated key are the cache."""
  name, T, rope = f"blk.{layer}.attn_", len(x), int(ref.param("rope.dimension_count"))
  q = ref.linear(x, name + "q") if name + "q.weight" in ref.w else \
    ref.linear(ref.norm(ref.linear(x, name + "q_a"), name + "q_a_norm.weight"), name + "q_b")
  q = q.reshape(T, ref.heads, -1)
  q = np.concatenate([q[..., :-rope], rotate(ref, q[..., -rope:], rope)], -1)
  c, k_rope = np.split(ref.linear(x, name + "kv_a_mqa"), [int(ref.param("attention.kv_lora_rank"))], -1)
  c, k_rope = ref.norm(c, name + "kv_a_norm.weight"), rotate(ref, k_rope[:, None], rope)
  if kv_half: c, k_rope = half(c), half(k_rope)
  if name + "kv_b.weight" in ref.w:
    kv = ref.linear(c, name + "kv_b").reshape(T, ref.heads, -1)
    k, v = np.split(kv, [q.shape[-1] - rope], -1)
  else:
    k = np.stack([c @ w for w in ref.w[name + "k_b.weight"]], 1)
    v = np.stack([c @ w.T for w in ref.w[name + "v_b.weight"]], 1)
  return q, np.concatenate([k, k_rope.repeat(ref.heads, 1)], -1), v

def attention(ref: "Reference", x: np.ndarray, layer: int, kv_half: bool) -> np.ndarray:
  """x (T, dim), row t at position t -> (T, dim). kv_half rounds the KV cache to float16."""
  q, k, v = (latent if ref.arch == "deepseek2" else grouped)(ref, x, layer, kv_half)
  scale = q.shape[-1] ** -0.5
  if ref.arch == "gemma3" and ref.layers == 62: scale = (ref.dim / ref.heads) ** -0.5
  if ref.arch == "granite": scale = float(ref.param("attention.scale"))
  if ref.arch == "deepseek2" and ref.param("rope.scaling.type", "none") == "yarn":  # holds 0.1 * mscale_all_dim
    multiplier = float(ref.param("rope.scaling.yarn_log_multiplier"))
    scale *= (1 + multiplier * np.log(float(ref.param("rope.scaling.factor")))) ** 2
  distance = np.arange(len(x))[:, None] - np.arange(len(x))  # (T, T): query's position less the key's
  hidden = (distance < 0) | (distance >= (window(ref, layer) or len(x)))
  sinks, heads = ref.w.get(f"blk.{layer}.attn_sinks.weight"), []
  for h in range(ref.heads):
    g = h * k.shape[1] // ref.heads
    s = np.where(hidden, -np.inf, q[:, h] @ k[:, g].T * scale)  # (T, T)
    p = np.exp(s - s.max(-1, keepdims=True))
    total = p.sum(-1, keepdims=True)
    if sinks is not None: total += np.exp(sinks[h] - s.max(-1, keepdims=True))
    heads.append(p / total @ v[:, g])
  return ref.linear(np.concatenate(heads, -1), f"blk.{layer}.attn_output")
