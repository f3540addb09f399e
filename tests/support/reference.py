"""
An independent forward pass in float64 numpy, the reference for logits. It shares no code with the app: gguf.GGUFReader
reads the file and gguf.quants decodes its weights.

The tensors and keys of a file say most of it; reference_traits.py has the rest, by architecture. Each mixer is one line
of MIXERS, a function of the model, the normalised input and the layer's number. Attention is in reference_attention.py,
rope scaling in reference_rope.py, recurrent mixers in reference_recurrent.py, experts in reference_moe.py.
"""
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gguf import GGUFReader, quants
from tests.support import reference_gemma4
from tests.support.reference_attention import attention, latent_attention, sparse_attention
from tests.support.reference_moe import experts
from tests.support.reference_recurrent import delta, kda, mamba2, shortconv
from tests.support.reference_traits import TRAITS

Mixer = Callable[["Reference", np.ndarray, int], np.ndarray]  # (model, x (T, dim), layer) -> (T, dim)
MIXERS: dict[str, Mixer] = {
  "attention": attention,
  "latent": latent_attention,
  "sparse": sparse_attention,
  "shortconv": shortconv,
  "delta": delta,
  "kda": kda,
  "mamba2": mamba2,
}
BLOCKS: dict[str, Mixer] = {"gemma4": reference_gemma4.block}  # layers that Reference.block cannot say, by architecture

def separate(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Experts' matrices of all layouts as one array a part: gate, up and down."""
  out, lone = dict[str, np.ndarray](), dict[str, dict[int, np.ndarray]]()
  for name, w in weights.items():
    if match := re.fullmatch(r"(blk\.\d+\.ffn_(?:gate|up|down))\.(\d+)\.weight", name):
      lone.setdefault(match[1] + "_exps.weight", {})[int(match[2])] = w
    elif "ffn_gate_up_exps.weight" in name:
      out |= zip((name.replace("gate_up", part) for part in ("gate", "up")), np.split(w, 2, 1))
    else: out[name] = w
  return out | {name: np.stack([experts[i] for i in range(len(experts))]) for name, experts in lone.items()}

class Reference:
  """
  The model in a GGUF file, every weight in float64 (8 bytes a weight: for small models).

  kv_half: whether the KV cache is rounded to float16. gap (T,): after logits(), how clear the choice of experts was at
  each position. It is the smallest distance over the layers between a chosen and a rejected expert, in standard
  deviations of the layer's scores; infinite without experts.

  context: the positions that are allocated. ids: the tokens of logits(). left: results that one layer leaves to later
  ones.
  """
  def __init__(self, path: str | pathlib.Path, context=128):
    reader = GGUFReader(path)
    self.kv = {name: field.contents() for name, field in reader.fields.items()}
    self.w = separate({t.name: quants.dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors})
    self.context = context
    self.arch = str(self.kv["general.architecture"])
    self.traits = TRAITS[self.arch]
    self.layers = int(self.param("block_count")) - int(self.param("nextn_predict_layers", 0))
    self.dim = int(self.param("embedding_length"))
    self.head_dim = int(self.param("attention.key_length", self.dim // max(1, self.heads(0))))
    keys = [f"{self.arch}.attention.layer_norm_{kind}epsilon" for kind in ("rms_", "")]
    self.eps = float(next(self.kv[key] for key in keys[::-1 if self.traits.layer_norm else 1] if key in self.kv))
    self.kv_half, self.gap = False, np.zeros(0)
    self.ids, self.left = np.zeros(0, int), dict[str, np.ndarray]()

  def param(self, key: str, default: Any = None) -> Any:
    value = self.kv.get(f"{self.arch}.{key}", default)
    if value is None: raise KeyError(f"{self.arch}.{key}")
    return value

  def of_layer(self, key: str, layer: int, default: Any = None) -> Any:
    """A parameter that is a number, or a list of one a layer."""
    value = self.param(key, default)
    return value[layer] if isinstance(value, list) else value

  def heads(self, layer: int) -> int: return int(self.of_layer("attention.head_count", layer))
  def kv_heads(self, layer: int) -> int: return int(self.of_layer("attention.head_count_kv", layer, self.heads(layer)))

  def norm(self, x: np.ndarray, weight: str) -> np.ndarray:
    """RMSNorm (https://arxiv.org/abs/1910.07467) or LayerNorm (https://arxiv.org/abs/1607.06450) of the last axis."""
    if self.traits.layer_norm: x = x - x.mean(-1, keepdims=True)
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.w[weight]
    return y + self.w.get(weight.removesuffix("weight") + "bias", 0)

  def linear(self, x: np.ndarray, name: str, expert: int | None = None) -> np.ndarray:
    """x (T, n) -> (T, rows), by a matrix or by one expert's matrix."""
    weight, bias, scale = self.w[name + ".weight"], self.w.get(name + ".bias"), self.w.get(name + ".scale", np.ones(1))
    if expert is not None: weight, bias = weight[expert], None if bias is None else bias[expert]
    y = x @ weight.T * scale[expert if len(scale) > 1 else 0]
    return y if bias is None else y + bias

  def feed_forward(self, x: np.ndarray, name: str, suffix="", expert: int | None = None) -> np.ndarray:
    """x (T, dim) -> (T, dim). Without a gate's matrix, `up` has its rows first; or there is none (relu2)."""
    fused = f"{name}_gate_up{suffix}" if f"{name}_gate_up{suffix}.weight" in self.w else f"{name}_up{suffix}"
    up = self.linear(x, fused, expert)
    if f"{name}_gate{suffix}.weight" in self.w: gate = self.linear(x, f"{name}_gate{suffix}", expert)
    elif self.traits.activation != "relu2": gate, up = np.split(up, 2, -1)
    if self.traits.activation == "clamped":
      gate, up = np.minimum(gate, 7), np.clip(up, -7, 7) + 1
      y = gate / (1 + np.exp(-1.702 * gate)) * up
    elif self.traits.activation == "gelu":
      y = gate / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (gate + 0.044715 * gate ** 3))) * up
    elif self.traits.activation == "relu2": y = np.maximum(up, 0) ** 2
    else: y = gate / (1 + np.exp(-gate)) * up
    return self.linear(y, f"{name}_down{suffix}", expert)

  def mix(self, x: np.ndarray, layer: int) -> np.ndarray:
    """The sum of a layer's mixers: x (T, dim) -> (T, dim)."""
    return sum((MIXERS[kind](self, x, layer) for kind in self.traits.mixers(self, layer)), np.zeros_like(x))

  def transform(self, x: np.ndarray, layer: int) -> np.ndarray:
    """The feed-forward of a layer, dense or with experts: x (T, dim) -> (T, dim)."""
    if not any(name.startswith(f"blk.{layer}.ffn_") for name in self.w): return np.zeros_like(x)  # Nemotron-H
    if f"blk.{layer}.ffn_gate_inp.weight" not in self.w: return self.feed_forward(x, f"blk.{layer}.ffn")
    y, gap = experts(self, x, f"blk.{layer}")
    self.gap = np.minimum(self.gap, gap)
    return y

  def block(self, x: np.ndarray, layer: int) -> np.ndarray:
    """A layer: the residual stream x (T, dim) -> (T, dim)."""
    traits, start, branch = self.traits, x, float(self.param("residual_scale")) if self.traits.residual else 1.0
    for part, before, after in zip((self.mix, self.transform), traits.before, traits.after):
      h = start if traits.parallel else x
      weight = f"blk.{layer}.{before}"
      if weight not in self.w: weight += ".weight"  # Falcon-H1's ffn_norm lacks the suffix
      y = part(self.norm(h, weight) if before else h, layer)
      x = x + (self.norm(y, f"blk.{layer}.{after}.weight") if after else y) * branch
    return x

  def logits(self, ids: Sequence[int] | np.ndarray, kv_half=False) -> np.ndarray:
    """The logits after each token, from an empty context: (len(ids), vocab). kv_half rounds the cache to float16."""
    traits, y = self.traits, self.normed(ids, kv_half)
    y = self.linear(y, "output" if "output.weight" in self.w else "token_embd")
    if traits.logits == "divide": y = y / float(self.param("logit_scale"))
    if traits.logits == "multiply": y = y * float(self.param("logit_scale"))
    cap = float(self.param("final_logit_softcapping", traits.logit_cap))
    return np.tanh(y / cap) * cap if cap else y

  def normed(self, ids: Sequence[int] | np.ndarray, kv_half=False) -> np.ndarray:
    """The normed output of the last layer, (len(ids), dim)."""
    traits, self.kv_half, self.ids, self.left = self.traits, kv_half, np.asarray(ids), {}
    x = self.w["token_embd.weight"][self.ids]  # (T, D)
    if traits.embedding == "sqrt": x = x * np.sqrt(self.dim)
    if traits.embedding == "scale": x = x * float(self.param("embedding_scale"))
    self.gap = np.full(len(x), np.inf)
    block = BLOCKS.get(self.arch, Reference.block)
    for i in range(self.layers): x = block(self, x, i)
    return self.norm(x, f"{traits.last_norm}.weight")

def logits(path: str | pathlib.Path, ids: Sequence[int] | np.ndarray, kv_half=False) -> np.ndarray:
  """`Reference(path).logits(ids)`."""
  return Reference(path).logits(ids, kv_half)

def clear_choices(reference: Reference, ids: Sequence[int], margin: float, seed=0) -> list[int]:
  """
  `ids` with tokens replaced until every choice of experts is clear by `margin` (see Reference.gap), so that rounding
  does not flip it. The tokens of a model without experts stay. ValueError if 200 tries do not suffice.
  """
  rng, out, vocab = np.random.default_rng(seed), np.array(ids), reference.w["token_embd.weight"].shape[0]
  for _ in range(200):
    reference.logits(out)
    if not (reference.gap < margin).any(): return out.tolist()
    close = reference.gap < 1.1 * margin  # gaps are relative to all scores: a new token changes earlier ones a little
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
