"""
An independent forward pass in float64 numpy, the reference for logits. It shares no code with the app: gguf.GGUFReader
reads the file and gguf.quants decodes its weights.

Most differences of architectures follow from the file (biases, norms, sinks, experts, latent attention). The others:
- llama, deepseek2, granite: rotate the pairs (2i, 2i+1) of a head's rotated dimensions; the others (i, i + n/2)
- gemma3: embeddings times sqrt(dim), GELU, a norm after attention and feed-forward, a cap on the logits; sliding
  layers have their own frequencies
- gpt-oss: clamped SwiGLU, expert weights from a softmax over the chosen experts
- gpt-oss, seed_oss: the norm before the feed-forward is called post_attention_norm
- granite: scales of embeddings, scores and residual branches; a divisor of the logits
- llama, qwen3moe: expert weights normalised to sum to 1

Attention is in reference_attention.py, rope scaling in reference_rope.py, experts in reference_moe.py.
"""
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from gguf import GGUFReader, quants
from tests.support.reference_attention import attention
from tests.support.reference_moe import experts


class Reference:
  """
  The model in a GGUF file, every weight in float64 (8 bytes a weight: for small models).

  gap (T,): after logits(), how clear the choice of experts was at each position. It is the smallest distance over the
  layers between a chosen and a rejected expert, in standard deviations of the layer's scores; infinite without experts.
  """
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
    self.gap = np.zeros(0)

  def param(self, key: str, default: Any = None) -> Any:
    value = self.kv.get(f"{self.arch}.{key}", default)
    if value is None: raise KeyError(f"{self.arch}.{key}")
    return value

  def norm(self, x: np.ndarray, weight: str) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.w[weight]

  def linear(self, x: np.ndarray, name: str, expert: int | None = None) -> np.ndarray:
    """x (T, n) -> (T, rows), by a matrix or by one expert's matrix."""
    weight, bias, scale = self.w[name + ".weight"], self.w.get(name + ".bias"), self.w.get(name + ".scale", np.ones(1))
    if expert is not None: weight, bias = weight[expert], None if bias is None else bias[expert]
    y = x @ weight.T * scale[expert if len(scale) > 1 else 0]
    return y if bias is None else y + bias

  def feed_forward(self, x: np.ndarray, name: str, suffix="", expert: int | None = None) -> np.ndarray:
    """x (T, dim) -> (T, dim)."""
    gate, up = (self.linear(x, f"{name}_{part}{suffix}", expert) for part in ("gate", "up"))
    if self.arch == "gpt-oss":
      gate, up = np.minimum(gate, 7), np.clip(up, -7, 7) + 1
      y = gate / (1 + np.exp(-1.702 * gate)) * up
    elif self.arch == "gemma3": y = gate / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (gate + 0.044715 * gate ** 3))) * up
    else: y = gate / (1 + np.exp(-gate)) * up
    return self.linear(y, f"{name}_down{suffix}", expert)

  def logits(self, ids: Sequence[int] | np.ndarray, kv_half=False) -> np.ndarray:
    """The logits after each token, from an empty context: (len(ids), vocab). kv_half rounds the cache to float16."""
    x = self.w["token_embd.weight"][np.asarray(ids)]  # (T, D)
    if self.arch == "gemma3": x = x * np.sqrt(self.dim)
    if self.arch == "granite": x = x * float(self.param("embedding_scale"))
    branch = float(self.param("residual_scale")) if self.arch == "granite" else 1.0
    self.gap = np.full(len(x), np.inf)
    for i in range(self.layers):
      layer = f"blk.{i}"
      y = attention(self, self.norm(x, f"{layer}.attn_norm.weight"), i, kv_half)
      x = x + (self.norm(y, f"{layer}.post_attention_norm.weight") if self.arch == "gemma3" else y * branch)
      before = "post_attention" if self.arch in ("gpt-oss", "seed_oss") else "ffn"
      h = self.norm(x, f"{layer}.{before}_norm.weight")
      if f"{layer}.ffn_gate_inp.weight" in self.w:
        y, gap = experts(self, h, layer)
        self.gap = np.minimum(self.gap, gap)
      else: y = self.feed_forward(h, f"{layer}.ffn")
      x = x + (self.norm(y, f"{layer}.post_ffw_norm.weight") if self.arch == "gemma3" else y * branch)
    y = self.linear(self.norm(x, "output_norm.weight"), "output" if "output.weight" in self.w else "token_embd")
    if self.arch == "granite": y = y / float(self.param("logit_scale"))
    cap = float(self.param("final_logit_softcapping", 0))
    return np.tanh(y / cap) * cap if cap else y

def logits(path: str | pathlib.Path, ids: Sequence[int] | np.ndarray, kv_half=False) -> np.ndarray:
  """`Reference(path).logits(ids)`."""
  return Reference(path).logits(ids, kv_half)

def clear_choices(reference: Reference, ids: Sequence[int], margin: float, seed=0) -> list[int]:
  """
  `ids` with tokens replaced until every choice of experts is clear by `margin` (see Reference.gap), so that rounding
  does not flip it. The tokens of a model without experts stay. ValueError if 100 tries do not suffice.
  """
  rng, out, vocab = np.random.default_rng(seed), np.array(ids), reference.w["token_embd.weight"].shape[0]
  for _ in range(100):
    reference.logits(out)
    if not (close := reference.gap < margin).any(): return out.tolist()
    out[close] = rng.integers(0, vocab, close.sum())
  raise ValueError(f"margin: {margin} is too much; {close.sum()} choices are still close")

def kl(p: np.ndarray, q: np.ndarray) -> float:
  """The mean over positions of KL(softmax(p) || softmax(q)), in nats; p, q: logits (T, vocab)."""
  def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))
  lp, lq = log_softmax(p), log_softmax(q)
  return float((np.exp(lp) * (lp - lq)).sum(-1).mean())
