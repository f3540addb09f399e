"""
The layers of Gemma 4 in float64. Where they differ from Gemma 3:

- scores have no factor; values are normed, too, but without weights; all norms come before the rotation
- window layers and full layers have their own head size, KV heads and rotation; full layers divide the frequencies by
  rope_freqs, which stops most of them
- a layer without attn_v takes the product of attn_k for its values, too
- the last layers read the keys and values of the last layer of their kind that has them
- experts stand beside a dense feed-forward; each has norms of its own, and the router reads its own norm
- per-layer embeddings: each layer adds a gated vector that belongs to the token and the layer
- each layer's output is multiplied by a number

Source: src/models/gemma4.cpp of llama.cpp.
"""
from typing import TYPE_CHECKING

import numpy as np
from tests.support.reference_attention import half
from tests.support.reference_moe import route, softmax

if TYPE_CHECKING: from tests.support.reference import Reference

KV = tuple[np.ndarray, np.ndarray]  # keys, values, both (T, kv_heads, head_dim)


def gelu(x: np.ndarray) -> np.ndarray: return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))

def rms(ref: "Reference", x: np.ndarray) -> np.ndarray: return x / np.sqrt((x ** 2).mean(-1, keepdims=True) + ref.eps)

def sliding(ref: "Reference", layer: int) -> bool: return bool(ref.param("attention.sliding_window_pattern")[layer])

def rotate(ref: "Reference", x: np.ndarray, layer: int) -> np.ndarray:
  """x (T, heads, head_dim), row t at position t. The pairs are (i, i + n/2); the other dimensions stay."""
  kind = "_swa" if sliding(ref, layer) else ""
  n = int(ref.param("rope.dimension_count" + kind))
  base = float(ref.param("rope.freq_base" + kind, 10000.0))
  freqs = 1 / base ** (2 * np.arange(n // 2) / n)
  if not kind: freqs = freqs / ref.w["rope_freqs.weight"]
  turn = np.exp(1j * np.arange(len(x))[:, None, None] * freqs)  # (T, 1, n/2)
  pairs = (x[..., :n // 2] + 1j * x[..., n // 2:n]) * turn
  return np.concatenate([pairs.real, pairs.imag, x[..., n:]], -1)

def keys_values(ref: "Reference", x: np.ndarray, layer: int) -> KV:
  """x (T, dim): the layer's input, normed."""
  name, shape = f"blk.{layer}.attn_", (len(x), ref.kv_heads(layer), -1)
  k = ref.linear(x, name + "k").reshape(shape)
  v = ref.linear(x, name + "v").reshape(shape) if name + "v.weight" in ref.w else k
  k, v = rotate(ref, ref.norm(k, name + "k_norm.weight"), layer), rms(ref, v)
  return (half(k), half(v)) if ref.kv_half else (k, v)

def attention(ref: "Reference", x: np.ndarray, layer: int) -> np.ndarray:
  """x (T, dim), normed -> (T, dim). The last keys and values of a kind of layers stay in ref.left."""
  name, kind = f"blk.{layer}.attn_", "window" if sliding(ref, layer) else "full"
  if layer < ref.layers - int(ref.param("attention.shared_kv_layers", 0)):
    ref.left[kind + " keys"], ref.left[kind + " values"] = keys_values(ref, x, layer)
  k, v = ref.left[kind + " keys"], ref.left[kind + " values"]
  q = ref.linear(x, name + "q").reshape(len(x), ref.heads(layer), -1)
  q = rotate(ref, ref.norm(q, name + "q_norm.weight"), layer)
  q = q.reshape(len(x), k.shape[1], -1, k.shape[2])  # (T, kv_heads, queries of each, head_dim)
  scores = np.einsum("tghd,sgd->ghts", q, k)
  distance = np.arange(len(x))[:, None] - np.arange(len(x))
  seen = (distance >= 0) & (distance < (int(ref.param("attention.sliding_window")) if kind == "window" else len(x)))
  y = np.einsum("ghts,sgd->tghd", softmax(np.where(seen, scores, -np.inf)), v)
  return ref.linear(y.reshape(len(x), -1), name + "output")

def experts(ref: "Reference", h: np.ndarray, layer: int) -> np.ndarray:
  """h (T, dim): the stream after attention -> the chosen experts' weighted sum (T, dim). Lowers ref.gap."""
  name, x = f"blk.{layer}.ffn_", ref.norm(h, f"blk.{layer}.pre_ffw_norm_2.weight")
  router = rms(ref, h) / np.sqrt(ref.dim) * ref.w[name + "gate_inp.scale"]
  chosen, weights, gap = route(ref, router @ ref.w[name + "gate_inp.weight"].T, None)
  ref.gap, out = np.minimum(ref.gap, gap), np.zeros_like(h)
  for e in np.unique(chosen):
    token, place = np.nonzero(chosen == e)
    gate, up = (x[token] @ ref.w[f"{name}{part}_exps.weight"][e].T for part in ("gate", "up"))
    y = gelu(gate) * up @ ref.w[name + "down_exps.weight"][e].T * ref.w[name + "down_exps.scale"][e]
    out[token] += y * weights[token, place][:, None]
  return out

def feed_forward(ref: "Reference", h: np.ndarray, layer: int) -> np.ndarray:
  """h (T, dim): the stream after attention -> what is added to it (T, dim)."""
  name = f"blk.{layer}."
  y = ref.feed_forward(ref.norm(h, name + "ffn_norm.weight"), name + "ffn")
  if name + "ffn_gate_inp.weight" in ref.w:
    routed = ref.norm(experts(ref, h, layer), name + "post_ffw_norm_2.weight")
    y = ref.norm(y, name + "post_ffw_norm_1.weight") + routed
  return ref.norm(y, name + "post_ffw_norm.weight")

def per_layer_rows(ref: "Reference", x: np.ndarray) -> np.ndarray:
  """x (T, dim): the embeddings of ref.ids, scaled -> (T, layers, width)."""
  width = int(ref.param("embedding_length_per_layer_input"))
  own = ref.w["per_layer_token_embd.weight"][ref.ids].reshape(len(x), ref.layers, width) * np.sqrt(width)
  projected = (ref.linear(x, "per_layer_model_proj") / np.sqrt(ref.dim)).reshape(own.shape)
  return (own + ref.norm(projected, "per_layer_proj_norm.weight")) / np.sqrt(2)

def block(ref: "Reference", x: np.ndarray, layer: int) -> np.ndarray:
  """A layer: the residual stream x (T, dim) -> (T, dim). The first one computes the rows of all layers."""
  name = f"blk.{layer}."
  if layer == 0 and "per_layer_token_embd.weight" in ref.w: ref.left["rows"] = per_layer_rows(ref, x)
  y = attention(ref, ref.norm(x, name + "attn_norm.weight"), layer)
  x = x + ref.norm(y, name + "post_attention_norm.weight")
  x = x + feed_forward(ref, x, layer)
  if "rows" in ref.left:
    y = ref.linear(gelu(ref.linear(x, name + "inp_gate")) * ref.left["rows"][:, layer], name + "proj")
    x = x + ref.norm(y, name + "post_norm.weight")
  return x * ref.w.get(name + "layer_output_scale.weight", np.ones(1))
