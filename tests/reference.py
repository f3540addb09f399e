"""
An independent forward pass in float64 numpy, to check logits against. It shares no code with the app: gguf.GGUFReader
reads the file and gguf.quants decodes its weights.

llama rotates the pairs (2i, 2i+1) of a head's first n dimensions and divides the frequencies by rope_freqs.weight if
there is one; qwen2 adds a bias to q, k and v; qwen3 normalises every head of q and k before the rotation; both rotate
the pairs (i, i + n/2). Linear rope scaling is the only scaling known.
"""
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from gguf import GGUFReader, quants


class Reference:
  """The model in a GGUF file, every weight in float64 (8 bytes a weight: for small models)."""
  def __init__(self, path: str | pathlib.Path):
    reader = GGUFReader(path)
    self.kv = {name: field.contents() for name, field in reader.fields.items()}
    self.w = {t.name: quants.dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors}
    self.arch = str(self.kv["general.architecture"])
    self.layers, self.dim = int(self.param("block_count")), int(self.param("embedding_length"))
    self.heads = int(self.param("attention.head_count"))
    self.kv_heads = int(self.param("attention.head_count_kv", self.heads))
    self.head_dim = int(self.param("attention.key_length", self.dim // self.heads))
    self.eps = float(self.param("attention.layer_norm_rms_epsilon"))

  def param(self, key: str, default: Any = None) -> Any:
    value = self.kv.get(f"{self.arch}.{key}", default)
    if value is None: raise KeyError(f"{self.arch}.{key}")
    return value

  def norm(self, x: np.ndarray, weight: str) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.w[weight]

  def linear(self, x: np.ndarray, name: str) -> np.ndarray:
    y = x @ self.w[name + ".weight"].T
    return y + self.w[name + ".bias"] if name + ".bias" in self.w else y

  def rotate(self, x: np.ndarray) -> np.ndarray:
    """x: (T, heads, head_dim), row t at position t."""
    n = int(self.param("rope.dimension_count", self.head_dim))
    freqs = float(self.param("rope.freq_base", 10000.0)) ** (-np.arange(0, n, 2) / n)
    if "rope_freqs.weight" in self.w: freqs = freqs / self.w["rope_freqs.weight"]
    if self.param("rope.scaling.type", "none") == "linear": freqs = freqs / float(self.param("rope.scaling.factor"))
    angle = (np.arange(len(x))[:, None] * freqs)[:, None]  # (T, 1, n/2)
    a, b = (slice(0, n, 2), slice(1, n, 2)) if self.arch == "llama" else (slice(0, n // 2), slice(n // 2, n))
    out = x.copy()
    out[..., a] = x[..., a] * np.cos(angle) - x[..., b] * np.sin(angle)
    out[..., b] = x[..., a] * np.sin(angle) + x[..., b] * np.cos(angle)
    return out

  def attention(self, x: np.ndarray, layer: str, kv_half: bool) -> np.ndarray:
    q, k, v = (self.linear(x, f"{layer}.attn_{part}").reshape(len(x), n, -1)
               for part, n in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads)))  # (T, heads, head_dim)
    if f"{layer}.attn_q_norm.weight" in self.w:
      q, k = self.norm(q, f"{layer}.attn_q_norm.weight"), self.norm(k, f"{layer}.attn_k_norm.weight")
    q, k = self.rotate(q), self.rotate(k)
    if kv_half: k, v = k.astype(np.float16).astype(np.float64), v.astype(np.float16).astype(np.float64)
    future = np.triu(np.full((len(x), len(x)), -np.inf), 1)
    heads = []
    for h in range(self.heads):
      g = h * self.kv_heads // self.heads
      s = q[:, h] @ k[:, g].T / np.sqrt(self.head_dim) + future  # (T, T)
      p = np.exp(s - s.max(-1, keepdims=True))
      heads.append(p / p.sum(-1, keepdims=True) @ v[:, g])
    return self.linear(np.concatenate(heads, -1), f"{layer}.attn_output")

  def logits(self, ids: Sequence[int] | np.ndarray, kv_half=False) -> np.ndarray:
    """The logits after each token, from an empty context: (len(ids), vocab). kv_half rounds K and V to float16."""
    x = self.w["token_embd.weight"][np.asarray(ids)]  # (T, D)
    for layer in (f"blk.{i}" for i in range(self.layers)):
      x = x + self.attention(self.norm(x, f"{layer}.attn_norm.weight"), layer, kv_half)
      h = self.norm(x, f"{layer}.ffn_norm.weight")
      gate = self.linear(h, f"{layer}.ffn_gate")
      x = x + self.linear(gate / (1 + np.exp(-gate)) * self.linear(h, f"{layer}.ffn_up"), f"{layer}.ffn_down")
    return self.linear(self.norm(x, "output_norm.weight"), "output" if "output.weight" in self.w else "token_embd")

def logits(path: str | pathlib.Path, ids: Sequence[int] | np.ndarray, kv_half=False) -> np.ndarray:
  """`Reference(path).logits(ids)`."""
  return Reference(path).logits(ids, kv_half)

def kl(p: np.ndarray, q: np.ndarray) -> float:
  """The mean over positions of KL(softmax(p) || softmax(q)), in nats; p, q: logits (T, vocab)."""
  def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))
  lp, lq = log_softmax(p), log_softmax(q)
  return float((np.exp(lp) * (lp - lq)).sum(-1).mean())
