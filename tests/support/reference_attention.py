"""
Attention in float64: grouped-query (https://arxiv.org/abs/2305.13245) or latent (https://arxiv.org/abs/2405.04434),
causal or sliding-window, with or without sinks (https://arxiv.org/abs/2309.17453).
"""
from typing import TYPE_CHECKING

import numpy as np
from tests.support.reference_rope import frequencies, multiplier, rotate

if TYPE_CHECKING: from tests.support.reference import Reference


def half(x: np.ndarray) -> np.ndarray: return x.astype(np.float16).astype(np.float64)

def window(ref: "Reference", layer: int) -> int:
  """How many positions a layer sees, its own included; 0: all."""
  return int(ref.param("attention.sliding_window", ref.traits.window)) if ref.traits.windowed(ref, layer) else 0

def normed(ref: "Reference", y: np.ndarray, weight: str) -> np.ndarray:
  """y (T, heads, head_dim), normed over each head, or over all at once if the weight is that long; or as it is."""
  if weight not in ref.w: return y
  if ref.w[weight].ndim == 2 or ref.w[weight].size == y.shape[-1]: return ref.norm(y, weight)
  return ref.norm(y.reshape(len(y), -1), weight).reshape(y.shape)

def grouped(ref: "Reference", x: np.ndarray, layer: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """x (T, dim) -> q (T, heads, head_dim), k and v (T, kv_heads, head_dim)."""
  name, n, late = f"blk.{layer}.attn_", int(ref.param("rope.dimension_count", ref.head_dim)), ref.traits.late_norm
  heads, kv_heads, sliding = ref.heads(layer), ref.kv_heads(layer), bool(window(ref, layer))
  if name + "qkv.weight" in ref.w:
    rows = ref.linear(x, name + "qkv").reshape(len(x), heads + 2 * kv_heads, -1)
    q, k, v = np.split(rows, [heads, heads + kv_heads], 1)
  else:
    q, k, v = (ref.linear(x, name + part).reshape(len(x), count, -1)
               for part, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)))
  def turn(y: np.ndarray, part: str) -> np.ndarray:
    if not late: y = normed(ref, y, f"{name}{part}_norm.weight")
    if ref.traits.rotated(ref, layer):
      y = rotate(ref, y, n, sliding)
      if ref.traits.unit_norm: y = y / np.sqrt((y * y).mean(-1, keepdims=True) + ref.eps)
    return normed(ref, y, f"{name}{part}_norm.weight") if late else y
  if ref.traits.query_gate: q = q[..., :ref.head_dim]
  q, k = turn(q, "q"), turn(k, "k")
  if ref.traits.temperature: q = q * ref.traits.temperature(ref, layer, np.arange(len(x)))[:, None, None]
  return (q, half(k), half(v)) if ref.kv_half else (q, k, v)

def latent(ref: "Reference", x: np.ndarray, layer: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """x (T, dim) -> q, k (T, heads, nope + rope), v (T, heads, value). The latent and the rotated key are the cache."""
  name, T, heads, rope = f"blk.{layer}.attn_", len(x), ref.heads(layer), int(ref.param("rope.dimension_count"))
  q = ref.linear(x, name + "q") if name + "q.weight" in ref.w else \
    ref.linear(ref.norm(ref.linear(x, name + "q_a"), name + "q_a_norm.weight"), name + "q_b")
  q = q.reshape(T, heads, -1)
  rotated = ref.traits.rotated(ref, layer)
  if rotated: q = np.concatenate([q[..., :-rope], rotate(ref, q[..., -rope:], rope)], -1)
  c, k_rope = np.split(ref.linear(x, name + "kv_a_mqa"), [int(ref.param("attention.kv_lora_rank"))], -1)
  c, k_rope = ref.norm(c, name + "kv_a_norm.weight"), k_rope[:, None]
  if rotated: k_rope = rotate(ref, k_rope, rope)
  if ref.kv_half: c, k_rope = half(c), half(k_rope)
  if name + "kv_b.weight" in ref.w:
    kv = ref.linear(c, name + "kv_b").reshape(T, heads, -1)
    k, v = np.split(kv, [q.shape[-1] - rope], -1)
  else:
    k = np.stack([c @ w for w in ref.w[name + "k_b.weight"]], 1)
    v = np.stack([c @ w.T for w in ref.w[name + "v_b.weight"]], 1)
  return q, np.concatenate([k, k_rope.repeat(heads, 1)], -1), v

def attention(ref: "Reference", x: np.ndarray, layer: int) -> np.ndarray:
  """Grouped-query attention: x (T, dim), row t at position t -> (T, dim)."""
  q, k, v = grouped(ref, x, layer)
  scale = q.shape[-1] ** -0.5
  if (ref.arch, ref.layers) in (("gemma2", 46), ("gemma3", 62)): scale = (ref.dim / ref.heads(layer)) ** -0.5
  if ref.traits.scores: scale = float(ref.param("attention.scale"))
  y = attend(ref, q, k, v, layer, scale)
  if ref.traits.query_gate:
    gate = ref.linear(x, f"blk.{layer}.attn_q").reshape(len(x), ref.heads(layer), 2, -1)[:, :, 1]
    y = y / (1 + np.exp(-gate.reshape(len(x), -1)))
  return ref.linear(y, f"blk.{layer}.attn_output")

def latent_attention(ref: "Reference", x: np.ndarray, layer: int) -> np.ndarray:
  """Multi-head latent attention: x (T, dim), row t at position t -> (T, dim)."""
  return latent_output(ref, x, layer)

def sparse_attention(ref: "Reference", x: np.ndarray, layer: int) -> np.ndarray:
  """Latent attention to the positions that an indexer chooses: the layer's, or the last one before it."""
  if f"blk.{layer}.indexer.proj.weight" in ref.w: ref.left["chosen"] = chosen(ref, x, layer)
  return latent_output(ref, x, layer, ref.left["chosen"])

def latent_output(ref: "Reference", x: np.ndarray, layer: int, seen: np.ndarray | None = None) -> np.ndarray:
  q, k, v = latent(ref, x, layer)
  scale = q.shape[-1] ** -0.5
  if ref.param("rope.scaling.type", "none") == "yarn":
    magnitude = frequencies(ref, int(ref.param("rope.dimension_count")), False)[1]
    scale *= (magnitude * (1 + 0.1 * multiplier(ref) * np.log(float(ref.param("rope.scaling.factor"))))) ** 2
  return ref.linear(attend(ref, q, k, v, layer, scale, seen), f"blk.{layer}.attn_output")

def chosen(ref: "Reference", x: np.ndarray, layer: int) -> np.ndarray:
  """
  Whether a query attends to a key, (T, T) bool: the best top_k by the indexer's scores (DeepSeek-V3.2's report).
  """
  name, rope = f"blk.{layer}.indexer.", int(ref.param("rope.dimension_count"))
  heads, size = (int(ref.param("attention.indexer." + key)) for key in ("head_count", "key_length"))
  latent_q = ref.norm(ref.linear(x, f"blk.{layer}.attn_q_a"), f"blk.{layer}.attn_q_a_norm.weight")
  q = ref.linear(latent_q, name + "attn_q_b").reshape(len(x), heads, size)
  k = ref.linear(x, name + "attn_k")
  k = k - k.mean(-1, keepdims=True)
  k = k / np.sqrt((k * k).mean(-1, keepdims=True) + ref.traits.indexer_eps)
  k = k * ref.w[name + "k_norm.weight"] + ref.w[name + "k_norm.bias"]
  q, k = (rotate(ref, y, rope, interleaved=ref.traits.indexer_pairs) for y in (q, k[:, None]))
  if ref.kv_half: k = half(k)
  weights = ref.linear(x, name + "proj") / np.sqrt(heads * size)  # (T, heads)
  scores = np.einsum("qh,qhk->qk", weights, np.maximum(np.einsum("qhd,kd->qhk", q, k[:, 0]), 0))
  scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
  order = np.argsort(-scores, -1, kind="stable")[:, :int(ref.param("attention.indexer.top_k"))]
  out = np.zeros(scores.shape, bool)
  np.put_along_axis(out, order, True, -1)
  return out

def attend(ref: "Reference", q: np.ndarray, k: np.ndarray, v: np.ndarray, layer: int, scale: float,
           seen: np.ndarray | None = None) -> np.ndarray:
  """q (T, heads, n), k (T, kv_heads, n), v (T, kv_heads, m) -> (T, heads * m). seen (T, T): others are hidden."""
  distance = np.arange(len(q))[:, None] - np.arange(len(q))  # (T, T): query's position less the key's
  hidden = (distance < 0) | (distance >= (window(ref, layer) or len(q)))
  if ref.traits.chunk and ref.traits.windowed(ref, layer):
    chunk = np.arange(len(q)) // ref.traits.chunk
    hidden |= chunk[:, None] != chunk
  if seen is not None: hidden |= ~seen
  sinks, heads = ref.w.get(f"blk.{layer}.attn_sinks.weight"), []
  cap = ref.traits.score_cap and float(ref.param("attn_logit_softcapping", ref.traits.score_cap))
  for h in range(q.shape[1]):
    g = h * k.shape[1] // q.shape[1]
    s = q[:, h] @ k[:, g].T * scale  # (T, T)
    if cap: s = np.tanh(s / cap) * cap
    s = np.where(hidden, -np.inf, s)
    p = np.exp(s - s.max(-1, keepdims=True))
    total = p.sum(-1, keepdims=True)
    if sinks is not None: total += np.exp(sinks[h] - s.max(-1, keepdims=True))
    heads.append(p / total @ v[:, g])
  return np.concatenate(heads, -1)
